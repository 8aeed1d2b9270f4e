# SPDX-License-Identifier: MIT
"""Device code of dequantisation, FP8 with float32 scales and MX.

    float:  x = q * scale_inv           MX:  x = q * 2^(byte - 127), the rotation undone where there was one

in float32, rounded once to the output's dtype.

Tensors: q uint8 (the bits of the format) [B,R,C] with any strides; scale_inv float32 with any strides, one value for
size_r x size_c elements; out contiguous. MX: q [B,L,Kp] (e2m1: Kp / 2 bytes) and scale uint8 [B,L,Kp/32] with any
strides; out [B,L,size], or [B,size,L] where the source was a column copy.
"""

import triton
import triton.language as tl

from turbo_quant.triton.block_kernel import places
from turbo_quant.triton.rounding import decode, power_of_two, rotate

__all__ = ["dequantize_float_kernel", "dequantize_mx_kernel"]


@triton.jit
def _axis(tile, tiles, size, P: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    """Tile ``tile`` along one axis, cut into blocks of ``size``: first element, first block, places, and which count.

    P <= BLOCK: the tile has BLOCK // P blocks. Else ``tiles`` tiles make one block.
    """
    if P <= BLOCK:
        block = tile.to(tl.int64) * (BLOCK // P)
        first = block * size
        at, ok = places(size, P, BLOCK, EXACT)
    else:
        block = (tile // tiles).to(tl.int64)
        within = (tile % tiles).to(tl.int64) * BLOCK
        first = block * size + within
        at = tl.arange(0, BLOCK)
        ok = at < size - within
    return first, block, at, ok


@triton.jit
def dequantize_float_kernel(
    q_ptr, scale_ptr, out_ptr, R, C, tiles_r, tiles_c, blocks_r, blocks_c, size_r, size_c, parts_r, parts_c,
    stride_b, stride_r, stride_c, scale_b, scale_r, scale_c,
    P_R: tl.constexpr, P_C: tl.constexpr, EXACT_R: tl.constexpr, EXACT_C: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, MASKED: tl.constexpr, WIDE: tl.constexpr,
    MANTISSA: tl.constexpr, LOWEST: tl.constexpr, FNUZ: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """One tile. P_R, P_C: least power of two from size_r, size_c on; EXACT: equal; parts: tiles that make one block."""
    N_R: tl.constexpr = BLOCK_R // P_R if P_R < BLOCK_R else 1
    N_C: tl.constexpr = BLOCK_C // P_C if P_C < BLOCK_C else 1
    program = tl.program_id(0)
    tile_c = program % tiles_c
    tile_r = program // tiles_c % tiles_r
    b = (program // tiles_c // tiles_r).to(tl.int64)
    first_r, block_r, at_r, ok_r = _axis(tile_r, parts_r, size_r, P_R, BLOCK_R, EXACT_R)
    first_c, block_c, at_c, ok_c = _axis(tile_c, parts_c, size_c, P_C, BLOCK_C, EXACT_C)
    ok = (ok_r & (at_r < R - first_r))[:, None] & (ok_c & (at_c < C - first_c))[None, :]
    if WIDE:
        at_r, at_c = at_r.to(tl.int64), at_c.to(tl.int64)
    q_ptr += b * stride_b + first_r * stride_r + first_c * stride_c
    q_at = (at_r * stride_r)[:, None] + (at_c * stride_c)[None, :]
    if MASKED:
        q = tl.load(q_ptr + q_at, mask=ok, other=0)
    else:
        q = tl.load(q_ptr + q_at)
    n_r = block_r + tl.arange(0, N_R)
    n_c = block_c + tl.arange(0, N_C)
    scale_at = (b * scale_b + n_r * scale_r)[:, None] + (n_c * scale_c)[None, :]
    scale = tl.load(scale_ptr + scale_at, mask=(n_r < blocks_r)[:, None] & (n_c < blocks_c)[None, :], other=0.0)
    x = decode(q, MANTISSA, LOWEST, FNUZ, NATIVE)
    x = tl.reshape(x, [N_R, BLOCK_R // N_R, N_C, BLOCK_C // N_C]) * scale[:, None, :, None]
    x = tl.reshape(x, [BLOCK_R, BLOCK_C]).to(out_ptr.dtype.element_ty)
    out_ptr += (b * R + first_r) * C + first_c
    out_at = (at_r * C)[:, None] + at_c[None, :]
    if MASKED:
        tl.store(out_ptr + out_at, x, mask=ok)
    else:
        tl.store(out_ptr + out_at, x)


@triton.jit
def dequantize_mx_kernel(
    q_ptr, scale_ptr, out_ptr, L, size, tiles_l, tiles_k,
    stride_b, stride_l, stride_k, scale_b, scale_l, scale_k, sign_mask,
    RHT: tl.constexpr, TRANSPOSE: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr,
    MASK_L: tl.constexpr, MASK_K: tl.constexpr, WIDE: tl.constexpr,
    MANTISSA: tl.constexpr, LOWEST: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """One tile of BLOCK_L x BLOCK_K values; BLOCK_K divides 128, so that all of it lies within the padded payload."""
    BYTES: tl.constexpr = BLOCK_K // 2 if MANTISSA == 1 else BLOCK_K
    program = tl.program_id(0)
    tile_k = program % tiles_k
    tile_l = program // tiles_k % tiles_l
    b = (program // tiles_k // tiles_l).to(tl.int64)
    first_l = tile_l.to(tl.int64) * BLOCK_L
    first_k = tile_k.to(tl.int64) * BLOCK_K
    i = tl.arange(0, BLOCK_L)
    j = tl.arange(0, BYTES)
    n = tl.arange(0, BLOCK_K // 32)
    k = tl.arange(0, BLOCK_K)
    ok_l = i < L - first_l
    ok_k = k < size - first_k
    if WIDE:
        i, j, n, k = i.to(tl.int64), j.to(tl.int64), n.to(tl.int64), k.to(tl.int64)
    q_ptr += b * stride_b + first_l * stride_l + tile_k.to(tl.int64) * BYTES * stride_k
    scale_ptr += b * scale_b + first_l * scale_l + tile_k.to(tl.int64) * (BLOCK_K // 32) * scale_k
    q_at = (i * stride_l)[:, None] + (j * stride_k)[None, :]
    scale_at = (i * scale_l)[:, None] + (n * scale_k)[None, :]
    if MASK_L:
        q = tl.load(q_ptr + q_at, mask=ok_l[:, None], other=0)
        byte = tl.load(scale_ptr + scale_at, mask=ok_l[:, None], other=0)
    else:
        q = tl.load(q_ptr + q_at)
        byte = tl.load(scale_ptr + scale_at)
    if MANTISSA == 1:
        q = tl.reshape(tl.join(q & 15, q >> 4), [BLOCK_L, BLOCK_K])
    x = tl.reshape(decode(q, MANTISSA, LOWEST, False, NATIVE), [BLOCK_L, BLOCK_K // 32, 32])
    x = tl.reshape(x * power_of_two(byte.to(tl.int32))[:, :, None], [BLOCK_L, BLOCK_K])
    if RHT:
        x = rotate(x, sign_mask, False)
    x = x.to(out_ptr.dtype.element_ty)
    ok = ok_l[:, None] & ok_k[None, :]
    if TRANSPOSE:
        x, ok = tl.trans(x), tl.trans(ok)
        out_ptr += (b * size + first_k) * L + first_l
        out_at = (k * L)[:, None] + i[None, :]
    else:
        out_ptr += (b * L + first_l) * size + first_k
        out_at = (i * size)[:, None] + k[None, :]
    if MASK_L or MASK_K:
        tl.store(out_ptr + out_at, x, mask=ok)
    else:
        tl.store(out_ptr + out_at, x)
