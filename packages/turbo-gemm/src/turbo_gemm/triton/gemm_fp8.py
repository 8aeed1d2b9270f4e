# SPDX-License-Identifier: MIT
"""Launcher of the Triton FP8 GEMM: checks, packing of operands, tile choice, launch. No autograd, no dispatch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_core.bounded import BoundedDict
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.errors import UnsupportedError
from turbo_core.launch import ALL
from turbo_core.low_precision import ScalingGranularity, is_fp8_dtype
from turbo_core.prepared import ALIGNMENT, layout_of
from turbo_gemm.triton.gemm_fp8_block_kernel import gemm_fp8_block_kernel
from turbo_gemm.triton.gemm_fp8_kernel import gemm_fp8_kernel
from turbo_gemm.triton.gemm_fp8_tiles import choose_fp8_tile
from turbo_gemm.triton.gemm_launch import (
    Plan,
    check_c,
    descriptor,
    is_regular,
    is_wide,
    stored_layout,
)
from turbo_gemm.triton.gemm_pack import Packing, plan_packing, row_stride
from turbo_gemm.triton.gemm_tiles import Tile, group_rows, programs_for

__all__ = ["Fp8Plan", "Scales", "matmul_fp8", "plan_fp8"]

_plans: BoundedDict[tuple[Any, ...], Fp8Plan] = BoundedDict()


class Fp8Plan(NamedTuple):
    """What one call launches: packing of A and B and turning of their scales where they need it, then the product."""

    shape_c: tuple[int, int]
    pack_a: Packing | None
    pack_b: Packing | None
    turn_a: bool
    turn_b: bool
    product: Plan


def matmul_fp8(
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    *,
    trans_a: bool,
    trans_b: bool,
    granularity: ScalingGranularity,
    block_size: int,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
    a_tiles: bool = False,
    b_tiles: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """C[M, N] = (op(A) * a_scale) (op(B) * b_scale) (+ bias[N]) (+ out), summed in float32 and rounded once.

    a: [M, K], or [K, M] with trans_a. b: [K, N], or [N, K] with trans_b. Any FP8 types, any strides; FNUZ on gfx942,
    OCP elsewhere. Scales are float32 multipliers, any strides, in the storage order of their operand:

        TENSORWISE  one element each
        ROWWISE     a_scale_inv [M, 1], b_scale_inv [1, N]
        BLOCKWISE   blocks of block_size along K: a_scale_inv [M, ceil(K / block_size)], b_scale_inv
                    [ceil(K / block_size), N]; with a_tiles or b_tiles block_size x block_size tiles, so M or N are
                    divided too

    bias: [N]. out: [M, N] of any strides to write into; with accumulate=True the product is added to it.
    tile: a row to use in place of the model's choice (benchmarks and tests).
    The matrix units read both operands along K: one that is stored otherwise, or not aligned to 16 bytes, is first
    copied. K = 0 gives bias or zeros. Bit-identical from run to run.
    """
    facts = device_facts(a.device)
    key = (
        layout_of(a), layout_of(b), layout_of(a_scale_inv), layout_of(b_scale_inv), layout_of(bias), layout_of(out),
        trans_a, trans_b, granularity, block_size, out_dtype, accumulate, a_tiles, b_tiles, tile, facts.arch,
        facts.compute_units, facts.xcds
    )  # fmt: skip
    plan: Fp8Plan | None = _plans.get(key)
    if plan is None:
        scales = Scales(granularity, block_size, a_tiles, b_tiles)
        plan = plan_fp8(
            a, a_scale_inv, b, b_scale_inv, trans_a, trans_b, scales, out_dtype, bias, out, accumulate, tile, facts
        )
        _plans.keep(key, plan)
    if out is None:
        out = torch.empty(plan.shape_c, dtype=out_dtype, device=a.device)
    if plan.product.programs:
        if plan.pack_a is not None:
            a = plan.pack_a(a)
        if plan.pack_b is not None:
            b = plan.pack_b(b)
        if plan.turn_a:
            a_scale_inv = _turn(a_scale_inv, trans_a)
        if plan.turn_b:
            b_scale_inv = _turn(b_scale_inv, not trans_b)
        plan.product.launch(a, b, out, bias, a_scale_inv, b_scale_inv)
    return out


def _turn(scale: torch.Tensor, transposed: bool) -> torch.Tensor:
    """[G, rows] in memory: the scales that one step of the product reads lie side by side."""
    return (scale if transposed else scale.t()).contiguous()


class Scales(NamedTuple):
    """How the scales of a call lie over its operands."""

    granularity: ScalingGranularity
    block_size: int
    a_tiles: bool = False
    b_tiles: bool = False


def plan_fp8(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    trans_a: bool,
    trans_b: bool,
    scales: Scales,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
    accumulate: bool,
    tile: Tile | None,
    facts: DeviceFacts,
) -> Fp8Plan:
    """The launches of one call, from the tensors' metadata (the audit gives tensors on the meta device)."""
    _check_operands(a, b, facts)
    M, K = (a.shape[1], a.shape[0]) if trans_a else (a.shape[0], a.shape[1])
    K_b, N = (b.shape[1], b.shape[0]) if trans_b else (b.shape[0], b.shape[1])
    if K_b != K:
        raise UnsupportedError(
            f"gemm_fp8: the inner sizes must be equal: K={K} of a and {K_b} of b "
            f"(a.shape={tuple(a.shape)}, b.shape={tuple(b.shape)})"
        )
    check_c("gemm_fp8", M, N, out_dtype, a.device, bias, out, accumulate)
    a_strides = _scale_strides("a_scale_inv", a_scale, scales, M, K, scales.a_tiles, trans_a, a.device)
    b_strides = _scale_strides("b_scale_inv", b_scale, scales, N, K, scales.b_tiles, not trans_b, b.device)
    if M == 0 or N == 0:
        return Fp8Plan((M, N), None, None, False, False, Plan(gemm_fp8_kernel))

    pack_a = plan_packing(a.t() if trans_a else a)
    pack_b = plan_packing(b if trans_b else b.t())
    blockwise = scales.granularity is ScalingGranularity.BLOCKWISE
    scale_k = scales.block_size if blockwise else 0
    stride_am = pack_a.stride if pack_a is not None else row_stride(a.t() if trans_a else a)
    stride_bn = pack_b.stride if pack_b is not None else row_stride(b if trans_b else b.t())
    strides_c = (out.stride(0), out.stride(1)) if out is not None else (N, 1)
    if tile is None:
        kind = "fp8" if not blockwise else "fp8 1d2d" if scales.b_tiles and scale_k % 128 == 0 else "fp8 1d1d"
        # bias and accumulation together, which no training step asks for, spilled in the largest rows
        regular = is_regular(out, bias, strides_c) and not (bias is not None and accumulate)
        tile = choose_fp8_tile(M, N, K, kind, scale_k, facts, out_bytes=out_dtype.itemsize, regular=regular)
    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    walk_blocks = scale_k % block_k != 0
    desc_ab = tile.loads == "descriptor" and not walk_blocks and K > 0
    halves = tile.halves if desc_ab and blockwise else 1
    desc_a = desc_b = desc_c = None
    if desc_ab:
        desc_a = descriptor((M, K), (False, stride_am), block_m // halves, block_k)
        desc_b = descriptor((N, K), (False, stride_bn), block_n, block_k)
        stored_c = stored_layout((M, N), strides_c, out_dtype.itemsize, out.data_ptr() if out is not None else 0)
        if not accumulate and stored_c is not None and not stored_c[0]:
            desc_c = descriptor((M, N), stored_c, block_m // halves, block_n // tile.subtile)
            strides_c = (1, 1)
        stride_am = stride_bn = 1  # unused: a constant, so that they cause no further compilations
    elif not walk_blocks:
        K = -(-K // ALIGNMENT) * ALIGNMENT  # packing filled both up with zeros: whole 16-byte loads up to the end
    turn_a = desc_ab and blockwise and not scales.a_tiles and a_strides[0] != 1
    turn_b = desc_ab and blockwise and not scales.b_tiles and b_strides[0] != 1
    a_strides = (1, M) if turn_a else a_strides
    b_strides = (1, N) if turn_b else b_strides
    wide = (
        is_wide(1, (stride_am, 1), block_m, block_k)
        or is_wide(1, (stride_bn, 1), block_n, block_k)
        or is_wide(out_dtype.itemsize, strides_c, block_m, block_n)
    )
    plan = Plan(gemm_fp8_block_kernel if blockwise else gemm_fp8_kernel, unbuffered=ALL)
    plan.descriptors = (desc_a, desc_b, desc_c)
    plan.programs = programs_for(tile, M, N, facts)
    stride_bias = bias.stride(0) if bias is not None else 1
    scale_strides = (*a_strides, *b_strides) if blockwise else (a_strides[0], b_strides[0])
    plan.scalars = (M, N, K, stride_am, stride_bn, *strides_c, stride_bias, *scale_strides)
    plan.constants = dict(
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=group_rows(tile, facts), XCDS=facts.xcds
    )
    if blockwise:
        plan.constants |= dict(
            SCALE_M=scales.block_size if scales.a_tiles else 1, SCALE_N=scales.block_size if scales.b_tiles else 1,
            SCALE_K=scale_k,
        )  # fmt: skip
    else:
        plan.constants |= dict(PROMOTE=tile.promote or None)
    plan.constants |= dict(
        DESC_AB=desc_ab, DESC_C=desc_c is not None, ACCUMULATE=accumulate, EDGES=M % block_m != 0 or N % block_n != 0,
        MASK_K=not desc_ab and (walk_blocks or K % block_k != 0), WIDE=wide, FLATTEN=tile.flatten,
        SUBTILE=tile.subtile,
    )  # fmt: skip
    if blockwise:
        plan.constants |= dict(HALVES=halves)
    plan.options = dict(num_warps=tile.num_warps, num_stages=tile.num_stages, **dict(tile.options))
    return Fp8Plan((M, N), pack_a, pack_b, turn_a, turn_b, plan)


def _check_operands(a: torch.Tensor, b: torch.Tensor, facts: DeviceFacts) -> None:
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() != 2:
            raise UnsupportedError(f"gemm_fp8: {name}.dim()={tensor.dim()}: 2 is accepted by backend TRITON")
        if not is_fp8_dtype(tensor.dtype):
            raise UnsupportedError(f"gemm_fp8: {name}.dtype={tensor.dtype}: the FP8 types are accepted")
        fnuz = str(tensor.dtype).endswith("fnuz")
        if facts.vendor != "cpu" and fnuz != facts.fp8_fnuz:
            accepted = "the FNUZ types are" if facts.fp8_fnuz else "float8_e4m3fn and float8_e5m2 are"
            raise UnsupportedError(f"gemm_fp8: {name}.dtype={tensor.dtype}: {accepted} accepted on {facts.arch}")
    if str(a.dtype).endswith("fnuz") != str(b.dtype).endswith("fnuz"):
        raise UnsupportedError(f"gemm_fp8: a.dtype={a.dtype} and b.dtype={b.dtype}: both FNUZ or both OCP are accepted")
    if a.device != b.device:
        raise UnsupportedError(f"gemm_fp8: a is on {a.device} and b on {b.device}: one device is accepted")


def _scale_strides(
    name: str,
    scale: torch.Tensor,
    scales: Scales,
    rows: int,
    K: int,
    tiles: bool,
    transposed: bool,
    device: torch.device,
) -> tuple[int, int]:
    """(stride of a row's scale, stride of a block's along K) of an operand seen as [rows, K]; checks the shape."""
    if scale.dtype != torch.float32 or scale.device != device:
        raise UnsupportedError(f"gemm_fp8: {name} is {scale.dtype} on {scale.device}: float32 on {device} is accepted")
    if scales.granularity is ScalingGranularity.TENSORWISE:
        if scale.numel() != 1:
            raise UnsupportedError(f"gemm_fp8: {name}.shape={tuple(scale.shape)}: one element is needed for TENSORWISE")
        return 0, 0
    if scales.granularity is ScalingGranularity.ROWWISE:
        expected = (rows, 1)
    elif scales.granularity is ScalingGranularity.BLOCKWISE and scales.block_size > 0:
        size = scales.block_size
        expected = (-(-rows // size) if tiles else rows, -(-K // size))
    else:
        raise UnsupportedError(
            f"gemm_fp8: granularity={scales.granularity}, block_size={scales.block_size}: TENSORWISE, ROWWISE, and "
            "BLOCKWISE with a positive block_size are accepted by backend TRITON"
        )
    given = expected[::-1] if transposed else expected
    if scale.shape != given:
        raise UnsupportedError(f"gemm_fp8: {name}.shape={tuple(scale.shape)}: {given} is needed")
    return (scale.stride(1), scale.stride(0)) if transposed else (scale.stride(0), scale.stride(1))
