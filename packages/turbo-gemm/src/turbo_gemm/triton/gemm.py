# SPDX-License-Identifier: MIT
"""Backend TRITON of `gemm`: tile choice, descriptors or pointers, launch. No autograd, no dispatch, no checks."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.calls import empty
from turbo_core.device import DeviceFacts
from turbo_core.errors import UnsupportedError
from turbo_core.launch import ALL, Launch
from turbo_core.prepared import ALIGNMENT
from turbo_gemm.calls import GemmCall, specs
from turbo_gemm.triton.gemm_kernel import gemm_kernel
from turbo_gemm.triton.gemm_launch import (
    MAX_REGULAR_STRIDE,
    descriptor,
    is_regular,
    is_wide,
    stored_layout,
)
from turbo_gemm.triton.gemm_tiles import Tile, choose_tile, group_rows, programs_for

__all__ = ["plan", "why_not"]


def why_not(call: GemmCall) -> str | None:
    """Any strides and any pairing of dtypes are accepted: different ones are multiplied as float32."""
    return None


def plan(
    call: GemmCall, facts: DeviceFacts, tile: Tile | None = None, c: torch.Tensor | None = None
) -> tuple[torch.Tensor, list[Launch]]:
    """C and the launch that writes it, from the tensors' metadata; K = 0 gives bias or zeros. Bit-identical each time.

    tile: a row to use in place of the model's choice; c: memory of any strides for C. The audit gives both, and tensors
    on the meta device; so do benchmarks and tests.
    """
    a, b, bias, trans_a, trans_b, out_dtype, out, _ = call
    M, N, K = call.sizes()
    accumulate = out is not None
    if c is None:
        c = empty(specs(call), a.device) if out is None else out
    if M == 0 or N == 0:
        return c, []
    (stride_am, stride_ak), (stride_bk, stride_bn) = strides_a, strides_b = tuple(x.stride() for x in call.operands())
    strides_c = c.stride()
    # float32 operands, and a pair of dtypes converted to it, take the float32 rows
    operand_bytes = 2 if a.dtype == b.dtype and a.element_size() == 2 else 4
    stored_a = stored_b = None
    if K > 0 and (facts.arch == "sm_90" if tile is None else tile.loads == "descriptor"):
        stored_a = stored_layout((M, K), strides_a, a.element_size(), a.data_ptr())
        stored_b = stored_layout((K, N), strides_b, b.element_size(), b.data_ptr())
    if tile is None:
        loads = "descriptor" if stored_a is not None and stored_b is not None else "pointer"
        regular = is_regular(c, bias) and _are_regular(a, b, strides_a, strides_b)
        tile = choose_tile(M, N, K, facts, operand_bytes, loads=loads, out_bytes=out_dtype.itemsize, regular=regular)

    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    desc_a, desc_b, desc_c = a, b, c
    desc_ab, a_t, b_t = tile.loads == "descriptor", False, False
    if desc_ab:
        if stored_a is None or stored_b is None:
            raise UnsupportedError(f"gemm: tile {tile.name} loads through descriptors, which a or b does not fit")
        a_t, b_t = stored_a[0], stored_b[0]
        desc_a = descriptor(a, (M, K), stored_a, block_m, block_k)
        desc_b = descriptor(b, (K, N), stored_b, block_k, block_n)
        # unused: a constant, so that they cause no further compilations
        stride_am = stride_ak = stride_bk = stride_bn = 1
        # C goes through pointers when the old C is read (no room for a second buffer) or its rows are not unit-stride.
        stored_c = stored_layout((M, N), strides_c, out_dtype.itemsize, c.data_ptr())
        if not accumulate and stored_c is not None and not stored_c[0]:
            desc_c = descriptor(c, (M, N), stored_c, block_m, block_n // tile.subtile)
            strides_c = (1, 1)
    wide = (
        is_wide(a.element_size(), (stride_am, stride_ak), block_m, block_k)
        or is_wide(b.element_size(), (stride_bk, stride_bn), block_k, block_n)
        or is_wide(out_dtype.itemsize, strides_c, block_m, block_n)
    )
    arguments: dict[str, Any] = dict(
        a=desc_a, b=desc_b, c=desc_c, bias=bias, M=M, N=N, K=K, stride_am=stride_am, stride_ak=stride_ak,
        stride_bk=stride_bk, stride_bn=stride_bn, stride_cm=strides_c[0], stride_cn=strides_c[1],
        stride_bias=1 if bias is None else bias.stride(0),
    )  # fmt: skip
    constants = dict(
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=group_rows(tile, facts), XCDS=facts.xcds,
        A_T=a_t, B_T=b_t, DESC_AB=desc_ab, DESC_C=desc_c is not c, UPCAST=a.dtype != b.dtype, ACCUMULATE=accumulate,
        MASK_MN=desc_c is c and (M % block_m != 0 or N % block_n != 0), MASK_K=not desc_ab and K % block_k != 0,
        WIDE=wide, FLATTEN=tile.flatten, SUBTILE=tile.subtile,
    )  # fmt: skip
    # with buffer instructions the largest tiles spilled up to 92 of 256 registers (triton 3.9)
    grid = (programs_for(tile, M, N, facts),)
    return c, [Launch(gemm_kernel, grid, arguments, constants, tile.launch_options(), unbuffered=ALL)]


def _are_regular(a: torch.Tensor, b: torch.Tensor, strides_a: tuple[int, ...], strides_b: tuple[int, ...]) -> bool:
    """Whether A and B are as rows of the table that need "regular" launches take them (see Tile.needs)."""
    if a.data_ptr() % ALIGNMENT or b.data_ptr() % ALIGNMENT:
        return False
    for strides in (strides_a, strides_b):
        if min(strides) != 1 or max(strides) % ALIGNMENT or max(strides) > MAX_REGULAR_STRIDE:
            return False
    return strides_a[1] == 1 or strides_b[1] == 1  # not both transposed
