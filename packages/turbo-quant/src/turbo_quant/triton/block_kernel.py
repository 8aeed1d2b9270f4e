# SPDX-License-Identifier: MIT
"""Device code of FP8 quantisation where a program holds whole blocks in registers: one read of x, one launch.

    amax = max |x| of a block     scale = largest / max(amax, floor)     q = round(x scale)     scale_inv = 1 / scale

Tensors: x [B,R,C] with any strides; out uint8 (the bits of the format) [B,R,C] contiguous; scale_inv float32: of rows
[B,R,blocks_c], of columns [B,blocks_r,C], of tiles [B,blocks_r,blocks_c], contiguous, to multiply with when
dequantising. All arithmetic is float32, each step rounds once, and a maximum has no order: bit-equal from run
to run and on all targets.

A block that holds NaN or an infinity: payload zeros, scale_inv NaN.
"""

import triton
import triton.language as tl

from turbo_quant.triton.rounding import INFINITE, encode, float_scale, magnitude

__all__ = ["block_kernel", "places"]


@triton.jit
def places(size, P: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    """BLOCK places of BLOCK // P neighbouring blocks of ``size`` <= P elements: which element each is, and if it is."""
    i = tl.arange(0, BLOCK)
    if EXACT:  # size == P
        return i, i >= 0
    elif P == BLOCK:
        return i, i < size
    else:
        return i // P * size + i % P, i % P < size


@triton.jit
def load_tile(pointers, ok, MASKED: tl.constexpr):
    """A float32 tile, zeros outside ``ok``."""
    if MASKED:
        return tl.load(pointers, mask=ok, other=0.0).to(tl.float32)
    else:
        return tl.load(pointers).to(tl.float32)


@triton.jit
def _store(pointer, offsets, value, mask, MASKED: tl.constexpr):
    if MASKED:
        tl.store(pointer + offsets, value, mask=mask)
    else:
        tl.store(pointer + offsets, value)


@triton.jit
def block_kernel(
    x_ptr, out_ptr, scale_ptr,
    R, C, tiles_r, tiles_c, blocks_r, blocks_c, size, stride_b, stride_r, stride_c, largest, floor,
    ROW: tl.constexpr, COLUMN: tl.constexpr, TILE: tl.constexpr,
    P: tl.constexpr, EXACT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    MASK_R: tl.constexpr, MASK_C: tl.constexpr, WIDE: tl.constexpr,
    MANTISSA: tl.constexpr, LOWEST: tl.constexpr, FNUZ: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """BLOCK_R x BLOCK_C places: BLOCK_C // P blocks along rows (ROW, TILE), BLOCK_R // P along columns (COLUMN, TILE).

    P: least power of two from ``size`` on, EXACT where they are equal. A direction without blocks is cut anywhere.
    Exactly one of ROW, COLUMN and TILE. WIDE: 64-bit offsets within a tile.
    """
    MASKED: tl.constexpr = MASK_R or MASK_C
    program = tl.program_id(0)
    tile_c = program % tiles_c
    tile_r = program // tiles_c % tiles_r
    b = (program // tiles_c // tiles_r).to(tl.int64)
    if COLUMN or TILE:
        at_r, in_block_r = places(size, P, BLOCK_R, EXACT)
        block_r = tile_r.to(tl.int64) * (BLOCK_R // P)
        first_r = block_r * size
    else:
        at_r, in_block_r = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_R) >= 0
        block_r = tile_r.to(tl.int64)
        first_r = block_r * BLOCK_R
    if ROW or TILE:
        at_c, in_block_c = places(size, P, BLOCK_C, EXACT)
        block_c = tile_c.to(tl.int64) * (BLOCK_C // P)
        first_c = block_c * size
    else:
        at_c, in_block_c = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_C) >= 0
        block_c = tile_c.to(tl.int64)
        first_c = block_c * BLOCK_C
    ok_r = (in_block_r & (at_r < R - first_r))[:, None]
    ok_c = (in_block_c & (at_c < C - first_c))[None, :]
    ok = ok_r & ok_c
    if WIDE:
        at_r, at_c = at_r.to(tl.int64), at_c.to(tl.int64)
    at = (at_r * stride_r)[:, None] + (at_c * stride_c)[None, :]
    x_ptr += b * stride_b + first_r * stride_r + first_c * stride_c
    x = load_tile(x_ptr + at, ok, MASKED)
    out_ptr += (b * R + first_r) * C + first_c
    out_at = (at_r * C)[:, None] + at_c[None, :]

    if TILE:
        NR: tl.constexpr = BLOCK_R // P
        NC: tl.constexpr = BLOCK_C // P
        parts = tl.reshape(x, [NR, P, NC, P])
        amax = tl.max(tl.max(magnitude(parts), 3), 1)
        scale, inverse = float_scale(amax, largest, floor, False)
        q = encode(
            tl.where((amax < INFINITE)[:, None, :, None], parts * scale[:, None, :, None], 0.0),
            MANTISSA,
            LOWEST,
            FNUZ,
            NATIVE,
        )
        _store(out_ptr, out_at, tl.reshape(q, [BLOCK_R, BLOCK_C]), ok, MASKED)
        scale_r, scale_c = block_r + tl.arange(0, NR), block_c + tl.arange(0, NC)
        scale_at = ((b * blocks_r + scale_r) * blocks_c)[:, None] + scale_c[None, :]
        tl.store(scale_ptr + scale_at, inverse, mask=(scale_r < blocks_r)[:, None] & (scale_c < blocks_c)[None, :])
    if ROW:
        N: tl.constexpr = BLOCK_C // P
        parts = tl.reshape(x, [BLOCK_R, N, P])
        amax = tl.max(magnitude(parts), 2)
        scale, inverse = float_scale(amax, largest, floor, False)
        q = encode(
            tl.where((amax < INFINITE)[:, :, None], parts * scale[:, :, None], 0.0), MANTISSA, LOWEST, FNUZ, NATIVE
        )
        _store(out_ptr, out_at, tl.reshape(q, [BLOCK_R, BLOCK_C]), ok, MASKED)
        scale_c = block_c + tl.arange(0, N)
        scale_at = ((b * R + first_r + at_r) * blocks_c)[:, None] + scale_c[None, :]
        tl.store(scale_ptr + scale_at, inverse, mask=ok_r & (scale_c < blocks_c)[None, :])
    if COLUMN:
        M: tl.constexpr = BLOCK_R // P
        parts = tl.reshape(x, [M, P, BLOCK_C])
        amax = tl.max(magnitude(parts), 1)
        scale, inverse = float_scale(amax, largest, floor, False)
        q = encode(
            tl.where((amax < INFINITE)[:, None, :], parts * scale[:, None, :], 0.0), MANTISSA, LOWEST, FNUZ, NATIVE
        )
        _store(out_ptr, out_at, tl.reshape(q, [BLOCK_R, BLOCK_C]), ok, MASKED)
        scale_r = block_r + tl.arange(0, M)
        scale_at = ((b * blocks_r + scale_r) * C + first_c)[:, None] + at_c[None, :]
        tl.store(scale_ptr + scale_at, inverse, mask=(scale_r < blocks_r)[:, None] & ok_c)
