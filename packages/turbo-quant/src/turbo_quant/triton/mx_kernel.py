# SPDX-License-Identifier: MIT
"""Device code of MX quantisation: blocks of 32 with E8M0 scales, row copy, transposed column copy, or both at once.

    bits = bits of amax + half an ulp     byte = clamp((bits >> 23) - E_max, 0, 254)     q = round(x 2^(127 - byte))

Tensors: x [B,R,C] with any strides; payloads uint8: row [B,R,Cp], column [B,C,Rp] (e2m1: half as many bytes, the first
value in the low nibble), Cp and Rp rounded up to 128 and filled with zeros; scales uint8 [B,R,Cp/32], [B,C,Rp/32], or
shuffled [B, lines up to 256, scales up to 8] (the launch zeroes what pads them). Arithmetic is float32 and
each step rounds once; a maximum has no order: bit-equal on all targets. Random words: Philox4x32-10, one counter for
four neighbours.

A program reads one tile of x once, as [N, P, M, K, 32]: M x N blocks of 32 x 32 elements, each of P stripes of K rows.
Triton gives the lanes neighbours along the last dimension, then N, P and M, so that each lane holds the K rows of a
stripe: it reads whole sectors, and finds most of a column's maximum by itself. For the column copy the same values are
seen as [1, 32 N, M, 1, 32]; only finished bytes change lanes. So a copy is a tensor of five dimensions: the last one
is the block, ``line`` (of the copy) and ``block`` (along a line) have one element where they do not vary.

Options of a copy, or-ed: how `turbo_quant.calls.MxDirection` is told to the kernel. Grouped: programs go by rows of
padded groups (groups.py), which begin at multiples of 128. Programs past the last group write zeros into the column
copy and take the rows past it into the row copy. Where lens_ptr is given, rows that belong to no group are zeros in the
row copy; those between groups are cleared by the last program of the group before. With idx_ptr the groups' rows are
those of x that it names, and there is no row copy. mark_ptr, without groups: uint8 [R], 0 for rows that count as zeros.
A block that holds NaN or an infinity: payload zeros, byte 255; two stores under masks
that exclude each other cost less than a choice per element.

Source: OCP Microscaling Formats v1.0; Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC11).
"""

import triton
import triton.language as tl

from turbo_quant.triton.groups import group_rows, next_group
from turbo_quant.triton.rounding import (
    INFINITE,
    encode,
    encode_pair,
    encode_stochastic,
    exponent_scale,
    largest_magnitude,
    rotate,
)

__all__ = ["OPTIONS", "mx_groups_kernel", "mx_kernel"]

WANTED, TILE, RHT, STOCHASTIC, SHUFFLE_SCALE, SHUFFLE_OUT = (tl.constexpr(1 << i) for i in range(6))
OPTIONS = {
    "tile": TILE.value,
    "rht": RHT.value,
    "stochastic": STOCHASTIC.value,
    "shuffle_scale": SHUFFLE_SCALE.value,
    "shuffle_out": SHUFFLE_OUT.value,
}


@triton.jit
def _words(rng_ptr, first, line, block, line_quads, COLUMN: tl.constexpr):
    """Random words, uint32, of a copy whose first four elements have counter ``first``: [..., 8, 2, 2]."""
    seed = tl.load(rng_ptr)
    offset = tl.load(rng_ptr + 1)
    counter = first + line.to(tl.int64) * line_quads + (block * 8 + tl.arange(0, 8)[None, None, None, None, :])
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    offset_low = (offset & 0xFFFFFFFF).to(tl.uint32)
    offset_high = ((offset >> 32) & 0xFFFFFFFF).to(tl.uint32)
    if COLUMN:
        offset_high ^= 0x80000000
    w0, w1, w2, w3 = tl.philox(seed, low, high, offset_low + low * 0, offset_high + low * 0)
    return tl.join(tl.join(w0, w2), tl.join(w1, w3))


