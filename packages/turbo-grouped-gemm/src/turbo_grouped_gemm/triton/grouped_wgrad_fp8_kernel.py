# SPDX-License-Identifier: MIT
"""The Triton kernels of grouped FP8 and MX wgrad: C[g] = X_g Y_g^T, contracted over the columns of padded group g.

The main loops are those of turbo-gemm's kernels. A tile of C belongs to one group, so the tiles are known on the host;
how long a tile's sum is, the device alone knows. Groups are taken in the order of `long_first`.

    x, y        [X, P], [Y, P]   payloads; strides (stride_x, 1), (stride_y, 1). DESC_AB: descriptors of both
    c           [G, X, Y]        fp16, bf16 or fp32; any strides
    offs        [G+1]            int64; group g has the columns offs[g] to offs[g+1] - 1, multiples of 128, zeros behind
                                 the rows of the group; what points outside of [0, P] is cut off
    counter     [1]              int32, zero at the start: programs take their tiles from it; or None: a stride apart

An empty group: zeros, or with ACCUMULATE what was there. Sums are float32, k ascending; one rounding. Deterministic:
one program writes an element, whichever it is. EDGES: the blocks do not divide X and Y.
Source: written for this library.
"""

import triton
import triton.language as tl

from turbo_gemm.developer import (
    grouped_order,
    load_scales,
    store_tile,
    sum_fp8,
    sum_fp8_blocks,
    sum_mx,
    tile_of_program,
)
from turbo_grouped_gemm.triton.grouped_wgrad_kernel import long_first
from turbo_grouped_gemm.triton.groups_kernel import next_tile, pick

__all__ = ["grouped_wgrad_fp8_block_kernel", "grouped_wgrad_fp8_kernel", "grouped_wgrad_mx_kernel"]

PADDING: tl.constexpr = tl.constexpr(128)  # of the groups in x and y


