# SPDX-License-Identifier: MIT
"""Quantisation in numpy, from the definitions of the formats: what the backends of turbo-quant must give bit for bit.

Independent of torch's casts and of bit tricks: payloads are searched in tables of the formats' values (float64, ties
to the even code), E8M0 exponents come from frexp, Philox is written on Python's integers. Only where the contract
fixes float32 steps (scale, x * scale, the butterflies of the rotation) are they float32 here too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from turbo_core.number_formats import fp8_formats

Array = Any

FP8 = {
    "float8_e4m3fn": fp8_formats()["fp8e4nv"],
    "float8_e5m2": fp8_formats()["fp8e5"],
    "float8_e4m3fnuz": fp8_formats()["fp8e4b8"],
    "float8_e5m2fnuz": fp8_formats()["fp8e5b16"],
}
FP8_MAX = {name: float(format.values[format.largest]) for name, format in FP8.items()}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
MX = {  # mantissa bits, largest, smallest normal exponent
    "e4m3": (3, 448.0, -6),
    "e5m2": (2, 57344.0, -14),
    "e2m1": (1, 6.0, 0),
}

# --- formats --------------------------------------------------------------------------------------------------------


def decode_e8m0(byte: Array) -> Array:
    """2^(byte - 127) in float64, NaN for 255."""
    byte = np.asarray(byte).astype(np.int64)
    return np.where(byte == 255, np.nan, np.ldexp(1.0, np.minimum(byte, 254) - 127))


def encode_e2m1(v: Array) -> Array:
    """Codes (a byte each) of float64 values: nearest, ties to the even code, saturating."""
    size = np.abs(v)
    middle = (E2M1[1:] + E2M1[:-1]) / 2
    code = np.searchsorted(middle, size, side="left")
    tie = middle[np.minimum(code, 6)] == size
    code = code + (tie & (code % 2 == 1))
    return (np.minimum(code, 7) | (np.signbit(v) << 3)).astype(np.uint8)


def encode_mx(v: Array, format: str) -> Array:
    """Payload bytes of float64 values [..., K]; e2m1 packs two, the first in the low nibble."""
    if format == "e2m1":
        codes = encode_e2m1(v)
        return codes[..., 0::2] | codes[..., 1::2] << 4
    largest = MX[format][1]
    return FP8["float8_e4m3fn" if format == "e4m3" else "float8_e5m2"].encode(np.clip(v, -largest, largest))


def decode_mx(payload: Array, format: str) -> Array:
    """float64 values of payload bytes."""
    if format != "e2m1":
        return FP8["float8_e4m3fn" if format == "e4m3" else "float8_e5m2"].decode(payload).astype(np.float64)
    codes = np.stack([payload & 15, payload >> 4], -1).reshape(*payload.shape[:-1], -1)
    return np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7])


# --- float scales ---------------------------------------------------------------------------------------------------


def _blocked(x: Array, block: tuple[int, int]) -> Array:
    """[B,R,C] -> [B,nr,br,nc,bc], padded with zeros."""
    B, R, C = x.shape
    br, bc = block
    x = np.pad(x, ((0, 0), (0, -R % br), (0, -C % bc)))
    return x.reshape(B, x.shape[1] // br, br, x.shape[2] // bc, bc)


def spread(values: Array, block: tuple[int, int], shape: tuple[int, ...]) -> Array:
    """[B,nr,nc] -> [B,R,C], each element its block's value."""
    return np.repeat(np.repeat(values, block[0], 1), block[1], 2)[:, : shape[1], : shape[2]]


def quantize_float(x: Array, dtype: str, block: tuple[int, int]) -> tuple[Array, Array]:
    """(codes [B,R,C], scale_inv [B,nr,nc] float32) of float32 x [B,R,C]."""
    largest = np.float32(FP8_MAX[dtype])
    with np.errstate(all="ignore"):
        amax = np.abs(_blocked(x, block)).max(axis=(2, 4))  # NaN wins in numpy's max
        scale = largest / np.maximum(amax, np.ldexp(largest, -125))
        good = np.isfinite(amax)
        scale_inv = np.where(good, np.float32(1) / scale, np.float32(np.nan)).astype(np.float32)
        q = np.where(spread(good, block, x.shape), x * spread(scale, block, x.shape), np.float32(0))
    return FP8[dtype].encode(np.clip(q, -largest, largest)), scale_inv


