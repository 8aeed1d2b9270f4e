# SPDX-License-Identifier: MIT
"""The Triton kernel of C[g] = X_g^T Y_g: persistent over the tiles of all groups, each a sum over its group's rows.

Its stages are those of turbo-gemm's kernel and of `groups_kernel`. Names as there.
"""

import triton
import triton.language as tl

from turbo_gemm.developer import grouped_order, load_block, tile_of_program
from turbo_grouped_gemm.triton.groups_kernel import edge_block, load_groups, next_tile, pick, store_rows


@triton.jit
def long_first(size, G, BLOCK_G: tl.constexpr):
    """Place of each group in the order of work, int32 [BLOCK_G]: those longer than the average before the others.

    The last tiles that programs take decide when the slowest is done, so they are to be short.
    """
    group = tl.arange(0, BLOCK_G)
    there = group < G
    mean = tl.sum(size.to(tl.int64), 0) // tl.maximum(G, 1)
    is_long = (there & (size > mean)).to(tl.int32)
    is_short = (there & (size <= mean)).to(tl.int32)
    place = tl.where(is_long > 0, tl.cumsum(is_long, 0) - 1, tl.sum(is_long, 0) + tl.cumsum(is_short, 0) - 1)
    return tl.where(there, place, G)


@triton.jit
def load_group_block(
    x, index, row0, rows_left, col0, X, ROWS, stride_r, stride_c, stride_index, R: tl.constexpr, C: tl.constexpr,
    T: tl.constexpr, MASK_R: tl.constexpr, MASK_C: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Rows row0 on, or those that index names from row0 on, and columns col0 on of x, as [R, C], or [C, R] when T.

    With MASK_R zeros from rows_left on, with MASK_C from X on.
    """
    corner = x + col0.to(tl.int64) * stride_c
    if index is None:
        corner += row0.to(tl.int64) * stride_r
        if T:
            block = load_block(corner, 0, X - col0, rows_left, stride_c, stride_r, C, R, MASK_C, MASK_R, WIDE)
        else:
            block = load_block(corner, 0, rows_left, X - col0, stride_r, stride_c, R, C, MASK_R, MASK_C, WIDE)
    else:
        r = tl.arange(0, R)
        place = tl.load(index + (row0 + r).to(tl.int64) * stride_index, mask=r < rows_left, other=0).to(tl.int64)
        offsets_r = tl.minimum(tl.maximum(place, 0), ROWS - 1) * stride_r
        kept_r = r < rows_left
        c = tl.arange(0, C)
        kept_c = c < X - col0
        offsets_c = c.to(tl.int64) * stride_c if WIDE else c * stride_c
        if T:
            pointers = corner + (offsets_c[:, None] + offsets_r[None, :])
            mask = kept_c[:, None] & kept_r[None, :]
        else:
            pointers = corner + (offsets_r[:, None] + offsets_c[None, :])
            mask = kept_r[:, None] & kept_c[None, :]
        block = tl.load(pointers, mask=mask, other=0.0)
    return block


@triton.jit
def add_rows(
    acc, x, y, x_idx, y_idx, row0, rows_left, x0, y0, X, Y, X_ROWS, Y_ROWS, stride_xr, stride_xc, stride_yr, stride_yc,
    stride_x_idx, stride_y_idx, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr, MASK_K: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """acc [BLOCK_M, BLOCK_N] + X^T Y of BLOCK_K rows from row0 on, or with MASK_K of the rows_left that there are."""
    x_block = load_group_block(
        x, x_idx, row0, rows_left, x0, X, X_ROWS, stride_xr, stride_xc, stride_x_idx, BLOCK_K, BLOCK_M, True, MASK_K,
        MASK_M, WIDE
    )  # fmt: skip
    y_block = load_group_block(
        y, y_idx, row0, rows_left, y0, Y, Y_ROWS, stride_yr, stride_yc, stride_y_idx, BLOCK_K, BLOCK_N, False, MASK_K,
        MASK_N, WIDE
    )  # fmt: skip
    if UPCAST:
        x_block = x_block.to(tl.float32)
        y_block = y_block.to(tl.float32)
    return tl.dot(x_block, y_block, acc, input_precision="ieee")


@triton.jit(do_not_specialize=["S", "X_ROWS", "Y_ROWS"])
def grouped_wgrad_kernel(
    x, y, c, lens, offs, x_idx, y_idx, counter, G, S, X_ROWS, Y_ROWS, X, Y,
    stride_xr, stride_xc, stride_yr, stride_yc, stride_cg, stride_cx, stride_cy, stride_lens, stride_offs,
    stride_x_idx, stride_y_idx,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_G: tl.constexpr, GROUP_M: tl.constexpr,
    XCDS: tl.constexpr, UPCAST: tl.constexpr, ACCUMULATE: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
    EDGE_N: tl.constexpr, WIDE: tl.constexpr, SUBTILE: tl.constexpr
):  # fmt: skip
    """C[g] = X_g^T Y_g (+ C[g]), a sum over the rows of group g.

        C[g, i, j] = round(sum_s x[x_idx[s], i] * y[y_idx[s], j]  + (C[g, i, j] if ACCUMULATE))     s a row of group g

    x        [X_ROWS, X]  fp16, bf16 or fp32; any strides, in elements.
    y        [Y_ROWS, Y]  likewise.
    c        [G, X, Y]    fp16, bf16 or fp32; any strides. Of an empty group zeros, with ACCUMULATE as it was.
    lens     [G], offs [G+1] or None: int32 or int64, which rows are whose.
    x_idx    [S], y_idx [S]: int32 or int64, or None: s itself. Places outside of x and y are cut off.
    counter  [1]          int32, zero at the start: programs take their tiles from it; or None: a stride apart.

    Accumulation: float32, rows ascending in steps of BLOCK_K; the old C is added in float32; one rounding. The rest as
    in `grouped_gemm_kernel`. MASK_M, MASK_N: X, Y is less than a block.
    Source: written for this library.
    """
    tiles_x = tl.cdiv(X, BLOCK_M)
    tiles_y = tl.cdiv(Y, BLOCK_N)
    tiles_of_group = tiles_x * tiles_y
    num_tiles = G * tiles_of_group
    first, size, following = load_groups(lens, offs, G, S, stride_lens, stride_offs, BLOCK_G)
    places = long_first(size, G, BLOCK_G)

    tile = tl.program_id(0)
    while tile < num_tiles:
        number = tile
        if counter is None:
            number = tile_of_program(tile, num_tiles, XCDS)
        group = tl.sum(tl.where(places == number // tiles_of_group, tl.arange(0, BLOCK_G), 0), 0)
        row0 = pick(first, group)
        rows = pick(size, group)
        tile_x, tile_y = grouped_order(number % tiles_of_group, tiles_x, tiles_y, GROUP_M)
        x0, low_x = edge_block(tile_x, X, BLOCK_M, MASK_M)
        y0, low_y = edge_block(tile_y, Y, BLOCK_N, MASK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        whole = rows // BLOCK_K
        for step in range(whole):
            acc = add_rows(
                acc, x, y, x_idx, y_idx, row0 + step * BLOCK_K, BLOCK_K, x0, y0, X, Y, X_ROWS, Y_ROWS, stride_xr,
                stride_xc, stride_yr, stride_yc, stride_x_idx, stride_y_idx, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST, False,
                MASK_M, MASK_N, WIDE
            )  # fmt: skip
        rows_left = rows - whole * BLOCK_K
        if rows_left > 0:
            acc = add_rows(
                acc, x, y, x_idx, y_idx, row0 + whole * BLOCK_K, rows_left, x0, y0, X, Y, X_ROWS, Y_ROWS, stride_xr,
                stride_xc, stride_yr, stride_yc, stride_x_idx, stride_y_idx, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST, True,
                MASK_M, MASK_N, WIDE
            )  # fmt: skip
        if rows >= ACCUMULATE:  # what is added to an empty group's is nothing: it is not even read
            c_group = c + group.to(tl.int64) * stride_cg
            store_rows(
                acc, c_group, None, x0, low_x, X, y0, low_y, X, Y, stride_cx, stride_cy, 1, BLOCK_M, BLOCK_N, SUBTILE,
                ACCUMULATE, EDGE_N
            )  # fmt: skip
        tile = next_tile(tile, counter)
