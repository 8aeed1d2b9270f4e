# SPDX-License-Identifier: MIT
"""The Triton kernels of a gate by itself, between products of quantised operands, and of the sums for probs.

What they do to a tile is what the epilogues of `grouped_mlp_kernel` do. Names as there.
"""

import triton
import triton.language as tl

from turbo_grouped_gemm.triton.grouped_mlp_kernel import load_factor, store_dgated, store_gated, store_partial
from turbo_grouped_gemm.triton.groups_kernel import count_tiles, find_tile, load_groups, number_tiles


@triton.jit
def load_tile(x, row0, limit_row, owned, col0, F, stride, R: tl.constexpr, C: tl.constexpr):
    """The [R, C] tile of x [S, F], float32; zeros in rows of no group, which are not read, and from column F on."""
    r = tl.arange(0, R)
    n = tl.arange(0, C)
    inside = (r < tl.where(owned, limit_row - row0, 0))[:, None] & (n < F - col0)[None, :]
    at = x + ((row0 + r).to(tl.int64)[:, None] * stride + (col0 + n).to(tl.int64)[None, :])
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["S"])
def grouped_gate_kernel(
    pre, out, probs, lens, offs, G, S, F, limit, alpha, stride_probs, stride_lens, stride_offs,
    ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_G: tl.constexpr
):  # fmt: skip
    """out[s] = act(gate) up probs[s] of pre [S, 2F] for rows s of groups, zeros for others; all contiguous."""
    tiles_n = tl.cdiv(F, BLOCK_F)
    first, size, following = load_groups(lens, offs, G, S, stride_lens, stride_offs, BLOCK_G)
    head, ends = number_tiles(first, size, following, G, S, tiles_n, BLOCK_M, BLOCK_G, True)
    num_tiles = count_tiles(head, ends)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        group, row0, limit_row, tile_n, owned = find_tile(tile, head, ends, first, size, G, S, tiles_n, BLOCK_M, 1)
        col0 = tile_n * BLOCK_F
        gate = load_tile(pre, row0, limit_row, owned, col0, F, 2 * F, BLOCK_M, BLOCK_F)
        up = load_tile(pre + F, row0, limit_row, owned, col0, F, 2 * F, BLOCK_M, BLOCK_F)
        factor = load_factor(probs, row0, limit_row, owned, stride_probs, BLOCK_M)
        store_gated(
            gate, up, None, out, factor, row0, limit_row, col0, 0, S, F, limit, alpha, ACTIVATION, BLOCK_M, BLOCK_F, 1,
            True
        )  # fmt: skip


@triton.jit(do_not_specialize=["S"])
def grouped_dgate_kernel(
    dout, pre, dpre, out, probs, partials, lens, offs, G, S, F, limit, alpha, stride_probs, stride_lens, stride_offs,
    ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_G: tl.constexpr
):  # fmt: skip
    """The gradients of the gate of dout [S, F], contiguous; others as for `grouped_dgated_kernel`."""
    tiles_n = tl.cdiv(F, BLOCK_F)
    first, size, following = load_groups(lens, offs, G, S, stride_lens, stride_offs, BLOCK_G)
    head, ends = number_tiles(first, size, following, G, S, tiles_n, BLOCK_M, BLOCK_G, True)
    num_tiles = count_tiles(head, ends)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        group, row0, limit_row, tile_n, owned = find_tile(tile, head, ends, first, size, G, S, tiles_n, BLOCK_M, 1)
        col0 = tile_n * BLOCK_F
        tile_of_dout = load_tile(dout, row0, limit_row, owned, col0, F, F, BLOCK_M, BLOCK_F)
        factor = load_factor(probs, row0, limit_row, owned, stride_probs, BLOCK_M)
        sums = store_dgated(
            tile_of_dout, pre, dpre, out, factor, row0, limit_row, col0, 0, S, F, limit, alpha, ACTIVATION, BLOCK_M,
            BLOCK_F, 1, True, True
        )  # fmt: skip
        if partials is not None:
            store_partial(sums, partials, tile_n, row0, limit_row, S, BLOCK_M)


@triton.jit(do_not_specialize=["S"])
def sum_partials_kernel(partials, sums, S, tiles, BLOCK: tl.constexpr):
    """sums[s] = the sum of partials[:, s], float32 [tiles, S], in the order of the tiles, rounded once."""
    s = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tile in range(tiles):
        total += tl.load(partials + tl.cast(tile, tl.int64) * S + s, mask=s < S, other=0.0)
    tl.store(sums + s, total.to(sums.dtype.element_ty), mask=s < S)
