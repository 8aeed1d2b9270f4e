# SPDX-License-Identifier: MIT
"""Stages of all grouped kernels: which rows are whose, and which tile is which, found out on the device.

Every program reads all lengths at its start and keeps three numbers a group in registers: its first row, its rows, and
the number of tiles up to its end. So nothing is read on the host, no kernel runs before, and a launch fits any lengths.

Names: G groups of the S rows. `first` and `size`, int32 [BLOCK_G], BLOCK_G a power of two from G up; places past G begin
at S and are empty. Rows of no group are the head, before the first group, and for each group its gap, from the end of
its rows to the start of the next group, or to S.
"""

import triton
import triton.language as tl

from turbo_gemm.developer import NARROW_BYTES, grouped_order


@triton.jit
def later(x, y):
    """The later of two rows: combines a scan."""
    return tl.maximum(x, y)


@triton.jit
def pick(values, at):
    """values[at] of a vector in registers; 0 outside of it."""
    places = tl.arange(0, values.shape[0])
    return tl.sum(tl.where(places == at, values, 0), 0)


@triton.jit
def load_groups(lens, offs, G, S, stride_lens, stride_offs, BLOCK_G: tl.constexpr):
    """(first, size, following) of all groups, so cut that they lie within the rows, in order and apart.

    lens [G], offs [G+1] or None: int32 or int64, any values; see `turbo_grouped_gemm.calls.Groups`. following is where
    the next group begins.
    """
    group = tl.arange(0, BLOCK_G)
    last = tl.cast(S, tl.int64)
    size = tl.load(lens + group * stride_lens, mask=group < G, other=0).to(tl.int64)
    size = tl.minimum(tl.maximum(size, 0), last)
    if offs is None:
        end = tl.cumsum(size, 0)
        first = tl.minimum(end - size, last)
        following = tl.minimum(end, last)
    else:
        first = tl.load(offs + group * stride_offs, mask=group < G, other=0).to(tl.int64)
        following = tl.load(offs + (group + 1) * stride_offs, mask=group < G, other=0).to(tl.int64)
        first = tl.associative_scan(tl.minimum(tl.maximum(first, 0), last), 0, later)
        following = tl.maximum(tl.minimum(following, last), first)
    size = tl.minimum(size, following - first)
    first = tl.where(group < G, first, last)
    return first.to(tl.int32), size.to(tl.int32), following.to(tl.int32)


@triton.jit
def number_tiles(
    first, size, following, G, S, tiles_n, BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, FILL: tl.constexpr
):
    """(head, ends): how many tiles the head has, and up to the end of each group, int32 [BLOCK_G].

    Tiles are numbered from 0: those of the head, then for each group those of its rows and those of its gap. Without
    FILL rows of no group have no tiles.
    """
    group = tl.arange(0, BLOCK_G)
    blocks = tl.cdiv(size, BLOCK_M)
    head = 0
    if FILL:
        gap = tl.where(group < G - 1, following, S) - first - size
        blocks += tl.where(group < G, tl.cdiv(gap, BLOCK_M), 0)
        head = tl.cdiv(tl.where(G > 0, pick(first, 0), S), BLOCK_M) * tiles_n
    return head, head + tl.cumsum(blocks, 0) * tiles_n


@triton.jit
def count_tiles(head, ends):
    """Tiles of all groups, the head and the gaps."""
    return tl.maximum(head, tl.max(ends, 0))


@triton.jit
def find_tile(tile, head, ends, first, size, G, S, tiles_n, BLOCK_M: tl.constexpr, GROUP_M: tl.constexpr):
    """(group, row0, limit, tile_n, owned) of a tile: its rows are [row0, min(row0 + BLOCK_M, limit)).

    owned: whether they are the group's; rows of no group are to be zeros. In a group tiles are in `grouped_order`.
    """
    group = tl.sum((ends <= tile).to(tl.int32), 0)
    within = tile - tl.max(tl.where(ends <= tile, ends, head), 0)
    start = pick(first, group)
    end = start + pick(size, group)
    tiles_m = tl.cdiv(end - start, BLOCK_M)
    owned = (tile >= head) & (within < tiles_m * tiles_n)
    tile_m, tile_n = grouped_order(tl.where(owned, within, 0), tl.maximum(tiles_m, 1), tiles_n, GROUP_M)
    row0 = start + tile_m * BLOCK_M
    limit = end
    if not owned:
        in_head = tile < head
        fill = tl.where(in_head, tile, within - tiles_m * tiles_n)
        following = tl.where(group < G - 1, pick(first, group + 1), S)
        tile_n = fill % tiles_n
        row0 = tl.where(in_head, 0, end) + fill // tiles_n * BLOCK_M
        limit = tl.where(in_head, tl.where(G > 0, pick(first, 0), S), following)
    return group, row0, limit, tile_n, owned


@triton.jit
def load_row_block(
    base, rows, cols_left, stride_r, stride_c, C: tl.constexpr, MASK_C: tl.constexpr, WIDE: tl.constexpr,
    R: tl.constexpr
):  # fmt: skip
    """The [R, C] block of the rows `rows` [R], counted from `base`, and C columns; zeros from cols_left on.

    Past the last row of a group its last row is to be named again, in place of a mask: what it gives is never stored.
    Rows given as int64 may be any of a tensor of any size; else, unless WIDE, they are from 0 to R - 1.
    """
    c = tl.arange(0, C)
    if WIDE:
        rows = rows.to(tl.int64)
        c = c.to(tl.int64)
    else:
        item: tl.constexpr = base.dtype.element_ty.primitive_bitwidth // 8
        tl.assume(stride_r >= 0)
        tl.assume(stride_r <= NARROW_BYTES // (R * item))
        tl.assume(stride_c >= 0)
        tl.assume(stride_c <= NARROW_BYTES // (C * item))
    pointers = base + (rows[:, None] * stride_r + c[None, :] * stride_c)
    if MASK_C:
        block = tl.load(pointers, mask=(c < cols_left)[None, :], other=0.0)
    else:
        block = tl.load(pointers)
    return block
