# SPDX-License-Identifier: MIT
"""Launcher of the Triton MX GEMM (MXFP8, MXFP4): checks, packing of operands, tile choice, launch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_core.bounded import BoundedDict
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.errors import UnsupportedError
from turbo_core.launch import ALL
from turbo_core.low_precision import MX_BLOCK_SIZE, MX_PADDING
from turbo_core.prepared import layout_of
from turbo_gemm.triton.gemm_fp8_tiles import choose_fp8_tile
from turbo_gemm.triton.gemm_launch import Plan, check_c, is_regular, is_wide
from turbo_gemm.triton.gemm_mx_kernel import gemm_mx_kernel
from turbo_gemm.triton.gemm_pack import Packing, plan_packing, row_stride
from turbo_gemm.triton.gemm_tiles import Tile, group_rows, programs_for

__all__ = ["MxPlan", "matmul_mx", "plan_mx"]

_BYTE_TYPES = ("uint8", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "float8_e8m0fnu")
_plans: BoundedDict[tuple[Any, ...], MxPlan] = BoundedDict()


class MxPlan(NamedTuple):
    """What one call launches: packing of A and of B where they need it, then the product."""

    shape_c: tuple[int, int]
    pack_a: Packing | None
    pack_b: Packing | None
    product: Plan


def matmul_mx(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    format_a: str,
    format_b: str,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """C[M, N] = (A * a_scale) (B * b_scale)^T (+ bias[N]) (+ out), summed in float32 and rounded once.

    a: [M, K], b: [N, K], K a multiple of 128; ``e4m3`` and ``e5m2`` one byte a value, in any mixture; ``e2m1`` (both or
    none) two values a byte, so [M, K/2]. a_scale: [M, K/32], b_scale: [N, K/32]; E8M0 bytes. Any strides.
    bias: [N]. out: [M, N] of any strides to write into; with accumulate=True the product is added to it.
    tile: a row to use in place of the model's choice (benchmarks and tests).
    Scaled matrix instructions on gfx950; elsewhere the operands are widened to 16 bits. Bit-identical from run to run.
    """
    a, b, a_scale, b_scale = (_bytes(name, x) for name, x in zip(_NAMES, (a, b, a_scale, b_scale), strict=True))
    facts = device_facts(a.device)
    key = (
        layout_of(a), layout_of(b), layout_of(a_scale), layout_of(b_scale), layout_of(bias), layout_of(out),
        format_a, format_b, out_dtype, accumulate, tile, facts.arch, facts.compute_units, facts.xcds
    )  # fmt: skip
    plan: MxPlan | None = _plans.get(key)
    if plan is None:
        plan = plan_mx(a, a_scale, b, b_scale, format_a, format_b, out_dtype, bias, out, accumulate, tile, facts)
        _plans.keep(key, plan)
    if out is None:
        out = torch.empty(plan.shape_c, dtype=out_dtype, device=a.device)
    if plan.product.programs:
        if plan.pack_a is not None:
            a = plan.pack_a(a)
        if plan.pack_b is not None:
            b = plan.pack_b(b)
        plan.product.launch(a, b, out, bias, a_scale.contiguous(), b_scale.contiguous())
    return out


_NAMES = ("a", "b", "a_scale", "b_scale")


def _bytes(name: str, x: torch.Tensor) -> torch.Tensor:
    if x.dim() != 2:
        raise UnsupportedError(f"gemm_mx: {name}.dim()={x.dim()}: 2 is accepted by backend TRITON")
    if str(x.dtype).removeprefix("torch.") not in _BYTE_TYPES:
        raise UnsupportedError(f"gemm_mx: {name}.dtype={x.dtype}: the OCP types and uint8 are accepted")
    return x if x.dtype == torch.uint8 else x.view(torch.uint8)


def plan_mx(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    format_a: str,
    format_b: str,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
    accumulate: bool,
    tile: Tile | None,
    facts: DeviceFacts,
) -> MxPlan:
    """The launches of one call, from the bytes' metadata (the audit gives tensors on the meta device)."""
    M, N, K = _check(a, a_scale, b, b_scale, format_a, format_b)
    check_c("gemm_mx", M, N, out_dtype, a.device, bias, out, accumulate)
    plan = Plan(gemm_mx_kernel, unbuffered=ALL)
    if M == 0 or N == 0:
        return MxPlan((M, N), None, None, plan)
    pack_a, pack_b = plan_packing(a), plan_packing(b)
    stride_am = pack_a.stride if pack_a is not None else row_stride(a)
    stride_bn = pack_b.stride if pack_b is not None else row_stride(b)
    strides_c = (out.stride(0), out.stride(1)) if out is not None else (N, 1)
    if tile is None:
        regular = is_regular(out, bias, strides_c) and not (bias is not None and accumulate)  # as in gemm_fp8
        kind = "mxfp4" if format_a == "e2m1" else "mxfp8"
        tile = choose_fp8_tile(M, N, K, kind, 0, facts, out_bytes=out_dtype.itemsize, regular=regular)
    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    wide = (
        is_wide(1, (stride_am, 1), block_m, block_k)
        or is_wide(1, (stride_bn, 1), block_n, block_k)
        or is_wide(out_dtype.itemsize, strides_c, block_m, block_n)
    )
    plan.descriptors = (None, None, None)
    plan.programs = programs_for(tile, M, N, facts)
    stride_bias = bias.stride(0) if bias is not None else 1
    plan.scalars = (M, N, K, stride_am, stride_bn, *strides_c, stride_bias, K // MX_BLOCK_SIZE, K // MX_BLOCK_SIZE)
    plan.constants = dict(
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=group_rows(tile, facts), XCDS=facts.xcds,
        FORMAT_A=format_a, FORMAT_B=format_b, ACCUMULATE=accumulate,
        EDGES=M % block_m != 0 or N % block_n != 0, WIDE=wide, FLATTEN=tile.flatten, SUBTILE=tile.subtile,
    )  # fmt: skip
    plan.options = dict(num_warps=tile.num_warps, num_stages=tile.num_stages, **dict(tile.options))
    return MxPlan((M, N), pack_a, pack_b, plan)


def _check(
    a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, format_a: str, format_b: str
) -> tuple[int, int, int]:
    """M, N and K of operands that fit each other."""
    pairs = {("e2m1", "e2m1"), *((x, y) for x in ("e4m3", "e5m2") for y in ("e4m3", "e5m2"))}
    if (format_a, format_b) not in pairs:
        raise UnsupportedError(
            f"gemm_mx: format_a={format_a!r}, format_b={format_b!r}: e4m3 and e5m2 in any mixture, or e2m1 for both, "
            "are accepted"
        )
    packed = 2 if format_a == "e2m1" else 1
    K = a.shape[1] * packed
    if b.shape[1] * packed != K or K % MX_PADDING:
        raise UnsupportedError(
            f"gemm_mx: K={K} of a and {b.shape[1] * packed} of b: equal multiples of {MX_PADDING} are needed"
        )
    for name, scale, operand in (("a_scale", a_scale, a), ("b_scale", b_scale, b)):
        needed = (operand.shape[0], K // MX_BLOCK_SIZE)
        if scale.shape != needed:
            raise UnsupportedError(f"gemm_mx: {name}.shape={tuple(scale.shape)}: {needed} is needed")
    if len({x.device for x in (a, a_scale, b, b_scale)}) > 1:
        raise UnsupportedError(f"gemm_mx: a is on {a.device}, b on {b.device}: one device is accepted for all")
    return a.shape[0], b.shape[0], K
