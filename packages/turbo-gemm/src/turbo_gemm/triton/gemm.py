# SPDX-License-Identifier: MIT
"""Launcher of the Triton GEMM: checks, tile choice, descriptors or pointers, launch. No autograd, no dispatch."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.bounded import BoundedDict
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.errors import UnsupportedError
from turbo_core.launch import ALL
from turbo_core.prepared import ALIGNMENT, layout_of
from turbo_gemm.triton.gemm_kernel import gemm_kernel
from turbo_gemm.triton.gemm_launch import (
    MAX_REGULAR_STRIDE,
    OUT_DTYPES,
    Plan,
    check_c,
    descriptor,
    is_regular,
    is_wide,
    stored_layout,
)
from turbo_gemm.triton.gemm_tiles import Tile, choose_tile, group_rows, programs_for

__all__ = ["matmul"]

_plans: BoundedDict[tuple[Any, ...], tuple[Plan, tuple[int, int], torch.dtype]] = BoundedDict()


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """C[M, N] = op(A) op(B) (+ bias[N]) (+ out), accumulated in float32 and rounded once to C's dtype.

    a: [M, K], or [K, M] with trans_a. b: [K, N], or [N, K] with trans_b. fp16, bf16 or fp32, any strides; two
    different dtypes are multiplied as float32. out_dtype: C's dtype, default out's, else the promoted dtype.
    bias: [N]. out: [M, N] of any strides to write into; with accumulate=True the product is added to it.
    tile: a row to use in place of the model's choice (benchmarks and tests).
    K = 0 gives bias or zeros (out unchanged when accumulating). Bit-identical from run to run.
    """
    facts = device_facts(a.device)
    key = (
        layout_of(a), layout_of(b), layout_of(bias), layout_of(out), trans_a, trans_b, out_dtype, accumulate,
        tile, facts.arch, facts.compute_units, facts.xcds
    )  # fmt: skip
    known = _plans.get(key)
    if known is None:
        known = _plans.keep(key, _make_plan(a, b, trans_a, trans_b, out_dtype, bias, out, accumulate, tile, facts))
    plan, shape_c, dtype_c = known
    if out is None:
        out = torch.empty(shape_c, dtype=dtype_c, device=a.device)
    if plan.programs:
        plan.launch(a, b, out, bias)
    return out


def _make_plan(
    a: torch.Tensor,
    b: torch.Tensor,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
    accumulate: bool,
    tile: Tile | None,
    facts: DeviceFacts,
) -> tuple[Plan, tuple[int, int], torch.dtype]:
    """The launch, and C's shape and dtype."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() != 2:
            raise UnsupportedError(f"gemm: {name}.dim()={tensor.dim()}: 2 is accepted by backend TRITON")
    M, K = (a.shape[1], a.shape[0]) if trans_a else (a.shape[0], a.shape[1])
    K_b, N = (b.shape[1], b.shape[0]) if trans_b else (b.shape[0], b.shape[1])
    if out_dtype is None:
        out_dtype = out.dtype if out is not None else torch.promote_types(a.dtype, b.dtype)
    _check(a, b, K, K_b)
    check_c("gemm", M, N, out_dtype, a.device, bias, out, accumulate)
    plan = Plan(gemm_kernel, unbuffered=ALL)
    if M == 0 or N == 0:
        return plan, (M, N), out_dtype

    strides_a = (a.stride(1), a.stride(0)) if trans_a else (a.stride(0), a.stride(1))
    strides_b = (b.stride(1), b.stride(0)) if trans_b else (b.stride(0), b.stride(1))
    strides_c = (out.stride(0), out.stride(1)) if out is not None else (N, 1)
    # float32 operands, and a pair of dtypes converted to it, take the float32 rows
    operand_bytes = 2 if a.dtype == b.dtype and a.element_size() == 2 else 4
    stored_a = stored_b = stored_c = None
    if K > 0 and (facts.arch == "sm_90" if tile is None else tile.loads == "descriptor"):
        stored_a = stored_layout((M, K), strides_a, a.element_size(), a.data_ptr())
        stored_b = stored_layout((K, N), strides_b, b.element_size(), b.data_ptr())
    if tile is None:
        loads = "descriptor" if stored_a is not None and stored_b is not None else "pointer"
        regular = _regular(a, b, out, bias, strides_a, strides_b, strides_c)
        tile = choose_tile(M, N, K, facts, operand_bytes, loads=loads, out_bytes=out_dtype.itemsize, regular=regular)

    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    desc_a = desc_b = desc_c = None
    desc_ab = tile.loads == "descriptor"
    if desc_ab:
        if stored_a is None or stored_b is None:
            raise UnsupportedError(f"gemm: tile {tile.name} loads through descriptors, which a or b does not fit")
        desc_a = descriptor((M, K), stored_a, block_m, block_k)
        desc_b = descriptor((K, N), stored_b, block_k, block_n)
        strides_a = strides_b = (1, 1)  # unused: a constant, so that they cause no further compilations
        # C goes through pointers when the old C is read (no room for a second buffer) or its rows are not unit-stride.
        stored_c = stored_layout((M, N), strides_c, out_dtype.itemsize, out.data_ptr() if out is not None else 0)
        if not accumulate and stored_c is not None and not stored_c[0]:
            desc_c = descriptor((M, N), stored_c, block_m, block_n // tile.subtile)
            strides_c = (1, 1)
    wide = (
        is_wide(a.element_size(), strides_a, block_m, block_k)
        or is_wide(b.element_size(), strides_b, block_k, block_n)
        or is_wide(out_dtype.itemsize, strides_c, block_m, block_n)
    )
    plan.descriptors = (desc_a, desc_b, desc_c)
    plan.programs = programs_for(tile, M, N, facts)
    plan.scalars = (M, N, K, *strides_a, *strides_b, *strides_c, bias.stride(0) if bias is not None else 1)
    plan.constants = dict(
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=group_rows(tile, facts), XCDS=facts.xcds,
        A_T=stored_a is not None and desc_ab and stored_a[0], B_T=stored_b is not None and desc_ab and stored_b[0],
        DESC_AB=desc_ab, DESC_C=desc_c is not None, UPCAST=a.dtype != b.dtype, ACCUMULATE=accumulate,
        MASK_MN=desc_c is None and (M % block_m != 0 or N % block_n != 0),
        MASK_K=not desc_ab and K % block_k != 0, WIDE=wide, FLATTEN=tile.flatten, SUBTILE=tile.subtile,
    )  # fmt: skip
    plan.options = dict(num_warps=tile.num_warps, num_stages=tile.num_stages, **dict(tile.options))
    return plan, (M, N), out_dtype


def _check(a: torch.Tensor, b: torch.Tensor, K: int, K_b: int) -> None:
    for name, dtype in (("a.dtype", a.dtype), ("b.dtype", b.dtype)):
        if dtype not in OUT_DTYPES:
            raise UnsupportedError(
                f"gemm: {name}={dtype}: float16, bfloat16 and float32 are accepted by backend TRITON"
            )
    if K_b != K:
        raise UnsupportedError(
            f"gemm: the inner sizes must be equal: K={K} of a and {K_b} of b "
            f"(a.shape={tuple(a.shape)}, b.shape={tuple(b.shape)})"
        )
    if a.device != b.device:
        raise UnsupportedError(f"gemm: a is on {a.device} and b on {b.device}: one device is accepted")


def _regular(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    bias: torch.Tensor | None,
    strides_a: tuple[int, int],
    strides_b: tuple[int, int],
    strides_c: tuple[int, int],
) -> bool:
    """Whether rows of the table that need "regular" launches may take this one (see Tile.needs)."""
    if a.data_ptr() % ALIGNMENT or b.data_ptr() % ALIGNMENT or not is_regular(out, bias, strides_c):
        return False
    for strides in (strides_a, strides_b):
        if min(strides) != 1 or max(strides) % ALIGNMENT or max(strides) > MAX_REGULAR_STRIDE:
            return False
    return strides_a[1] == 1 or strides_b[1] == 1  # not both transposed
