# SPDX-License-Identifier: MIT
"""Backend TRITON of the gradient of B: tile choice and launch. No autograd, no dispatch, no checks."""

from __future__ import annotations

import torch

from turbo_core.calls import empty
from turbo_core.device import DeviceFacts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_gemm.developer import Tile, group_rows, is_wide
from turbo_grouped_gemm.calls import GroupedWgradCall, wgrad_specs
from turbo_grouped_gemm.triton.grouped_launch import (
    MOST_ROWS_IN_ALL,
    counter_for,
    edge_mask,
    group_arguments,
    index_stride,
    is_regular,
    operand_bytes,
    programs_for,
)
from turbo_grouped_gemm.triton.grouped_tiles import average_rows, choose_wgrad_tile
from turbo_grouped_gemm.triton.grouped_wgrad_kernel import grouped_wgrad_kernel

__all__ = ["plan", "why_not"]


def why_not(call: GroupedWgradCall) -> str | None:
    """Any strides and any pairing of dtypes are accepted: different ones are multiplied as float32."""
    rows = call.sizes()[1]
    return None if rows < MOST_ROWS_IN_ALL else f"{rows} rows of groups; TRITON takes fewer than {MOST_ROWS_IN_ALL}"


def plan(
    call: GroupedWgradCall, facts: DeviceFacts, tile: Tile | None = None, c: torch.Tensor | None = None
) -> tuple[torch.Tensor, list[Launch]]:
    """C and the launch that writes it, from the tensors' metadata. Bit-identical each time.

    tile: a row to use in place of the model's choice; c: memory of any strides for C. The audit gives both, and tensors
    on the meta device; so do benchmarks and tests.
    """
    x, y, groups, out_dtype, x_idx, y_idx, out, num_cu, schedule = call
    G, S, X, Y = call.sizes()
    if c is None:
        c = empty(wgrad_specs(call), x.device) if out is None else out
    if G == 0 or X == 0 or Y == 0:
        return c, []
    if x.shape[0] == 0 or y.shape[0] == 0:
        S = 0  # no index is right
    item = operand_bytes(x, y)
    if tile is None:
        regular = is_regular(x, y, c) and x.stride(1) == y.stride(1) == c.stride(2) == 1
        tile = choose_wgrad_tile(G, average_rows(G, S), X, Y, facts, item, out_dtype.itemsize, regular)
    stride_cg, stride_cx, stride_cy = c.stride()
    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    wide = (
        is_wide(x.element_size(), x.stride(), block_k, block_m)
        or is_wide(y.element_size(), y.stride(), block_k, block_n)
        or is_wide(out_dtype.itemsize, (stride_cx, stride_cy), block_m, block_n)
    )
    arguments = dict(
        x=x, y=y, c=c, **group_arguments(groups), x_idx=x_idx, y_idx=y_idx, counter=counter_for(schedule, x.device),
        G=G, S=S, X_ROWS=x.shape[0], Y_ROWS=y.shape[0], X=X, Y=Y, stride_xr=x.stride(0), stride_xc=x.stride(1),
        stride_yr=y.stride(0), stride_yc=y.stride(1), stride_cg=stride_cg, stride_cx=stride_cx, stride_cy=stride_cy,
        stride_x_idx=index_stride(x_idx), stride_y_idx=index_stride(y_idx),
    )  # fmt: skip
    constants = dict(
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, BLOCK_G=power_of_two(G), GROUP_M=group_rows(tile, facts),
        XCDS=facts.xcds, UPCAST=x.dtype != y.dtype, ACCUMULATE=out is not None,
        MASK_M=block_m > X, MASK_N=block_n > Y, EDGE_N=edge_mask(Y, block_n), WIDE=wide,
        SUBTILE=tile.subtile if out is not None or facts.vendor != "amd" else 1,  # AMD stores from registers
    )  # fmt: skip
    grid = (programs_for(tile, G * -(-X // block_m) * -(-Y // block_n), facts, num_cu),)
    zeroed = () if arguments["counter"] is None else ("counter",)
    options = tile.launch_options()
    if facts.vendor == "amd" and (x_idx is not None or y_idx is not None):
        options["num_stages"] = min(2, tile.num_stages)  # triton 3.9 for gfx950 fails on named rows in three stages
    return c, [Launch(grouped_wgrad_kernel, grid, arguments, constants, options, unbuffered=ALL, zeroed=zeroed)]