@triton.jit
def padded_groups(offs, stride_offs, G, P, BLOCK_G: tl.constexpr):
    """(first, size) of the padded groups, counted in PADDING columns: int32 [BLOCK_G]."""
    group = tl.arange(0, BLOCK_G)
    last = tl.cast(P, tl.int64)
    begin = tl.load(offs + group * stride_offs, mask=group < G, other=0).to(tl.int64)
    end = tl.load(offs + (group + 1) * stride_offs, mask=group < G, other=0).to(tl.int64)
    first = (tl.minimum(tl.maximum(begin, 0), last) // PADDING).to(tl.int32)
    following = (tl.minimum(tl.maximum(end, 0), last) // PADDING).to(tl.int32)
    return first, tl.maximum(following - first, 0)


@triton.jit
def find_tile(
    tile, first, size, places, G, tiles_x, tiles_y, counter, BLOCK_G: tl.constexpr, GROUP_M: tl.constexpr,
    XCDS: tl.constexpr
):  # fmt: skip
    """(group, row, column) of tile number `tile` of the launch; the group's first column, and how many it has."""
    tiles_of_group = tiles_x * tiles_y
    if counter is None:
        tile = tile_of_program(tile, G * tiles_of_group, XCDS)
    group = tl.sum(tl.where(places == tile // tiles_of_group, tl.arange(0, BLOCK_G), 0), 0)
    tile_x, tile_y = grouped_order(tile % tiles_of_group, tiles_x, tiles_y, GROUP_M)
    return group, tile_x, tile_y, pick(first, group) * PADDING, pick(size, group) * PADDING


@triton.jit
def store_group(
    acc, c, tile, g, columns, row0, col0, X, Y, stride_cg, stride_cx, stride_cy, R: tl.constexpr, C: tl.constexpr,
    SUBTILE: tl.constexpr, ACCUMULATE: tl.constexpr, EDGES: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Add the old C[g], round once, store; an empty group's old C stays as it is, to the bit."""
    zero = (tile // 1073741824) * 16  # always 0, unknown to the compiler: see turbo-gemm's gemm_kernel
    c += g.to(tl.int64) * stride_cg
    if columns >= ACCUMULATE:
        store_tile(
            acc, c, None, zero, row0, col0, X, Y, stride_cx, stride_cy, 1, R, C, SUBTILE, ACCUMULATE, False, EDGES, WIDE
        )


@triton.jit(do_not_specialize=["P"])
def grouped_wgrad_fp8_kernel(
    x, y, c, x_scale, y_scale, offs, counter, G, X, Y, P, stride_x, stride_y, stride_offs, stride_cg, stride_cx,
    stride_cy, stride_xsg, stride_xsx, stride_ysg, stride_ysy,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_G: tl.constexpr, GROUP_M: tl.constexpr,
    XCDS: tl.constexpr, PROMOTE: tl.constexpr, DESC_AB: tl.constexpr, ACCUMULATE: tl.constexpr, EDGES: tl.constexpr,
    WIDE: tl.constexpr, SUBTILE: tl.constexpr
):  # fmt: skip
    """C[g, i, j] = round(sum_k x[i, k] y[j, k] * x_scale[g, i] * y_scale[g, j]  + (C[g, i, j] if ACCUMULATE))

    x_scale, y_scale  [G, X], [G, Y]  float32 multipliers, any strides; strides of 0: one scale for the tensor
    """
    tiles_x = tl.cdiv(X, BLOCK_M)
    tiles_y = tl.cdiv(Y, BLOCK_N)
    num_tiles = G * tiles_x * tiles_y
    first, size = padded_groups(offs, stride_offs, G, P, BLOCK_G)
    places = long_first(size, G, BLOCK_G)
    tile = tl.program_id(0)
    while tile < num_tiles:
        g, tile_x, tile_y, begin, columns = find_tile(
            tile, first, size, places, G, tiles_x, tiles_y, counter, BLOCK_G, GROUP_M, XCDS
        )
        row0 = tile_x * BLOCK_M
        col0 = tile_y * BLOCK_N
        acc = sum_fp8(
            x, y, row0, col0, X, Y, begin, columns, stride_x, stride_y, BLOCK_M, BLOCK_N, BLOCK_K, PROMOTE, DESC_AB,
            EDGES, EDGES, False, WIDE
        )  # fmt: skip
        x_scales = load_scales(x_scale + g.to(tl.int64) * stride_xsg, row0, X, stride_xsx, BLOCK_M, 1, EDGES)
        y_scales = load_scales(y_scale + g.to(tl.int64) * stride_ysg, col0, Y, stride_ysy, BLOCK_N, 1, EDGES)
        acc *= tl.where(columns > 0, x_scales, 0.0)[:, None]  # an empty group is zeros, whatever its scales
        acc *= tl.where(columns > 0, y_scales, 0.0)[None, :]
        store_group(
            acc, c, tile, g, columns, row0, col0, X, Y, stride_cg, stride_cx, stride_cy, BLOCK_M, BLOCK_N, SUBTILE,
            ACCUMULATE, EDGES, WIDE
        )  # fmt: skip
        tile = next_tile(tile, counter)


@triton.jit(do_not_specialize=["P"])
def grouped_wgrad_fp8_block_kernel(
    x, y, c, x_scale, y_scale, offs, counter, G, X, Y, P, stride_x, stride_y, stride_offs, stride_cg, stride_cx,
    stride_cy, stride_xsx, stride_xsk, stride_ysy, stride_ysk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_G: tl.constexpr, GROUP_M: tl.constexpr,
    XCDS: tl.constexpr, SCALE_K: tl.constexpr, DESC_AB: tl.constexpr, ACCUMULATE: tl.constexpr, EDGES: tl.constexpr,
    WIDE: tl.constexpr, SUBTILE: tl.constexpr, HALVES: tl.constexpr
):  # fmt: skip
    """C[g, i, j] = round(sum_b x_scale[i, b] y_scale[j, b] * (sum_{k in b} x[i, k] y[j, k])  + ...)

    b: blocks of SCALE_K columns

    x_scale, y_scale  [X, P / SCALE_K], [Y, P / SCALE_K]  float32 multipliers, any strides
    """
    tiles_x = tl.cdiv(X, BLOCK_M)
    tiles_y = tl.cdiv(Y, BLOCK_N)
    num_tiles = G * tiles_x * tiles_y
    first, size = padded_groups(offs, stride_offs, G, P, BLOCK_G)
    places = long_first(size, G, BLOCK_G)
    R: tl.constexpr = BLOCK_M // HALVES
    tile = tl.program_id(0)
    while tile < num_tiles:
        g, tile_x, tile_y, begin, columns = find_tile(
            tile, first, size, places, G, tiles_x, tiles_y, counter, BLOCK_G, GROUP_M, XCDS
        )
        row0 = tile_x * BLOCK_M
        col0 = tile_y * BLOCK_N
        block = (begin // SCALE_K).to(tl.int64)
        acc, lower = sum_fp8_blocks(
            x, y, x_scale + block * stride_xsk, y_scale + block * stride_ysk, row0, col0, X, Y, begin, columns,
            tile // 1073741824, stride_x, stride_y, stride_xsx, stride_xsk, stride_ysy, stride_ysk, BLOCK_M, BLOCK_N,
            BLOCK_K, 1, 1, SCALE_K, DESC_AB, EDGES, EDGES, False, WIDE, HALVES
        )  # fmt: skip
        store_group(
            acc, c, tile, g, columns, row0, col0, X, Y, stride_cg, stride_cx, stride_cy, R, BLOCK_N, SUBTILE,
            ACCUMULATE, EDGES, WIDE
        )  # fmt: skip
        if HALVES == 2:
            store_group(
                lower, c, tile, g, columns, row0 + R, col0, X, Y, stride_cg, stride_cx, stride_cy, R, BLOCK_N, SUBTILE,
                ACCUMULATE, EDGES, WIDE
            )  # fmt: skip
        tile = next_tile(tile, counter)


@triton.jit(do_not_specialize=["P"])
def grouped_wgrad_mx_kernel(
    x, y, c, x_scale, y_scale, offs, counter, G, X, Y, P, stride_x, stride_y, stride_offs, stride_cg, stride_cx,
    stride_cy, stride_xs, stride_ys,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_G: tl.constexpr, GROUP_M: tl.constexpr,
    XCDS: tl.constexpr, FORMAT_X: tl.constexpr, FORMAT_Y: tl.constexpr, ACCUMULATE: tl.constexpr, EDGES: tl.constexpr,
    WIDE: tl.constexpr, SUBTILE: tl.constexpr
):  # fmt: skip
    """C[g, i, j] = round(sum_k x[i, k] 2^(x_scale[i, k // 32] - 127) y[j, k] 2^(y_scale[j, k // 32] - 127)  + ...)

    x, y              bytes of e4m3 or e5m2, or of two e2m1, the first low
    x_scale, y_scale  [X, P / 32], [Y, P / 32]  E8M0 bytes; strides (stride, 1), multiples of 4

    BLOCK_K divides 128. P counts elements, not bytes.
    """
    PACKED_X: tl.constexpr = 2 if FORMAT_X == "e2m1" else 1
    PACKED_Y: tl.constexpr = 2 if FORMAT_Y == "e2m1" else 1
    stride_xs = tl.multiple_of(stride_xs, 4)
    stride_ys = tl.multiple_of(stride_ys, 4)
    tiles_x = tl.cdiv(X, BLOCK_M)
    tiles_y = tl.cdiv(Y, BLOCK_N)
    num_tiles = G * tiles_x * tiles_y
    first, size = padded_groups(offs, stride_offs, G, P, BLOCK_G)
    places = long_first(size, G, BLOCK_G)
    tile = tl.program_id(0)
    while tile < num_tiles:
        g, tile_x, tile_y, begin, columns = find_tile(
            tile, first, size, places, G, tiles_x, tiles_y, counter, BLOCK_G, GROUP_M, XCDS
        )
        row0 = tile_x * BLOCK_M
        col0 = tile_y * BLOCK_N
        acc = sum_mx(
            x + begin // PACKED_X, y + begin // PACKED_Y, x_scale + begin // 32, y_scale + begin // 32, row0, col0, X,
            Y, columns, stride_x, stride_y, stride_xs, stride_ys, BLOCK_M, BLOCK_N, BLOCK_K, FORMAT_X, FORMAT_Y,
            EDGES, EDGES, WIDE
        )  # fmt: skip
        store_group(
            acc, c, tile, g, columns, row0, col0, X, Y, stride_cg, stride_cx, stride_cy, BLOCK_M, BLOCK_N, SUBTILE,
            ACCUMULATE, EDGES, WIDE
        )  # fmt: skip
        tile = next_tile(tile, counter)
