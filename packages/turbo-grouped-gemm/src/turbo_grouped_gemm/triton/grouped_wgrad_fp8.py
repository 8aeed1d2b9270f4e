# SPDX-License-Identifier: MIT
"""Backend TRITON of grouped FP8 and MX wgrad: packing of operands, tile choice, launch. No autograd, no checks."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.calls import empty
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.developer import Tile, descriptor, group_rows, is_wide, mx_format, pack_rows, pack_scales, row_stride
from turbo_grouped_gemm.calls import GroupedWgradFp8Call, wgrad_specs
from turbo_grouped_gemm.triton.grouped_fp8_checks import BLOCK_SIZE, why_not_operands
from turbo_grouped_gemm.triton.grouped_fp8_tiles import choose_tile
from turbo_grouped_gemm.triton.grouped_launch import (
    MOST_ROWS_IN_ALL,
    counter_for,
    index_stride,
    is_regular,
    programs_for,
)
from turbo_grouped_gemm.triton.grouped_wgrad_fp8_kernel import (
    grouped_wgrad_fp8_block_kernel,
    grouped_wgrad_fp8_kernel,
    grouped_wgrad_mx_kernel,
)

__all__ = ["plan", "why_not"]


def why_not(call: GroupedWgradFp8Call) -> str | None:
    """Any strides are accepted: the matrix units read both operands along the rows of a group, others are copied."""
    columns = call.sizes()[1] * (2 if call.is_mx() and mx_format(call.x.data) == "e2m1" else 1)
    if columns % BLOCK_SIZE:
        return f"x has {columns} columns; groups are padded to multiples of {BLOCK_SIZE}"
    if columns >= MOST_ROWS_IN_ALL:
        return f"x has {columns} columns; TRITON takes fewer than {MOST_ROWS_IN_ALL}"
    return why_not_operands(call.x, call.y, call.granularity, call.block_size, device_facts(call.x.data.device))


def plan(
    call: GroupedWgradFp8Call, facts: DeviceFacts, tile: Tile | None = None, c: torch.Tensor | None = None
) -> tuple[torch.Tensor, list[Launch]]:
    """C and the launches that write it, from the tensors' metadata. Bit-identical each time.

    tile: a row to use in place of the model's choice; c: memory of any strides for C. The audit gives both, and tensors
    on the meta device; so do benchmarks and tests.
    """
    G, P, X, Y = call.sizes()
    accumulate = call.out is not None
    if c is None:
        c = empty(wgrad_specs(call), call.x.data.device) if call.out is None else call.out
    if G == 0 or X == 0 or Y == 0:
        return c, []
    mx, blockwise = call.is_mx(), call.granularity is ScalingGranularity.BLOCKWISE
    formats = (mx_format(call.x.data), mx_format(call.y.data)) if mx else ("", "")
    P *= 2 if "e2m1" in formats else 1
    kind = "mxfp4" if "e2m1" in formats else "mxfp8" if mx else "fp8 1d1d" if blockwise else "fp8"
    payloads = [x.data.view(torch.uint8) if mx else x.data for x in (call.x, call.y)]
    (x, launches), (y, more) = (pack_rows(payload) for payload in payloads)
    launches = launches + more
    if tile is None:
        regular = is_regular(c) and c.stride(2) == 1
        average = power_of_two(-(-P // G))  # so that most batches take the same row
        tile = choose_tile(True, G, X, Y, average, kind, facts, c.element_size(), regular)
    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    stride_x, stride_y, stride_c = row_stride(x), row_stride(y), c.stride()
    desc = tile.loads == "descriptor" and P > 0
    halves = tile.halves if desc and blockwise else 1
    desc_x, desc_y = x, y
    if desc:
        desc_x = descriptor(x, (X, P), (False, stride_x), block_m // halves, block_k)
        desc_y = descriptor(y, (Y, P), (False, stride_y), block_n, block_k)
        stride_x = stride_y = 1  # unused: a constant, so that they cause no further compilations
    wide = (
        is_wide(1, (stride_x, 1), block_m, block_k)
        or is_wide(1, (stride_y, 1), block_n, block_k)
        or is_wide(c.element_size(), stride_c[1:], block_m, block_n)
    )
    scales = []
    for scale in (call.x.scale_inv, call.y.scale_inv):
        if mx:
            scale, more = pack_scales(scale.view(torch.uint8))
        elif blockwise and scale.stride(0) != 1:
            packed, more = pack_scales(scale.t())  # those that one step of the sum reads lie side by side
            scale = packed.t()
        else:
            more = []
        scales.append(scale)
        launches = launches + more
    counter = counter_for(call.schedule, x.device)
    arguments: dict[str, Any] = dict(
        x=desc_x, y=desc_y, c=c, x_scale=scales[0], y_scale=scales[1], offs=call.offs, counter=counter, G=G, X=X, Y=Y,
        P=P, stride_x=stride_x, stride_y=stride_y, stride_offs=index_stride(call.offs), stride_cg=stride_c[0],
        stride_cx=stride_c[1], stride_cy=stride_c[2],
    )  # fmt: skip
    constants: dict[str, Any] = dict(
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, BLOCK_G=power_of_two(G), GROUP_M=group_rows(tile, facts),
        XCDS=facts.xcds, ACCUMULATE=accumulate, EDGES=X % block_m != 0 or Y % block_n != 0, WIDE=wide,
        SUBTILE=tile.subtile,
    )  # fmt: skip
    strides = [scale.stride() if scale.dim() else (0, 0) for scale in scales]
    if mx:
        kernel = grouped_wgrad_mx_kernel
        arguments |= dict(stride_xs=strides[0][0], stride_ys=strides[1][0])
        constants |= dict(FORMAT_X=formats[0], FORMAT_Y=formats[1])
    elif blockwise:
        kernel = grouped_wgrad_fp8_block_kernel
        names = ("stride_xsx", "stride_xsk", "stride_ysy", "stride_ysk")
        arguments |= dict(zip(names, (*strides[0], *strides[1])))
        constants |= dict(SCALE_K=call.block_size, DESC_AB=desc, HALVES=halves)
    else:
        kernel = grouped_wgrad_fp8_kernel
        names = ("stride_xsg", "stride_xsx", "stride_ysg", "stride_ysy")
        arguments |= dict(zip(names, (*strides[0], *strides[1])))
        constants |= dict(PROMOTE=tile.promote or None, DESC_AB=desc)
    tiles = G * -(-X // block_m) * -(-Y // block_n)
    grid = (programs_for(tile, tiles, facts, call.num_cu),)
    # buffer instructions: see turbo-gemm's launchers
    product = Launch(
        kernel, grid, arguments, constants, tile.launch_options(), unbuffered=ALL,
        zeroed=() if counter is None else ("counter",),
    )  # fmt: skip
    return c, [*launches, product]
