# SPDX-License-Identifier: MIT
"""Device code of FP8 quantisation of blocks in both directions at once, or of columns of groups: one launch.

    amax = max |x| of a block     scale = largest / max(amax, floor)     q = round(x scale)     scale_inv = 1 / scale

Tensors: x [B,R,C] with any strides; row and col payloads uint8 (the bits of the format) [B,R,C] and [B,rows_out,C]
contiguous; scale_inv float32: of rows [B,R,blocks_c], of columns [B,blocks_r,C], contiguous. All arithmetic is float32,
each step rounds once, and a maximum has no order: bit-equal from run to run and on all targets.

A program has the rows of one block of columns and walks them twice, S rows at a time: first it writes the row copy and
finds the columns' maxima, then it writes the column copy. The second time x comes from the caches, which costs less
than to hold the tile: few registers, so many programs, and few masks.

Grouped (offs_ptr given, B = 1): rows belong to groups, and the column copy has each group's rows rounded up to the
block size. Programs go by blocks of that copy. Those past the last group write zeros there, and take the rows that
belong to no group into the row copy.

A block that holds NaN or an infinity: payload zeros, scale_inv NaN.
"""

import triton
import triton.language as tl

from turbo_quant.triton.groups import group_rows
from turbo_quant.triton.rounding import (
    INFINITE,
    encode,
    float_scale,
    largest_magnitude,
    own_magnitude,
    widened_magnitude,
)

__all__ = ["dual_kernel"]


@triton.jit
def _load(pointers, ok, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(pointers, mask=ok, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def dual_kernel(
    x_ptr, row_ptr, row_scale_ptr, col_ptr, col_scale_ptr, offs_ptr, padded_ptr,
    R, C, tiles_r, tiles_c, blocks_c, rows_out, size, stride_b, stride_r, stride_c, n_groups, largest, floor,
    ROW: tl.constexpr, GROUPS: tl.constexpr, P: tl.constexpr, EXACT: tl.constexpr, S: tl.constexpr,
    BLOCK_C: tl.constexpr, MASKED: tl.constexpr, WIDE: tl.constexpr,
    MANTISSA: tl.constexpr, LOWEST: tl.constexpr, FNUZ: tl.constexpr, NATIVE: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """``size`` rows, and along them N = BLOCK_C // P blocks (BLOCK_C columns unless ROW), as [S, N, P]; S divides P.

    P: least power of two from ``size`` on, EXACT where they are equal. tiles_r: blocks of columns. rows_out: rows of
    the column copy (R, or the padded ones of groups). WIDE: 64-bit offsets within S rows. QUICK: `float_scale`.
    """
    N: tl.constexpr = BLOCK_C // P if ROW else 1
    program = tl.program_id(0)
    tile_c = program % tiles_c
    tile_r = program // tiles_c % tiles_r
    b = (program // tiles_c // tiles_r).to(tl.int64)
    first_r = tile_r.to(tl.int64) * size
    n = tl.arange(0, N)[None, :, None]
    j = tl.arange(0, BLOCK_C // N)[None, None, :]
    i = tl.arange(0, S)[:, None, None]
    block_c = tile_c.to(tl.int64) * N
    if EXACT or not ROW:
        first_c = tile_c.to(tl.int64) * BLOCK_C
        at_c = n * (BLOCK_C // N) + j
        ok_c = at_c < tl.minimum(C - first_c, BLOCK_C).to(tl.int32)
    else:
        first_c = block_c * size
        at_c = n * size + j
        ok_c = (j < size) & (at_c < tl.minimum(C - first_c, N * size).to(tl.int32))
    if GROUPS > 0:
        _, source_r, left_r, left_group = group_rows(first_r, offs_ptr, None, padded_ptr, n_groups, R, GROUPS)
    else:
        source_r = first_r
        left_r = R - first_r
        left_group = left_r
    rows_x = tl.maximum(tl.minimum(left_r, size), 0).to(tl.int32)
    rows_group = tl.maximum(tl.minimum(left_group, size), 0).to(tl.int32)
    rows_col = tl.minimum(rows_out - first_r, size).to(tl.int32)
    left_blocks = tl.minimum(blocks_c - block_c, N).to(tl.int32)
    if WIDE:
        at_i, at_c = i.to(tl.int64), at_c.to(tl.int64)
    else:
        at_i = i
    at = at_i * stride_r + at_c * stride_c
    out_at = at_i * C + at_c
    source = x_ptr + (b * stride_b + source_r * stride_r + first_c * stride_c)
    col_ptr += (b * rows_out + first_r) * C + first_c
    if ROW:
        row_ptr += (b * R + source_r) * C + first_c
        row_scale_ptr += (b * R + source_r) * blocks_c + block_c

    acc = own_magnitude(tl.zeros([S, N, BLOCK_C // N], x_ptr.dtype.element_ty))
    for s in range(0, P, S):
        start = tl.full([], s, tl.int64)
        ok_r = i < rows_x - s
        x = _load(source + start * stride_r + at, ok_r & ok_c, MASKED)
        if GROUPS > 0:
            acc = tl.maximum(acc, own_magnitude(tl.where(i < rows_group - s, x, 0.0)))
        else:
            acc = tl.maximum(acc, own_magnitude(x))
        if ROW:
            amax = largest_magnitude(x, 2)
            scale, inverse = float_scale(amax, largest, floor, QUICK)
            q = encode(x.to(tl.float32) * scale, MANTISSA, LOWEST, FNUZ, NATIVE)
            finite, infinite = amax < INFINITE, amax >= INFINITE
            if MASKED:
                finite, infinite = finite & (ok_r & ok_c), infinite & (ok_r & ok_c)
            row_at = row_ptr + start * C + out_at
            tl.store(row_at, q, mask=finite)
            tl.store(row_at, tl.zeros_like(q), mask=infinite)
            row_scale_at = row_scale_ptr + start * blocks_c + (at_i * blocks_c + n)
            if MASKED:
                tl.store(row_scale_at, inverse, mask=ok_r & (n < left_blocks))
            else:
                tl.store(row_scale_at, inverse)

    amax = widened_magnitude(tl.max(acc, 0, keep_dims=True), x_ptr.dtype.element_ty)
    scale, inverse = float_scale(amax, largest, floor, QUICK)
    any_infinite = tl.max(amax) >= INFINITE
    if GROUPS > 0:
        inverse = tl.where(tl.load(padded_ptr + n_groups) > first_r, inverse, 0.0)
    col_scale_at = col_scale_ptr + (b * tiles_r + tile_r) * C + first_c + at_c
    if MASKED:
        tl.store(col_scale_at, inverse, mask=ok_c)
    else:
        tl.store(col_scale_at, inverse)
    for s in range(0, P, S):
        start = tl.full([], s, tl.int64)
        x = _load(source + start * stride_r + at, (i < rows_group - s) & ok_c, MASKED)
        q = encode(x.to(tl.float32) * scale, MANTISSA, LOWEST, FNUZ, NATIVE)
        col_at = col_ptr + start * C + out_at
        infinite = (amax >= INFINITE) & (i >= 0)
        if MASKED:
            ok = (i < rows_col - s) & ok_c
            infinite = infinite & ok
            tl.store(col_at, q, mask=ok)
        else:
            tl.store(col_at, q)
        if any_infinite:  # rarely; a choice per element would cost all
            tl.debug_barrier()
            tl.store(col_at, tl.zeros_like(q), mask=infinite)
