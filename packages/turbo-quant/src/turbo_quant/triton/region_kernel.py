# SPDX-License-Identifier: MIT
"""Device code of FP8 quantisation where what shares a scale does not fit in one program's registers.

    amax = max |x| of a region     scale = largest / max(amax, floor)     q = round(x scale)     scale_inv = 1 / scale

A region is ``height`` x ``width`` elements: the whole tensor (KIND one, tensorwise), a large tile (one), a strip of
long rows (row) or of long columns (column). Its programs, ``chunks`` of them, walk its tiles in turn. Two launches:
AMAX writes each program's maximum, APPLY takes the maximum of those and quantises, last tile first, since the caches
hold what was read last. Where a region has one program, one launch does both.

Tensors: x [B,R,C] with any strides; out uint8 (the bits of the format) [B,R,C] contiguous; scale_inv float32: one value
a region (one), [B,R,regions_c] (row) or [B,regions_r,C] (column); partial int32 [regions, amax_chunks, 1 | BLOCK_R |
BLOCK_C], bits of |x|. Arithmetic is float32; a maximum has no order: bit-equal on all targets.

A region (of row, column: a row, a column of it) that holds NaN or an infinity: payload zeros, scale_inv NaN.
"""

import triton
import triton.language as tl

from turbo_quant.triton.rounding import INFINITE, encode, float_scale, magnitude

__all__ = ["region_kernel"]


@triton.jit
def _reduce(acc, KIND: tl.constexpr):
    """The maximum of a tile: [1, 1], [rows, 1] or [1, columns]."""
    if KIND == "row":
        return tl.max(acc, 1, keep_dims=True)
    elif KIND == "column":
        return tl.max(acc, 0, keep_dims=True)
    else:
        return tl.max(tl.max(acc, 1, keep_dims=True), 0, keep_dims=True)


@triton.jit
def region_kernel(
    x_ptr, out_ptr, scale_ptr, partial_ptr,
    R, C, regions_r, regions_c, height, width, batches, stride_b, stride_r, stride_c,
    chunks, amax_chunks, largest, floor,
    KIND: tl.constexpr, AMAX: tl.constexpr, APPLY: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    CHUNKS: tl.constexpr, MASK_R: tl.constexpr, MASK_C: tl.constexpr, WIDE: tl.constexpr,
    MANTISSA: tl.constexpr, LOWEST: tl.constexpr, FNUZ: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Program ``chunk`` of ``chunks`` of one region. CHUNKS: a power of two from amax_chunks on.

    batches: B where one region spans all batches, else 1. MASK_R, MASK_C: whether a tile may pass the region's end.
    """
    MASKED: tl.constexpr = MASK_R or MASK_C
    ROWS: tl.constexpr = BLOCK_R if KIND == "row" else 1
    COLS: tl.constexpr = BLOCK_C if KIND == "column" else 1
    chunk = tl.program_id(0) % chunks
    region = (tl.program_id(0) // chunks).to(tl.int64)
    region_c = region % regions_c
    region_r = region // regions_c % regions_r
    b0 = region // regions_c // regions_r
    r0, c0 = region_r * height, region_c * width
    rows = tl.minimum(R - r0, height)
    cols = tl.minimum(C - c0, width)
    tiles_r = tl.cdiv(rows, BLOCK_R).to(tl.int32)
    tiles_c = tl.cdiv(cols, BLOCK_C).to(tl.int32)
    tiles = batches * tiles_r * tiles_c
    i, j = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    if WIDE:
        i, j = i.to(tl.int64), j.to(tl.int64)
    at = (i * stride_r)[:, None] + (j * stride_c)[None, :]

    if AMAX:
        acc = tl.zeros([BLOCK_R, BLOCK_C], tl.int32)
        for tile in range(chunk, tiles, chunks):
            b = b0 + tile // tiles_c // tiles_r
            r = (tile // tiles_c % tiles_r).to(tl.int64) * BLOCK_R
            c = (tile % tiles_c).to(tl.int64) * BLOCK_C
            source = x_ptr + b * stride_b + (r0 + r) * stride_r + (c0 + c) * stride_c
            if MASKED:
                ok = (i < rows - r)[:, None] & (j < cols - c)[None, :]
                x = tl.load(source + at, mask=ok, other=0.0)
            else:
                x = tl.load(source + at)
            acc = tl.maximum(acc, magnitude(x.to(tl.float32)))
        amax = _reduce(acc, KIND)
        if not APPLY:
            lane = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
            tl.store(partial_ptr + (region * chunks + chunk) * (ROWS * COLS) + lane, amax)
    if APPLY:
        if not AMAX:
            which = tl.arange(0, CHUNKS)[:, None]
            lane = tl.arange(0, ROWS * COLS)[None, :]
            parts_at = (region * amax_chunks + which) * (ROWS * COLS) + lane
            amax = tl.max(tl.load(partial_ptr + parts_at, mask=which < amax_chunks, other=0), 0)
            amax = tl.reshape(amax, [ROWS, COLS])
        scale, inverse = float_scale(amax, largest, floor, False)
        if chunk == 0:
            lane_r, lane_c = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
            if KIND == "row":
                scale_at = (b0 * R + r0 + lane_r) * regions_c + region_c
            elif KIND == "column":
                scale_at = (b0 * regions_r + region_r) * C + c0 + lane_c
            else:
                scale_at = region + lane_r
            tl.store(scale_ptr + scale_at + lane_c * 0, inverse, mask=(lane_r < rows) & (lane_c < cols))
        out_at = (i * C)[:, None] + j[None, :]
        for step in range(chunk, tiles, chunks):
            tile = tiles - 1 - step
            b = b0 + tile // tiles_c // tiles_r
            r = (tile // tiles_c % tiles_r).to(tl.int64) * BLOCK_R
            c = (tile % tiles_c).to(tl.int64) * BLOCK_C
            source = x_ptr + b * stride_b + (r0 + r) * stride_r + (c0 + c) * stride_c
            target = out_ptr + (b * R + r0 + r) * C + c0 + c
            ok = (i < rows - r)[:, None] & (j < cols - c)[None, :]
            if MASKED:
                x = tl.load(source + at, mask=ok, other=0.0).to(tl.float32)
            else:
                x = tl.load(source + at).to(tl.float32)
            q = encode(tl.where(amax < INFINITE, x * scale, 0.0), MANTISSA, LOWEST, FNUZ, NATIVE)
            if MASKED:
                tl.store(target + out_at, q, mask=ok)
            else:
                tl.store(target + out_at, q)
