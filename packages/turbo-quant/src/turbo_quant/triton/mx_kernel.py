# SPDX-License-Identifier: MIT
"""Device code of MX quantisation: blocks of 32 with E8M0 scales, row copy, transposed column copy, or both at once.

    bits = bits of amax + half an ulp     byte = clamp((bits >> 23) - E_max, 0, 254)     q = round(x 2^(127 - byte))

Tensors: x [B,R,C] with any strides; payloads uint8: row [B,R,Cp], column [B,C,Rp] (e2m1: half as many bytes, the first
value in the low nibble), Cp and Rp rounded up to 128 and filled with zeros; scales uint8 [B,R,Cp/32], [B,C,Rp/32], or
shuffled [B, lines up to 256, scales up to 8] (what pads them was zeroed before the launch). A program reads one tile of
x once; the column copy is the same code on the transposed tile. Arithmetic is float32 and each step rounds once; a
maximum has no order: bit-equal on all targets. Random words: Philox4x32-10, one counter for four neighbours.

Options of a copy, or-ed: how `turbo_quant.calls.MxDirection` is told to the kernel. Grouped: as in block_kernel.py,
with groups rounded up to 128. A block that holds NaN or an infinity: payload zeros, byte 255.

Source: OCP Microscaling Formats v1.0; Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC11).
"""

import triton
import triton.language as tl

from turbo_quant.triton.block_kernel import group_rows, load_tile
from turbo_quant.triton.rounding import INFINITE, encode, encode_stochastic, exponent_scale, magnitude, rotate

__all__ = ["OPTIONS", "mx_kernel"]

WANTED, TILE, RHT, STOCHASTIC, SHUFFLE_SCALE, SHUFFLE_OUT = (tl.constexpr(1 << i) for i in range(6))
OPTIONS = {
    "tile": TILE.value,
    "rht": RHT.value,
    "stochastic": STOCHASTIC.value,
    "shuffle_scale": SHUFFLE_SCALE.value,
    "shuffle_out": SHUFFLE_OUT.value,
}


@triton.jit
def _words(rng_ptr, first, line_quads, COLUMN: tl.constexpr, L: tl.constexpr, K: tl.constexpr):
    """uint32 [L, K]: the random words of a tile whose first four elements have counter ``first``."""
    seed = tl.load(rng_ptr)
    offset = tl.load(rng_ptr + 1)
    counter = first + (tl.arange(0, L).to(tl.int64) * line_quads)[:, None] + tl.arange(0, K // 4)[None, :]
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    offset_low = (offset & 0xFFFFFFFF).to(tl.uint32)
    offset_high = ((offset >> 32) & 0xFFFFFFFF).to(tl.uint32)
    if COLUMN:
        offset_high ^= 0x80000000
    w0, w1, w2, w3 = tl.philox(seed, low, high, offset_low + low * 0, offset_high + low * 0)
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [L, K])


