# SPDX-License-Identifier: MIT
"""bf16 and the four fp8 formats as numpy codecs: raw integers to float32 and back, rounded once.

Written from the formats' definitions, as tables, so that they are independent of both torch's and Triton's bit
tricks; the tests hold them equal to torch's casts. Needs numpy only.

| Triton   | torch        | bias | inf | NaN          | past the largest finite value |
|----------|--------------|------|-----|--------------|-------------------------------|
| fp8e4nv  | e4m3fn       | 7    | no  | 0x7f, 0xff   | saturates to 448              |
| fp8e5    | e5m2         | 15   | yes | 0x7d ... 7f  | inf                           |
| fp8e4b8  | e4m3fnuz     | 8    | no  | 0x80         | NaN                           |
| fp8e5b16 | e5m2fnuz     | 16   | no  | 0x80         | NaN                           |

The last column is what the casts of torch 2.13 do (earlier ones give NaN for e4m3fn). Hardware may saturate in all
four, so a kernel clamps before it casts; where it forgot to, the last three rows show it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

__all__ = ["Fp8Format", "decode_bf16", "encode_bf16", "fp8_formats"]


class Fp8Format:
    """One 8-bit format: its 256 values and an encoder that rounds to nearest even, or toward zero.

    mantissa: number of mantissa bits, the exponent has 7 - mantissa. largest: code of the largest finite value.
    overflow, nan: codes for a positive value past it, and for NaN. fnuz: no negative zero, 0x80 is the only NaN.
    """

    def __init__(self, mantissa: int, bias: int, largest: int, overflow: int, nan: int, fnuz: bool = False):
        self.largest, self.overflow, self.nan, self.fnuz = largest, overflow, nan, fnuz
        codes = np.arange(129)  # the code after the last gives the value where rounding leaves the format
        exponent, fraction = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
        subnormal, normal = fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias)
        magnitude = np.where(exponent == 0, subnormal, normal)
        self._levels = magnitude[: largest + 1]
        self._midpoints = (magnitude[: largest + 1] + magnitude[1 : largest + 2]) / 2
        positive = magnitude[:128].astype(np.float32)
        positive[largest + 1 :] = np.nan
        if overflow == largest + 1 < nan:
            positive[overflow] = np.inf
        self.values = np.concatenate([positive, -positive])
        if fnuz:
            self.values[0x80] = np.nan

    def decode(self, codes: Any) -> Any:
        """uint8 codes -> float32 values, exact."""
        return self.values[codes]

    def encode(self, values: Any, toward_zero: bool = False) -> Any:
        """float values -> uint8 codes."""
        size = np.abs(values).astype(np.float64)
        if toward_zero:
            code = np.searchsorted(self._levels, size, side="right") - 1
        else:
            code = np.searchsorted(self._midpoints, size, side="left")  # code = number of midpoints below
            tie = self._midpoints[np.minimum(code, self.largest)] == size
            code = code + (tie & (code & 1 == 1))
        code = np.where((code > self.largest) | np.isinf(size), self.overflow, code)
        code = np.where(np.isnan(size), self.nan, code).astype(np.uint8)
        negative = np.signbit(values)
        if self.fnuz:
            negative = negative & (code != 0)
        return code | (negative.astype(np.uint8) << 7)


@functools.cache
def fp8_formats() -> dict[str, Fp8Format]:
    """The four formats by Triton's name."""
    return {
        "fp8e4nv": Fp8Format(3, 7, largest=0x7E, overflow=0x7E, nan=0x7F),
        "fp8e5": Fp8Format(2, 15, largest=0x7B, overflow=0x7C, nan=0x7F),
        "fp8e4b8": Fp8Format(3, 8, largest=0x7F, overflow=0x80, nan=0x80, fnuz=True),
        "fp8e5b16": Fp8Format(2, 16, largest=0x7F, overflow=0x80, nan=0x80, fnuz=True),
    }


def decode_bf16(bits: Any) -> Any:
    """uint16 -> float32, exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode_bf16(values: Any, toward_zero: bool = False) -> Any:
    """float or integer -> uint16, to nearest even or toward zero; NaN becomes 0x7fc0, as in torch."""
    values = np.asarray(values).astype(np.float32)
    bits = values.reshape(-1).view(np.uint32)
    if not toward_zero:
        bits = bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
    bits = np.where(np.isnan(values.reshape(-1)), np.uint32(0x7FC00000), bits)
    return (bits >> np.uint32(16)).astype(np.uint16).reshape(values.shape)
