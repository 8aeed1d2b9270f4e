# SPDX-License-Identifier: MIT
"""The Triton kernel of C[r] = A[r] B[g]: persistent over the tiles of all groups, rows gathered or scattered.

Its stages are those of turbo-gemm's kernel and of `groups_kernel`. Names as there.
"""

import triton
import triton.language as tl

from turbo_gemm.developer import add_bias, load_block, tile_of_program
from turbo_grouped_gemm.triton.groups_kernel import (
    count_tiles,
    edge_block,
    find_tile,
    load_groups,
    load_row_block,
    next_tile,
    number_tiles,
    store_rows,
)


@triton.jit
def place_rows(index, row0, limit, count, stride_index, R: tl.constexpr):
    """index[row0] to index[row0 + R - 1], int64 [R]; past the last row its own again. Cut off to [0, count)."""
    row = row0 + tl.minimum(tl.arange(0, R), limit - 1 - row0)
    place = tl.load(index + row.to(tl.int64) * stride_index).to(tl.int64)
    return tl.minimum(tl.maximum(place, 0), count - 1)


@triton.jit
def rows_of_tile(a, index, row0, limit, count, stride_am, stride_index, R: tl.constexpr):
    """(corner, rows) of the rows row0 to row0 + R - 1 of a group, or of those that the index names.

    rows [R] count from the corner, as `load_row_block` takes them.
    """
    if index is None:
        corner = a + row0.to(tl.int64) * stride_am
        rows = tl.minimum(tl.arange(0, R), limit - 1 - row0)
    else:
        corner = a + tl.cast(0, tl.int64)
        rows = place_rows(index, row0, limit, count, stride_index, R)
    return corner, rows


@triton.jit
def sum_product(
    a_corner, rows, b_corner, read, K, cols_left, stride_am, stride_ak, stride_bk, stride_bn, R: tl.constexpr,
    C: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr, MASK_C: tl.constexpr, MASK_K: tl.constexpr,
    WIDE: tl.constexpr
):  # fmt: skip
    """The [R, C] tile of A B, float32, k ascending in steps of BLOCK_K; zeros where nothing is to be `read`."""
    acc = tl.zeros((R, C), dtype=tl.float32)
    for k_block in range(tl.where(read, tl.cdiv(K, BLOCK_K), 0)):
        k_left = K - k_block * BLOCK_K
        a_block = load_row_block(a_corner, rows, k_left, stride_am, stride_ak, BLOCK_K, MASK_K, WIDE, R)
        b_block = load_block(b_corner, 0, k_left, cols_left, stride_bk, stride_bn, BLOCK_K, C, MASK_K, MASK_C, WIDE)
        a_corner += BLOCK_K * tl.cast(stride_ak, tl.int64)
        b_corner += BLOCK_K * tl.cast(stride_bk, tl.int64)
        if UPCAST:
            a_block = a_block.to(tl.float32)
            b_block = b_block.to(tl.float32)
        acc = tl.dot(a_block, b_block, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["S", "A_ROWS", "C_ROWS"])
def grouped_gemm_kernel(
    a, b, c, bias, lens, offs, a_idx, out_idx, counter, G, S, A_ROWS, C_ROWS, N, K,
    stride_am, stride_ak, stride_bg, stride_bk, stride_bn, stride_cm, stride_cn, stride_bias_g, stride_bias_n,
    stride_lens, stride_offs, stride_a_idx, stride_out_idx,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_G: tl.constexpr, GROUP_M: tl.constexpr,
    XCDS: tl.constexpr, UPCAST: tl.constexpr, EDGE_N: tl.constexpr, MASK_N: tl.constexpr, MASK_K: tl.constexpr,
    WIDE: tl.constexpr, SUBTILE: tl.constexpr
):  # fmt: skip
    """C[r] = A[r] B[g] (+ bias[g]) for the rows r of group g, zeros for rows of no group.

        C[out_idx[s], n] = round(sum_k A[a_idx[s], k] * B[g, k, n]  + bias[g, n])        s a row of group g

    a        [A_ROWS, K]  fp16, bf16 or fp32; any strides, in elements.
    b        [G, K, N]    likewise.
    c        [C_ROWS, N]  fp16, bf16 or fp32; any strides. Without out_idx C_ROWS is S, and zeros are written here; with
                          it C is zeros before.
    bias     [G, N]       any of the three dtypes, any strides; or None.
    lens     [G], offs [G+1] or None: int32 or int64, which rows are whose.
    a_idx    [S], out_idx [S]: int32 or int64, or None: s itself. Places outside of A are cut off, outside of C dropped.
    counter  [1]          int32, zero at the start: programs take their tiles from it; or None: a stride apart.

    Accumulation: float32, k ascending in steps of BLOCK_K; the bias is added in float32; one rounding. Operands of two
    dtypes (UPCAST) and float32 ones are multiplied as float32, never tf32 or xf32.
    Rows of no group are not read; past K zeros are read from both operands, so a NaN beyond never meets a number.
    Deterministic: one program writes an element, in one order of k, whoever takes the tile; no float atomics.
    No row count is compiled in. MASK_N: N is less than a block. MASK_K: K is no
    multiple of it; 2: nor of 16. WIDE: see `load_block`.
    Launch: a one-dimensional grid of any size from 1 up. Source: written for this library.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    first, size, following = load_groups(lens, offs, G, S, stride_lens, stride_offs, BLOCK_G)
    head, ends = number_tiles(first, size, following, G, S, tiles_n, BLOCK_M, BLOCK_G, out_idx is None)
    num_tiles = count_tiles(head, ends)

    tile = tl.program_id(0)
    while tile < num_tiles:
        number = tile
        if counter is None:
            number = tile_of_program(tile, num_tiles, XCDS)
        group, row0, limit, tile_n, owned = find_tile(number, head, ends, first, size, G, S, tiles_n, BLOCK_M, GROUP_M)
        col0, low_n = edge_block(tile_n, N, BLOCK_N, MASK_N)
        a_corner, rows = rows_of_tile(a, a_idx, row0, limit, A_ROWS, stride_am, stride_a_idx, BLOCK_M)
        b_corner = b + group.to(tl.int64) * stride_bg + col0.to(tl.int64) * stride_bn
        acc = sum_product(
            a_corner, rows, b_corner, owned & (A_ROWS > 0), K, N - col0, stride_am, stride_ak, stride_bk, stride_bn,
            BLOCK_M, BLOCK_N, BLOCK_K, UPCAST, MASK_N, MASK_K, WIDE
        )  # fmt: skip
        if bias is not None:
            group_bias = bias + group.to(tl.int64) * stride_bias_g
            acc = add_bias(acc, group_bias, col0, tl.where(owned, N, 0), stride_bias_n, BLOCK_N)
        store_rows(
            acc, c, out_idx, row0, 0, limit, col0, low_n, C_ROWS, N, stride_cm, stride_cn, stride_out_idx, BLOCK_M,
            BLOCK_N, SUBTILE, False, EDGE_N
        )  # fmt: skip
        tile = next_tile(tile, counter)
