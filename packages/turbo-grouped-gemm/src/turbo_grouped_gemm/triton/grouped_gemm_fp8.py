# SPDX-License-Identifier: MIT
"""Backend TRITON of grouped FP8 and MX products, forward and gradient of A: packing, tile choice, launch."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.calls import empty
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_core.low_precision import ScalingGranularity
from turbo_core.prepared import ALIGNMENT
from turbo_gemm.developer import Tile, descriptor, group_rows, is_wide, mx_format, pack_rows, pack_scales, row_stride
from turbo_grouped_gemm.calls import GroupedGemmFp8Call, gemm_specs
from turbo_grouped_gemm.triton.grouped_fp8_checks import why_not_operands
from turbo_grouped_gemm.triton.grouped_fp8_tiles import choose_tile
from turbo_grouped_gemm.triton.grouped_gemm_fp8_kernel import (
    grouped_gemm_fp8_block_kernel,
    grouped_gemm_fp8_kernel,
    grouped_gemm_mx_kernel,
)
from turbo_grouped_gemm.triton.grouped_launch import (
    MOST_ROWS_IN_ALL,
    counter_for,
    group_arguments,
    index_stride,
    is_regular,
    programs_for,
)
from turbo_grouped_gemm.triton.grouped_tiles import average_rows

__all__ = ["plan", "why_not"]


def why_not(call: GroupedGemmFp8Call) -> str | None:
    """Any strides are accepted: the matrix units read both operands along K, so others are copied first."""
    rows = call.sizes()[1]
    if rows >= MOST_ROWS_IN_ALL:
        return f"{rows} rows of groups; TRITON takes fewer than {MOST_ROWS_IN_ALL}"
    return why_not_operands(call.a, call.b, call.granularity, call.block_size, device_facts(call.a.data.device))


def plan(
    call: GroupedGemmFp8Call, facts: DeviceFacts, tile: Tile | None = None, c: torch.Tensor | None = None
) -> tuple[torch.Tensor, list[Launch]]:
    """C and the launches that write it; arguments and promises of `turbo_grouped_gemm.triton.grouped_gemm.plan`."""
    G, S, N, K = call.sizes()
    bias, groups, a_idx, out_idx = call.bias, call.groups, call.a_idx, call.out_idx
    if c is None:
        c = empty(gemm_specs(call), call.a.data.device)
    if call.out_rows == 0 or N == 0:
        return c, []
    mx, blockwise = call.is_mx(), call.granularity is ScalingGranularity.BLOCKWISE
    formats = (mx_format(call.a.data), mx_format(call.b.data)) if mx else ("", "")
    K *= 2 if "e2m1" in formats else 1
    kind = "mxfp4" if "e2m1" in formats else "mxfp8" if mx else "fp8 1d2d" if blockwise else "fp8"
    payloads = [x.data.view(torch.uint8) if mx else x.data for x in (call.a, call.b)]
    (a, launches), (b, more) = (pack_rows(payload) for payload in payloads)
    launches = launches + more
    stride_am, stride_bn, stride_bg = row_stride(a), row_stride(b), b.stride(0)
    stride_cm, stride_cn = c.stride()
    # one descriptor holds the rows of all groups, one after the other
    joined = G == 1 or stride_bg == N * stride_bn
    can_describe = not mx and a_idx is None and joined and min(G, K, a.shape[0]) > 0
    if tile is None:
        regular = is_regular(c, bias) and stride_cn == 1
        loads = "descriptor" if can_describe else "pointer"
        average = average_rows(G, S)
        tile = choose_tile(False, G, average, N, K, kind, facts, c.element_size(), regular, loads)
    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    desc = tile.loads == "descriptor" and can_describe
    halves = tile.halves if desc and blockwise else 1
    desc_a, desc_b = a, b
    if desc:
        desc_a = descriptor(a, (a.shape[0], K), (False, stride_am), block_m // halves, block_k)
        desc_b = descriptor(b, (G * N, K), (False, stride_bn), block_n, block_k)
        stride_am = stride_bn = stride_bg = 1  # unused: a constant, so that they cause no further compilations
    else:
        K = -(-K // ALIGNMENT) * ALIGNMENT  # packing filled both up with zeros: whole 16-byte loads up to the end
    scales, strides = [], []
    for operand in (call.a, call.b):
        scale = operand.scale_inv
        if mx:
            scale, more = pack_scales(scale.view(torch.uint8))
            launches = launches + more
        scales.append(scale)
        strides.append(scale.stride() if scale.dim() else (0,) * operand.data.dim())
    (stride_asm, stride_ask), (stride_bsg, stride_bsn, stride_bsk) = strides
    if a.shape[0] == 1:  # never used; that of more rows, so that a batch of one causes no further compilation
        stride_asm = scales[0].shape[1] if mx else min(stride_asm, 1)
    wide = (
        is_wide(1, (stride_am, 1), block_m, block_k)
        or is_wide(1, (stride_bn, 1), block_n, block_k)
        or is_wide(c.element_size(), (stride_cm, stride_cn), block_m, block_n)
    )
    stride_bias_g, stride_bias_n = (1, 1) if bias is None else bias.stride()
    counter = counter_for(call.schedule, a.device)
    arguments: dict[str, Any] = dict(
        a=desc_a, b=desc_b, c=c, bias=bias, a_scale=scales[0], b_scale=scales[1], **group_arguments(groups),
        a_idx=a_idx, out_idx=out_idx, counter=counter, G=G, S=S, A_ROWS=a.shape[0], C_ROWS=call.out_rows, N=N, K=K,
        stride_am=stride_am, stride_bg=stride_bg, stride_bn=stride_bn, stride_cm=stride_cm, stride_cn=stride_cn,
        stride_bias_g=stride_bias_g, stride_bias_n=stride_bias_n, stride_asm=stride_asm, stride_bsg=stride_bsg,
        stride_bsn=stride_bsn, stride_a_idx=index_stride(a_idx), stride_out_idx=index_stride(out_idx),
    )  # fmt: skip
    constants: dict[str, Any] = dict(
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, BLOCK_G=power_of_two(G), GROUP_M=group_rows(tile, facts),
        XCDS=facts.xcds, EDGES=N % block_n != 0, WIDE=wide, SUBTILE=tile.subtile,
    )  # fmt: skip
    if mx:
        kernel = grouped_gemm_mx_kernel
        constants |= dict(FORMAT_A=formats[0], FORMAT_B=formats[1])
    else:
        constants |= dict(DESC_AB=desc, MASK_K=not desc and K % block_k != 0)
        kernel = grouped_gemm_fp8_kernel
        if blockwise:
            kernel = grouped_gemm_fp8_block_kernel
            arguments |= dict(stride_ask=stride_ask, stride_bsk=stride_bsk)
            constants |= dict(SCALE=call.block_size, HALVES=halves)
        else:
            constants |= dict(PROMOTE=tile.promote or None)
    # each group may end in a tile of its own, and a gap begin with one
    most = (-(-S // block_m) + 2 * G + 1) * -(-N // block_n)
    zeroed = tuple(name for name, wanted in (("c", out_idx), ("counter", counter)) if wanted is not None)
    grid = (programs_for(tile, most, facts, call.num_cu),)
    # buffer instructions: see turbo-gemm's launchers
    product = Launch(kernel, grid, arguments, constants, tile.launch_options(), unbuffered=ALL, zeroed=zeroed)
    return c, [*launches, product]