@triton.jit
def _write_copy(
    x, out_ptr, scale_ptr, rng_ptr, b, line0, k0, lines, width, sign_mask, ok,
    OPTION: tl.constexpr, COLUMN: tl.constexpr, WIDE: tl.constexpr,
    MANTISSA: tl.constexpr, LOWEST: tl.constexpr, E_MAX: tl.constexpr, LARGEST: tl.constexpr, NATIVE: tl.constexpr,
    CLAMP: tl.constexpr,
):  # fmt: skip
    """Quantise x float32 [L, K] along K and write it from line line0 (ok [L, 1]: which) and its element k0 on."""
    L: tl.constexpr = x.shape[0]
    K: tl.constexpr = x.shape[1]
    N: tl.constexpr = K // 32
    if RHT & OPTION:
        x = rotate(x, sign_mask, True)
    parts = tl.reshape(x, [L, N, 32])
    amax = tl.max(magnitude(parts), 2)
    if TILE & OPTION:
        amax = tl.max(tl.reshape(amax, [L // 32, 32, N]), 1, keep_dims=True)
        amax = tl.reshape(tl.broadcast_to(amax, [L // 32, 32, N]), [L, N])
    byte, factor = exponent_scale(amax, MANTISSA, E_MAX)
    v = tl.where((amax < INFINITE)[:, :, None], parts * factor[:, :, None], 0.0)
    if STOCHASTIC & OPTION:
        first = (b * lines + line0) * (width // 4) + k0 // 4
        word = tl.reshape(_words(rng_ptr, first, width // 4, COLUMN, L, K), [L, N, 32])
        q = encode_stochastic(v, word, MANTISSA, LOWEST, LARGEST)
    else:
        if CLAMP:
            v = tl.minimum(tl.maximum(v, -448.0), 448.0)
        q = encode(v, MANTISSA, LOWEST, False, NATIVE)

    i = tl.arange(0, L)
    if WIDE:
        i = i.to(tl.int64)
    if MANTISSA == 1:
        low, high = tl.split(tl.reshape(q, [L, K // 2, 2]))
        q = low | (high << 4)
        BYTES: tl.constexpr = K // 2
        line_bytes = width // 2
        k0_bytes = k0 // 2
    else:
        q = tl.reshape(q, [L, K])
        BYTES: tl.constexpr = K
        line_bytes = width
        k0_bytes = k0
    j = tl.arange(0, BYTES)
    out_ptr += (b * lines + line0) * line_bytes
    if SHUFFLE_OUT & OPTION:
        out_ptr += k0_bytes * 16
        at_i = i // 16 * 16 * line_bytes + i % 16 * 16
        at_j = j // 32 * 512 + j % 32 // 16 * 256 + j % 16
    else:
        out_ptr += k0_bytes
        at_i = i * line_bytes
        at_j = j
    tl.store(out_ptr + at_i[:, None] + at_j[None, :], q, mask=ok)

    n = tl.arange(0, N)
    if SHUFFLE_SCALE & OPTION:
        line_scales = (width // 32 + 7) // 8 * 8
        scale_ptr += (b * ((lines + 255) // 256 * 256) + line0) * line_scales
        col = k0 // 32 + n
        scale_i = i // 32 * 32 * line_scales + i % 16 * 4 + i % 32 // 16
        scale_j = col // 8 * 256 + col % 4 * 64 + col % 8 // 4 * 2
    else:
        line_scales = width // 32
        scale_ptr += (b * lines + line0) * line_scales + k0 // 32
        scale_i = i * line_scales
        scale_j = n
    tl.store(scale_ptr + scale_i[:, None] + scale_j[None, :], byte.to(tl.uint8), mask=ok)


@triton.jit
def mx_kernel(
    x_ptr, row_ptr, row_scale_ptr, col_ptr, col_scale_ptr, rng_ptr, offs_ptr, padded_ptr,
    R, C, tiles_r, tiles_c, row_width, col_width, stride_b, stride_r, stride_c, n_groups, sign_mask,
    ROW: tl.constexpr, COLUMN: tl.constexpr, GROUPS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    MASK_R: tl.constexpr, MASK_C: tl.constexpr, WIDE: tl.constexpr,
    MANTISSA: tl.constexpr, LOWEST: tl.constexpr, E_MAX: tl.constexpr, LARGEST: tl.constexpr, NATIVE: tl.constexpr,
    CLAMP: tl.constexpr,
):  # fmt: skip
    """One tile of x. ROW, COLUMN: options of each copy, 0 where not wanted. LARGEST: code of the largest value."""
    program = tl.program_id(0)
    tile_c = program % tiles_c
    tile_r = program // tiles_c % tiles_r
    b = (program // tiles_c // tiles_r).to(tl.int64)
    first_r = tile_r.to(tl.int64) * BLOCK_R
    first_c = tile_c.to(tl.int64) * BLOCK_C
    if GROUPS > 0:
        source_r, left_r, left_group = group_rows(first_r, offs_ptr, padded_ptr, n_groups, R, GROUPS)
    else:
        source_r = first_r
        left_r = R - first_r
    i, j = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    ok_r = i < left_r
    ok_c = j < C - first_c
    if WIDE:
        i, j = i.to(tl.int64), j.to(tl.int64)
    x_ptr += b * stride_b + source_r * stride_r + first_c * stride_c
    at = (i * stride_r)[:, None] + (j * stride_c)[None, :]
    MASKED: tl.constexpr = MASK_R or MASK_C
    ok = ok_r[:, None] & ok_c[None, :]
    x = load_tile(x_ptr + at, ok, MASKED)
    if ROW > 0:
        _write_copy(x, row_ptr, row_scale_ptr, rng_ptr, b, source_r, first_c, R, row_width, sign_mask, ok_r[:, None],
                    ROW, False, WIDE, MANTISSA, LOWEST, E_MAX, LARGEST, NATIVE, CLAMP)  # fmt: skip
    if COLUMN > 0:
        if GROUPS > 0:
            x = tl.where((i < left_group)[:, None], x, 0.0)
            sign_mask = tl.where(first_r < tl.load(padded_ptr + n_groups), sign_mask, 0)  # no -0 past the last group
        _write_copy(tl.trans(x), col_ptr, col_scale_ptr, rng_ptr, b, first_c, first_r, C, col_width, sign_mask,
                    ok_c[:, None], COLUMN, True, WIDE, MANTISSA, LOWEST, E_MAX, LARGEST, NATIVE, CLAMP)  # fmt: skip
