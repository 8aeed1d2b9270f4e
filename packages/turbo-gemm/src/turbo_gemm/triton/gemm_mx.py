# SPDX-License-Identifier: MIT
"""The MX half of backend TRITON of `gemm_fp8` and `gemm_fp4`: MXFP8 and MXFP4."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.calls import empty
from turbo_core.device import DeviceFacts
from turbo_core.launch import ALL, Launch
from turbo_core.low_precision import MX_BLOCK_SIZE
from turbo_gemm.calls import GemmFp8Call, mx_format, specs
from turbo_gemm.triton.gemm_fp8_tiles import choose_fp8_tile
from turbo_gemm.triton.gemm_launch import is_regular, is_wide, pack_rows, pack_scales, row_stride
from turbo_gemm.triton.gemm_mx_kernel import gemm_mx_kernel
from turbo_gemm.triton.gemm_tiles import Tile, group_rows, programs_for

__all__ = ["plan"]


def plan(
    call: GemmFp8Call, facts: DeviceFacts, tile: Tile | None = None, c: torch.Tensor | None = None
) -> tuple[torch.Tensor, list[Launch]]:
    """C and the launches that write it; arguments and promises of `turbo_gemm.triton.gemm.plan`.

    Scaled matrix instructions on gfx950; elsewhere the operands are widened to 16 bits.
    """
    bias, out, out_dtype = call.bias, call.out, call.out_dtype
    M, N, K = call.sizes()
    accumulate = out is not None
    if c is None:
        c = empty(specs(call), call.a.data.device) if out is None else out
    if M == 0 or N == 0:
        return c, []
    format_a, format_b = mx_format(call.a.data), mx_format(call.b.data)
    a, launches = pack_rows(call.a.data.view(torch.uint8))
    b, more_b = pack_rows(call.b.data.view(torch.uint8))
    a_scale, more_as = pack_scales(call.a.scale_inv.view(torch.uint8))
    b_scale, more_bs = pack_scales(call.b.scale_inv.view(torch.uint8))
    stride_am, stride_bn, strides_c = row_stride(a), row_stride(b), c.stride()
    if tile is None:
        regular = is_regular(c, bias) and not (bias is not None and accumulate)  # as in gemm_fp8
        kind = "mxfp4" if format_a == "e2m1" else "mxfp8"
        tile = choose_fp8_tile(M, N, K, kind, 0, facts, out_bytes=out_dtype.itemsize, regular=regular)
    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    wide = (
        is_wide(1, (stride_am, 1), block_m, block_k)
        or is_wide(1, (stride_bn, 1), block_n, block_k)
        or is_wide(out_dtype.itemsize, strides_c, block_m, block_n)
    )
    arguments: dict[str, Any] = dict(
        a=a, b=b, c=c, bias=bias, a_scale=a_scale, b_scale=b_scale, M=M, N=N, K=K, stride_am=stride_am,
        stride_bn=stride_bn, stride_cm=strides_c[0], stride_cn=strides_c[1],
        stride_bias=1 if bias is None else bias.stride(0), stride_asm=K // MX_BLOCK_SIZE,
        stride_bsn=K // MX_BLOCK_SIZE,
    )  # fmt: skip
    constants = dict(
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=group_rows(tile, facts), XCDS=facts.xcds,
        FORMAT_A=format_a, FORMAT_B=format_b, ACCUMULATE=accumulate,
        EDGES=M % block_m != 0 or N % block_n != 0, WIDE=wide, FLATTEN=tile.flatten, SUBTILE=tile.subtile,
    )  # fmt: skip
    # buffer instructions: see gemm
    grid = (programs_for(tile, M, N, facts),)
    product = Launch(gemm_mx_kernel, grid, arguments, constants, tile.launch_options(), unbuffered=ALL)
    return c, [*launches, *more_b, *more_as, *more_bs, product]