@triton.jit
def _halves(q):
    """The even and the odd elements along the last dimension of five."""
    return tl.split(tl.reshape(q, [q.shape[0], q.shape[1], q.shape[2], q.shape[3], q.shape[4] // 2, 2]))


@triton.jit
def _tile_maximum(amax, COLUMN: tl.constexpr):
    """The maximum over 32 neighbouring lines, for each of them where lines are more than a block's."""
    if COLUMN:
        LINES: tl.constexpr = amax.shape[1]
        M: tl.constexpr = amax.shape[2]
        parts = tl.reshape(amax, [LINES // 32, 32, M])
        return tl.reshape(tl.broadcast_to(tl.max(parts, 1, keep_dims=True), [LINES // 32, 32, M]), [1, LINES, M, 1, 1])
    else:
        return tl.max(tl.max(amax, 3, keep_dims=True), 1, keep_dims=True)


@triton.jit
def _write_copy(
    x, out_ptr, scale_ptr, rng_ptr, b, line0, k0, line, block, lines, width, sign_mask, ok,
    OPTION: tl.constexpr, COLUMN: tl.constexpr, MASKED: tl.constexpr,
    MANTISSA: tl.constexpr, LOWEST: tl.constexpr, E_MAX: tl.constexpr, LARGEST: tl.constexpr, NATIVE: tl.constexpr,
    CLAMP: tl.constexpr,
):  # fmt: skip
    """Quantise x [five dimensions] along the last one; line0, k0: where its lines and their elements begin.

    ok, of ``line``'s shape: which lines there are, if MASKED.
    """
    if RHT & OPTION:
        x = tl.reshape(rotate(tl.reshape(x.to(tl.float32), [x.numel // 32, 32]), sign_mask, True), x.shape)
    amax = largest_magnitude(x, 4)
    if TILE & OPTION:
        amax = _tile_maximum(amax, COLUMN)
    byte, factor = exponent_scale(amax, MANTISSA, E_MAX)
    v = x.to(tl.float32) * factor
    if STOCHASTIC & OPTION:
        first = (b * lines + line0) * (width // 4) + k0 // 4
        word = tl.reshape(_words(rng_ptr, first, line, block, width // 4, COLUMN), x.shape)
        q = encode_stochastic(tl.where(amax < INFINITE, v, 0.0), word, MANTISSA, LOWEST, LARGEST)
        if MANTISSA == 1:
            low, high = _halves(q)
            q = low | (high << 4)
    elif MANTISSA == 1:
        if x.dtype != tl.float32:  # then v has at most 11 digits: float16 holds it, or rounds to zero what e2m1 does
            v = v.to(tl.float16)
        low, high = _halves(v)
        q = encode_pair(low, high)
    else:
        if CLAMP:
            v = tl.minimum(tl.maximum(v, -448.0), 448.0)
        q = encode(v, MANTISSA, LOWEST, False, NATIVE)

    PER_BYTE: tl.constexpr = 2 if MANTISSA == 1 else 1
    line_bytes = width // PER_BYTE
    j = block * (32 // PER_BYTE) + tl.arange(0, 32 // PER_BYTE)[None, None, None, None, :]
    out_ptr += (b * lines + line0) * line_bytes
    if SHUFFLE_OUT & OPTION:
        out_ptr += k0 // PER_BYTE * 16
        out_at = line // 16 * 16 * line_bytes + line % 16 * 16 + (j // 32 * 512 + j % 32 // 16 * 256 + j % 16)
    else:
        out_ptr += k0 // PER_BYTE
        out_at = line * line_bytes + j
    finite, infinite = amax < INFINITE, amax >= INFINITE
    if MASKED:
        finite, infinite = finite & ok, infinite & ok
    tl.store(out_ptr + out_at, q, mask=finite)
    tl.store(out_ptr + out_at, tl.zeros_like(q), mask=infinite)

    if SHUFFLE_SCALE & OPTION:
        line_scales = (width // 32 + 7) // 8 * 8
        scale_ptr += (b * ((lines + 255) // 256 * 256) + line0) * line_scales
        col = k0 // 32 + block
        scale_at = line // 32 * 32 * line_scales + line % 16 * 4 + line % 32 // 16
        scale_at += col // 8 * 256 + col % 4 * 64 + col % 8 // 4 * 2
    else:
        line_scales = width // 32
        scale_ptr += (b * lines + line0) * line_scales + k0 // 32
        scale_at = line * line_scales + block
    if MASKED:
        tl.store(scale_ptr + scale_at, byte.to(tl.uint8), mask=ok)
    else:
        tl.store(scale_ptr + scale_at, byte.to(tl.uint8))


@triton.jit
def _clear_rows(row_ptr, scale_ptr, begin, end, first_c, width, BLOCK_C: tl.constexpr, PER_BYTE: tl.constexpr):
    """Zeros for the columns of a tile of the rows ``begin`` to ``end`` - 1 of the row copy."""
    i = tl.arange(0, 32)[:, None]
    j, block = tl.arange(0, BLOCK_C // PER_BYTE)[None, :], tl.arange(0, BLOCK_C // 32)[None, :]
    for start in range(begin, end, 32):
        row = start + i.to(tl.int64)
        at = row * (width // PER_BYTE) + first_c // PER_BYTE + j
        tl.store(row_ptr + at, tl.zeros([32, BLOCK_C // PER_BYTE], tl.uint8), mask=(row < end) & (j >= 0))
        at = row * (width // 32) + first_c // 32 + block
        tl.store(scale_ptr + at, tl.zeros([32, BLOCK_C // 32], tl.uint8), mask=(row < end) & (block >= 0))


@triton.jit
def mx_kernel(
    x_ptr, row_ptr, row_scale_ptr, col_ptr, col_scale_ptr, rng_ptr, offs_ptr, lens_ptr, padded_ptr, idx_ptr, mark_ptr,
    R, C, tiles_r, tiles_c, row_width, col_width, stride_b, stride_r, stride_c, n_groups, rows, sign_mask,
    ROW: tl.constexpr, COLUMN: tl.constexpr, GROUPS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    P: tl.constexpr, MASK_R: tl.constexpr, MASK_C: tl.constexpr, WIDE: tl.constexpr,
    MANTISSA: tl.constexpr, LOWEST: tl.constexpr, E_MAX: tl.constexpr, LARGEST: tl.constexpr, NATIVE: tl.constexpr,
    CLAMP: tl.constexpr,
):  # fmt: skip
    """One tile of x. ROW, COLUMN: options of each copy, 0 where not wanted. LARGEST: code of the largest value.

    rows: that the groups count.
    """
    M: tl.constexpr = BLOCK_R // 32
    N: tl.constexpr = BLOCK_C // 32
    K: tl.constexpr = 32 // P
    program = tl.program_id(0)
    tile_c = program % tiles_c
    tile_r = program // tiles_c % tiles_r
    b = (program // tiles_c // tiles_r).to(tl.int64)
    first_r = tile_r.to(tl.int64) * BLOCK_R
    first_c = tile_c.to(tl.int64) * BLOCK_C
    if GROUPS > 0:
        _, source_r, left_r, left_group = group_rows(first_r, offs_ptr, lens_ptr, padded_ptr, n_groups, rows, GROUPS)
        if ROW > 0 and lens_ptr is not None:  # at the end of the program it would take more registers
            PER_BYTE: tl.constexpr = 2 if MANTISSA == 1 else 1
            if (left_group > 0) & (first_r == 0):
                _clear_rows(row_ptr, row_scale_ptr, source_r * 0, source_r, first_c, row_width, BLOCK_C, PER_BYTE)
            if (left_group > 0) & (left_group <= BLOCK_R):
                end = source_r + left_group
                begin = next_group(end, offs_ptr, lens_ptr, n_groups, rows, GROUPS)
                _clear_rows(row_ptr, row_scale_ptr, end, begin, first_c, row_width, BLOCK_C, PER_BYTE)
    else:
        source_r = first_r
        left_r = R - first_r
    left_c = C - first_c
    n = tl.arange(0, N)[:, None, None, None, None]
    p = tl.arange(0, P)[None, :, None, None, None]
    m = tl.arange(0, M)[None, None, :, None, None]
    k = tl.arange(0, K)[None, None, None, :, None]
    i = m * 32 + p * K + k
    j = n * 32 + tl.arange(0, 32)[None, None, None, None, :]
    c = tl.arange(0, 32 * N)[None, :, None, None, None]  # j as lines of the column copy
    ok_i = i < left_r
    counts = ok_i
    if GROUPS > 0 and (lens_ptr is not None or idx_ptr is not None):
        counts = i < left_group
    if mark_ptr is not None:
        counts = tl.load(mark_ptr + source_r + i, mask=ok_i, other=0) != 0
    ok_c = c < left_c
    if WIDE:
        n, m, i, j, c = n.to(tl.int64), m.to(tl.int64), i.to(tl.int64), j.to(tl.int64), c.to(tl.int64)
    x_ptr += b * stride_b + first_c * stride_c
    if idx_ptr is None:
        x_ptr += source_r * stride_r
        at = i * stride_r + j * stride_c
    else:
        named = tl.load(idx_ptr + source_r + i, mask=counts, other=-1).to(tl.int64)
        counts = (named >= 0) & (named < R)
        at = named * stride_r + j * stride_c
    if MASK_R or MASK_C:
        x = tl.load(x_ptr + at, mask=counts & (j < left_c), other=0.0)
    else:
        x = tl.load(x_ptr + at)
    if ROW > 0:
        _write_copy(x, row_ptr, row_scale_ptr, rng_ptr, b, source_r, first_c, i, n, R, row_width, sign_mask, ok_i,
                    ROW, False, MASK_R, MANTISSA, LOWEST, E_MAX, LARGEST, NATIVE, CLAMP)  # fmt: skip
    if COLUMN > 0:
        if GROUPS > 0:
            if lens_ptr is None and idx_ptr is None:
                x = tl.where(i < left_group, x, 0.0)
            sign_mask = tl.where(first_r < tl.load(padded_ptr + n_groups), sign_mask, 0)  # no -0 past the last group
        x = tl.reshape(tl.permute(x, (0, 4, 2, 1, 3)), [1, 32 * N, M, 1, 32])
        _write_copy(x, col_ptr, col_scale_ptr, rng_ptr, b, first_c, first_r, c, m, C, col_width, sign_mask, ok_c,
                    COLUMN, True, MASK_C, MANTISSA, LOWEST, E_MAX, LARGEST, NATIVE, CLAMP)  # fmt: skip


# the same, not compiled anew for other numbers of rows (col_width is always a multiple of 128)
mx_groups_kernel = triton.jit(do_not_specialize=("R", "rows", "tiles_r"))(mx_kernel.fn)