# --- MX -------------------------------------------------------------------------------------------------------------


def rotate(y: Array, sign_mask: int) -> Array:
    """The 16-point Hadamard rotation of the contract, float32 step by step, along the last dimension."""
    signs = np.array([-1 if sign_mask >> i & 1 else 1 for i in range(16)], np.float32)
    pieces = (y.reshape(-1, 16) * signs).T.copy()
    with np.errstate(all="ignore"):
        for stride in (1, 2, 4, 8):
            for i in range(16):
                if not i & stride:
                    a, b = pieces[i].copy(), pieces[i + stride].copy()
                    pieces[i], pieces[i + stride] = a + b, a - b
        return (pieces.T * np.float32(0.25)).reshape(y.shape)


def hadamard_matrix() -> Array:
    """16 x 16 in Sylvester order, +-1."""
    matrix = np.ones((1, 1))
    for _ in range(4):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def philox(seed: int, offset: int, block: int, column: bool) -> list[int]:
    """The four words of one counter block."""
    mask = 0xFFFFFFFF
    high = (offset >> 32) & mask
    counter = [block & mask, block >> 32, offset & mask, high ^ (1 << 31) if column else high]
    key = [seed & mask, (seed >> 32) & mask]
    for _ in range(10):
        p0, p1 = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [(p1 >> 32) ^ counter[1] ^ key[0], p1 & mask, (p0 >> 32) ^ counter[3] ^ key[1], p0 & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


def uniforms(shape: tuple[int, ...], rng: tuple[int, int], column: bool) -> Array:
    """u in [0, 1) of each element, float64 (24 bits)."""
    words = [philox(*rng, block, column) for block in range(int(np.prod(shape)) // 4)]
    return ((np.array(words, np.uint64) >> np.uint64(8)) * 2.0**-24).reshape(shape)


def exponent_bytes(amax: Array, format: str) -> Array:
    """E8M0 bytes of amax >= 0 (float64): its exponent, once rounded half up to the format's mantissa, less E_max."""
    mantissa, largest, _ = MX[format]
    fraction, exponent = np.frexp(amax)  # amax = fraction * 2^exponent, fraction in [0.5, 1)
    rounded = np.floor(fraction * 2.0 ** (mantissa + 1) + 0.5)
    exponent = exponent - 1 + (rounded == 2.0 ** (mantissa + 1))
    e = exponent - int(np.floor(np.log2(largest)))
    byte = np.clip(e + 127, 0, 254)
    return np.where(amax == 0, 0, byte).astype(np.int64)


def quantize_mx(
    y: Array, format: str, *, tile: bool = False, sign_mask: int | None = None, u: Array | None = None
) -> tuple[Array, Array]:
    """(payload bytes, scale bytes [B,L,Kp/32]) of float32 y [B,L,K], blocks along K; no rotation without a mask."""
    B, L, K = y.shape
    y = np.pad(y, ((0, 0), (0, 0), (0, -K % 128)))
    if sign_mask is not None:
        y = rotate(y, sign_mask)
    block = (32, 32) if tile else (1, 32)
    amax = np.abs(_blocked(y, block)).max(axis=(2, 4)).astype(np.float64)
    good = np.isfinite(amax)
    byte = np.where(good, exponent_bytes(np.where(good, amax, 0), format), 255)
    rows = np.repeat(byte, block[0], 1)[:, :L]
    exponents = np.repeat(rows, 32, 2)
    v = np.where(exponents == 255, 0.0, np.ldexp(y.astype(np.float64), 127 - exponents))
    if u is not None:
        v = stochastic(v, u, format)
    return encode_mx(v, format), rows.astype(np.uint8)


def stochastic(v: Array, u: Array, format: str) -> Array:
    """v moved to a value of the format: up in magnitude where u < the fraction of the step that it has gone."""
    mantissa, largest, smallest = MX[format]
    size = np.abs(v)
    exponent = np.maximum(np.frexp(size)[1] - 1, smallest)
    ulp = np.ldexp(1.0, exponent - mantissa)
    steps = np.floor(size / ulp)
    rounded = ulp * (steps + (u < size / ulp - steps))
    return np.copysign(np.minimum(rounded, largest), v)
