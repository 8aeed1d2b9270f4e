# SPDX-License-Identifier: MIT
"""Stages of all grouped kernels: which rows are whose, and which tile is which, found out on the device.

Every program reads all lengths at its start and keeps three numbers a group in registers: its first row, its rows, and
the number of tiles up to its end. So nothing is read on the host, no kernel runs before, and a launch fits any lengths.

Names: G groups of the S rows. `first` and `size`, int32 [BLOCK_G], BLOCK_G a power of two from G up; places past G
begin at S and are empty. Rows of no group are the head, before the first group, and for each group its gap, from the
end of its rows to the start of the next group, or to S.
"""

import triton
import triton.language as tl

from turbo_gemm.developer import NARROW_BYTES, both_negative, grouped_order


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
def next_tile(tile, counter):
    """The tile that this program takes after `tile`."""
    if counter is None:
        tile += tl.num_programs(0)
    else:
        tile = tl.num_programs(0) + tl.atomic_add(counter, 1)
    return tile


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
    """The [R, C] block of the rows `rows` [R], counted from `base`, and C columns.

    MASK_C: zeros from cols_left on; 2: for loads of single elements, whose masks would take scalar registers.

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
    if MASK_C == 2:
        block = tl.load(pointers, mask=both_negative(tl.arange(0, R) - R, c - cols_left), other=0.0)
    elif MASK_C:
        block = tl.load(pointers, mask=(c < cols_left)[None, :], other=0.0)
    else:
        block = tl.load(pointers)
    return block


@triton.jit
def edge_block(tile, size, BLOCK: tl.constexpr, MASK: tl.constexpr):
    """(first, low): where the block `tile` of a dimension begins, and the first place in it that is its own.

    A last block that would reach past the dimension is moved back to where it ends, so loads need no mask; what it then
    shares with the block before is computed twice and stored once. With MASK the dimension is shorter than a block.
    """
    first = tile * BLOCK
    low = 0
    if not MASK:
        first = tl.minimum(first, size - BLOCK)
        low = tile * BLOCK - first
    return first, low


@triton.jit
def store_rows(
    acc, c, out_idx, row0, low_r, limit, col0, low_c, C_ROWS, N, stride_cm, stride_cn, stride_index, R: tl.constexpr,
    C: tl.constexpr, SUBTILE: tl.constexpr, ACCUMULATE: tl.constexpr, EDGE_C: tl.constexpr
):  # fmt: skip
    """Round once, store row r of the [R, C] tile at (row0, col0) as row row0 + r of C, up to limit and column N.

    With out_idx as row out_idx[row0 + r], if C has one; with ACCUMULATE added to what is there. The first low_r rows
    and low_c columns are not stored (`edge_block`). SUBTILE: 1, or column slices, a power of two. EDGE_C: N may be
    met; 2: as MASK_C of `load_row_block`.
    Offsets are 64-bit and made of the rows: those of turbo-gemm's `store_tile`, 32-bit from the tile's corner, stayed
    in registers through the loops, and at 256x256 on gfx950 10 to 24 of them spilled; these spill none (triton 3.9).
    """
    if SUBTILE > 1:
        HALF: tl.constexpr = C // 2
        left, right = tl.split(tl.permute(tl.reshape(acc, (R, 2, HALF)), (0, 2, 1)))
        store_rows(
            left, c, out_idx, row0, low_r, limit, col0, low_c, C_ROWS, N, stride_cm, stride_cn, stride_index, R, HALF,
            SUBTILE // 2, ACCUMULATE, EDGE_C
        )  # fmt: skip
        store_rows(
            right, c, out_idx, row0, low_r, limit, col0 + HALF, low_c - HALF, C_ROWS, N, stride_cm, stride_cn,
            stride_index, R, HALF, SUBTILE // 2, ACCUMULATE, EDGE_C
        )  # fmt: skip
    else:
        r = tl.arange(0, R)
        n = tl.arange(0, C)
        kept = (r < limit - row0) & (r >= low_r)
        place = (row0 + r).to(tl.int64)
        if out_idx is not None:
            place = tl.load(out_idx + place * stride_index, mask=kept, other=-1).to(tl.int64)
            kept = (place >= 0) & (place < C_ROWS)
        pointers = c + (place[:, None] * stride_cm + (col0 + n).to(tl.int64)[None, :] * stride_cn)
        if EDGE_C == 2:
            mask = both_negative(tl.where(kept, -1, 0), tl.maximum(low_c - 1 - n, n - (N - col0)))
        elif EDGE_C:
            mask = kept[:, None] & ((n >= low_c) & (n < N - col0))[None, :]
        else:
            mask = kept[:, None]
        if ACCUMULATE:
            acc += tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
        tl.store(pointers, acc.to(c.dtype.element_ty), mask=mask)
