# SPDX-License-Identifier: MIT
"""What atomics do, in Python: old value and operands in, new value out. Integers are unsigned; `bits` is 32 or 64."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


def as_float(x: int, bits: int):
    return np.array([x], np.uint32 if bits == 32 else np.uint64).view(np.float32 if bits == 32 else np.float64)[0]


def as_bits(x, bits: int) -> int:
    return int(np.array([x], np.float32 if bits == 32 else np.float64).view(np.uint32 if bits == 32 else np.uint64)[0])


def packed(dtype):
    def add(m: int, a: int, b: int, bits: int) -> int:
        halves = [np.array([x & 0xFFFF, x >> 16], np.uint16).view(dtype).astype(np.float32) for x in (m, a)]
        total = (halves[0] + halves[1]).astype(dtype).view(np.uint16)
        return int(total[0]) | int(total[1]) << 16

    return add


INTEGER = {
    "add": lambda m, a, b, n: m + a,
    "sub": lambda m, a, b, n: m - a,
    "rsub": lambda m, a, b, n: a - m,
    "inc": lambda m, a, b, n: 0 if m >= a else m + 1,
    "dec": lambda m, a, b, n: a if m == 0 or m > a else m - 1,
    "smin": lambda m, a, b, n: m if signed(m, n) <= signed(a, n) else a,
    "smax": lambda m, a, b, n: m if signed(m, n) >= signed(a, n) else a,
    "umin": lambda m, a, b, n: min(m, a),
    "umax": lambda m, a, b, n: max(m, a),
    "and": lambda m, a, b, n: m & a,
    "or": lambda m, a, b, n: m | a,
    "xor": lambda m, a, b, n: m ^ a,
    "swap": lambda m, a, b, n: a,
    "mskor": lambda m, a, b, n: (m & ~a) | b,
    "cmpst": lambda m, a, b, n: b if m == a else m,
    "cmpswap": lambda m, a, b, n: a if m == b else m,
}
FLOAT = {
    "fadd": lambda m, a, b, n: as_bits(as_float(m, n) + as_float(a, n), n),
    "fmin": lambda m, a, b, n: as_bits(min(as_float(m, n), as_float(a, n)), n),
    "fmax": lambda m, a, b, n: as_bits(max(as_float(m, n), as_float(a, n)), n),
    "pk_f16": packed(np.float16),
    "pk_bf16": packed(ml_dtypes.bfloat16),
}
MODELS = {**INTEGER, **FLOAT}


def operands(model: str, bits: int, count: int, seed: int = 7) -> tuple[list[int], list[int]]:
    """Operands for `count` lanes: a and b."""
    rng = np.random.default_rng(seed)
    if model in ("fadd", "fmin", "fmax"):
        dtype, word = (np.float32, np.uint32) if bits == 32 else (np.float64, np.uint64)
        a = (rng.standard_normal(count) * 8).astype(dtype).view(word)
        return [int(x) for x in a], [0] * count
    if model.startswith("pk_"):
        dtype = np.float16 if model == "pk_f16" else ml_dtypes.bfloat16
        a = (rng.standard_normal(2 * count) * 8).astype(dtype).view(np.uint16).astype(np.uint32)
        return [int(x) | int(y) << 16 for x, y in zip(a[0::2], a[1::2])], [0] * count
    top = 1 << bits
    a = [int(x) % top for x in rng.integers(0, 2**64, count, dtype=np.uint64)]
    b = [int(x) % top for x in rng.integers(0, 2**64, count, dtype=np.uint64)]
    if model in ("cmpst", "cmpswap", "inc", "dec"):  # small, so that they match and wrap
        a, b = [x % 4 for x in a], [x % 4 for x in b]
    return a, b


def apply(model: str, bits: int, cells: list[int], where: list[int | None], a: list[int], b: list[int]) -> list[int]:
    """Applies one atomic per lane in lane order to `cells` (changed in place); returns the old values, 0 for lanes
    without.
    """
    old = []
    for lane, cell in enumerate(where):
        if cell is None:
            old.append(0)
            continue
        old.append(cells[cell])
        cells[cell] = MODELS[model](cells[cell], a[lane], b[lane], bits) & ((1 << bits) - 1)
    return old
