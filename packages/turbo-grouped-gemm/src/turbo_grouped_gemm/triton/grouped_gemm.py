# SPDX-License-Identifier: MIT
"""Backend TRITON of `grouped_gemm`, forward and gradient of A: tile choice and launch. No autograd, no checks."""

from __future__ import annotations

import torch

from turbo_core.calls import empty
from turbo_core.device import DeviceFacts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_gemm.developer import Tile, group_rows, is_wide
from turbo_grouped_gemm.calls import GroupedGemmCall, gemm_specs
from turbo_grouped_gemm.triton.grouped_gemm_kernel import grouped_gemm_kernel
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
from turbo_grouped_gemm.triton.grouped_tiles import average_rows, choose_gemm_tile

__all__ = ["plan", "why_not"]


def why_not(call: GroupedGemmCall) -> str | None:
    """Any strides and any pairing of dtypes are accepted: different ones are multiplied as float32."""
    rows = call.sizes()[1]
    return None if rows < MOST_ROWS_IN_ALL else f"{rows} rows of groups; TRITON takes fewer than {MOST_ROWS_IN_ALL}"


def plan(
    call: GroupedGemmCall, facts: DeviceFacts, tile: Tile | None = None, c: torch.Tensor | None = None
) -> tuple[torch.Tensor, list[Launch]]:
    """C and the launch that writes it, from the tensors' metadata; K = 0 gives bias or zeros. Bit-identical each time.

    tile: a row to use in place of the model's choice; c: memory of any strides for C. The audit gives both, and tensors
    on the meta device; so do benchmarks and tests.
    """
    a, b, bias, groups, trans_b, out_dtype, a_idx, out_idx, out_rows, num_cu, schedule, _ = call
    G, S, N, K = call.sizes()
    if c is None:
        c = empty(gemm_specs(call), a.device)
    if out_rows == 0 or N == 0:
        return c, []
    b_GKN = b.transpose(1, 2) if trans_b else b
    item = operand_bytes(a, b)
    if tile is None:
        regular = is_regular(a, b, c, bias) and a.stride(1) == c.stride(1) == 1
        tile = choose_gemm_tile(G, average_rows(G, S), N, K, facts, item, out_dtype.itemsize, regular)
    (stride_am, stride_ak), (stride_bg, stride_bk, stride_bn) = a.stride(), b_GKN.stride()
    stride_cm, stride_cn = c.stride()
    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    # loads of single elements by buffer instructions ran out of scalar registers (gfx950, triton 3.9)
    single = edge_mask(K, block_k) == 2 or edge_mask(N, block_n) == 2
    wide = (
        (single and facts.vendor == "amd")
        or is_wide(a.element_size(), (stride_am, stride_ak), block_m, block_k)
        or is_wide(b.element_size(), (stride_bk, stride_bn), block_k, block_n)
        or is_wide(out_dtype.itemsize, (stride_cm, stride_cn), block_m, block_n)
    )
    stride_bias_g, stride_bias_n = (1, 1) if bias is None else bias.stride()
    arguments = dict(
        a=a, b=b, c=c, bias=bias, **group_arguments(groups), a_idx=a_idx, out_idx=out_idx,
        counter=counter_for(schedule, a.device), G=G, S=S, A_ROWS=a.shape[0], C_ROWS=out_rows, N=N, K=K,
        stride_am=stride_am, stride_ak=stride_ak, stride_bg=stride_bg, stride_bk=stride_bk, stride_bn=stride_bn,
        stride_cm=stride_cm, stride_cn=stride_cn, stride_bias_g=stride_bias_g, stride_bias_n=stride_bias_n,
        stride_a_idx=index_stride(a_idx), stride_out_idx=index_stride(out_idx),
    )  # fmt: skip
    constants = dict(
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, BLOCK_G=power_of_two(G), GROUP_M=group_rows(tile, facts),
        XCDS=facts.xcds, UPCAST=a.dtype != b.dtype, EDGE_N=edge_mask(N, block_n), MASK_N=block_n > N,
        MASK_K=edge_mask(K, block_k), WIDE=wide, SUBTILE=tile.subtile,
    )  # fmt: skip
    # each group may end in a tile of its own, and a gap begin with one
    most = (-(-S // block_m) + 2 * G + 1) * -(-N // block_n)
    zeroed = tuple(name for name, wanted in (("c", out_idx), ("counter", arguments["counter"])) if wanted is not None)
    grid = (programs_for(tile, most, facts, num_cu),)
    launch = Launch(
        grouped_gemm_kernel, grid, arguments, constants, tile.launch_options(), unbuffered=ALL, zeroed=zeroed
    )
    return c, [launch]
