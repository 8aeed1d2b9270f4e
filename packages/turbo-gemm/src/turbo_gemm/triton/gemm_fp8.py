# SPDX-License-Identifier: MIT
"""Backend TRITON of `gemm_fp8` and `gemm_fp4`: packing of operands, tile choice, launch. No autograd, no checks."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.calls import empty
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import ALL, Launch
from turbo_core.low_precision import ScalingGranularity
from turbo_core.prepared import ALIGNMENT
from turbo_gemm.calls import GemmFp8Call, specs
from turbo_gemm.triton import gemm_mx
from turbo_gemm.triton.gemm_fp8_block_kernel import gemm_fp8_block_kernel
from turbo_gemm.triton.gemm_fp8_kernel import gemm_fp8_kernel
from turbo_gemm.triton.gemm_fp8_tiles import choose_fp8_tile
from turbo_gemm.triton.gemm_launch import (
    descriptor,
    is_regular,
    is_wide,
    pack_rows,
    pack_scales,
    row_stride,
    stored_layout,
)
from turbo_gemm.triton.gemm_tiles import Tile, group_rows, programs_for

__all__ = ["plan", "why_not"]

_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def why_not(call: GemmFp8Call) -> str | None:
    """Any strides are accepted: the matrix units read both operands along K, so others are copied first."""
    if call.preshuffled:
        return "scales and payload are preshuffled for AITER; the plain order is needed"
    a, b = call.a.data, call.b.data
    if device_facts(a.device).vendor == "nvidia" and (a.dtype in _FNUZ or b.dtype in _FNUZ):
        return f"a is {a.dtype} and b is {b.dtype}; Triton compiles FNUZ types for AMD only"
    return None


def plan(
    call: GemmFp8Call, facts: DeviceFacts, tile: Tile | None = None, c: torch.Tensor | None = None
) -> tuple[torch.Tensor, list[Launch]]:
    """C and the launches that write it; arguments and promises of `turbo_gemm.triton.gemm.plan`."""
    if call.is_mx():
        return gemm_mx.plan(call, facts, tile, c)
    bias, out, out_dtype = call.bias, call.out, call.out_dtype
    M, N, K = call.sizes()
    accumulate = out is not None
    if c is None:
        c = empty(specs(call), call.a.data.device) if out is None else out
    if M == 0 or N == 0:
        return c, []
    a_MK, b_NK = call.rows()
    a, launches = pack_rows(a_MK.data)
    b, more = pack_rows(b_NK.data)
    launches += more
    blockwise = call.granularity is ScalingGranularity.BLOCKWISE
    scale_k = call.block_size if blockwise else 0
    stride_am, stride_bn, strides_c = row_stride(a), row_stride(b), c.stride()
    if tile is None:
        kind = "fp8" if not blockwise else "fp8 1d2d" if b_NK.tiles and scale_k % 128 == 0 else "fp8 1d1d"
        # bias and accumulation together, which no training step asks for, spilled in the largest rows
        regular = is_regular(c, bias) and not (bias is not None and accumulate)
        tile = choose_fp8_tile(M, N, K, kind, scale_k, facts, out_bytes=out_dtype.itemsize, regular=regular)
    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    walk_blocks = scale_k % block_k != 0
    desc_ab = tile.loads == "descriptor" and not walk_blocks and K > 0
    halves = tile.halves if desc_ab and blockwise else 1
    desc_a, desc_b, desc_c = a, b, c
    if desc_ab:
        desc_a = descriptor(a, (M, K), (False, stride_am), block_m // halves, block_k)
        desc_b = descriptor(b, (N, K), (False, stride_bn), block_n, block_k)
        stored_c = stored_layout((M, N), strides_c, out_dtype.itemsize, c.data_ptr())
        if not accumulate and stored_c is not None and not stored_c[0]:
            desc_c = descriptor(c, (M, N), stored_c, block_m // halves, block_n // tile.subtile)
            strides_c = (1, 1)
        stride_am = stride_bn = 1  # unused: a constant, so that they cause no further compilations
    elif not walk_blocks:
        K = -(-K // ALIGNMENT) * ALIGNMENT  # packing filled both up with zeros: whole 16-byte loads up to the end
    scales = []
    for operand in (a_MK, b_NK):
        scale = operand.scale_inv
        if desc_ab and blockwise and not operand.tiles and scale.stride(0) != 1:
            packed, more = pack_scales(scale.t())  # those that one step of the product reads lie side by side
            scale, launches = packed.t(), launches + more
        scales.append(scale)
    # one scale for all of the tensor has no strides
    strides_as, strides_bs = (scale.stride() if scale.dim() else (0, 0) for scale in scales)
    wide = (
        is_wide(1, (stride_am, 1), block_m, block_k)
        or is_wide(1, (stride_bn, 1), block_n, block_k)
        or is_wide(out_dtype.itemsize, strides_c, block_m, block_n)
    )
    arguments: dict[str, Any] = dict(
        a=desc_a, b=desc_b, c=desc_c, bias=bias, a_scale=scales[0], b_scale=scales[1], M=M, N=N, K=K,
        stride_am=stride_am, stride_bn=stride_bn, stride_cm=strides_c[0], stride_cn=strides_c[1],
        stride_bias=1 if bias is None else bias.stride(0), stride_asm=strides_as[0], stride_bsn=strides_bs[0],
    )  # fmt: skip
    constants: dict[str, Any] = dict(
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=group_rows(tile, facts), XCDS=facts.xcds,
        DESC_AB=desc_ab, DESC_C=desc_c is not c, ACCUMULATE=accumulate, EDGES=M % block_m != 0 or N % block_n != 0,
        MASK_K=not desc_ab and (walk_blocks or K % block_k != 0), WIDE=wide, FLATTEN=tile.flatten,
        SUBTILE=tile.subtile,
    )  # fmt: skip
    kernel = gemm_fp8_kernel
    if blockwise:
        kernel = gemm_fp8_block_kernel
        arguments |= dict(stride_ask=strides_as[1], stride_bsk=strides_bs[1])
        shared = (call.block_size if x.tiles else 1 for x in (a_MK, b_NK))
        constants |= dict(zip(("SCALE_M", "SCALE_N"), shared), SCALE_K=scale_k, HALVES=halves)
    else:
        constants |= dict(PROMOTE=tile.promote or None)
    # buffer instructions: see gemm
    grid = (programs_for(tile, M, N, facts),)
    product = Launch(kernel, grid, arguments, constants, tile.launch_options(), unbuffered=ALL)
    return c, [*launches, product]
