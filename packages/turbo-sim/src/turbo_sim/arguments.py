# SPDX-License-Identifier: MIT
"""Kernel arguments on a command line.

i32:5  u64:0x10  f32:0.5  ptr:0                a value
in:x.npy                                       a buffer with the contents of a file
out:y.npy:f32[64,128]                          a buffer of zeros, written to the file after the launch
inout:x.npy:y.npy                              both
zeros:f16[1024]  random:bf16[64,64]:7          a buffer of zeros, or of random values with a seed
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Argument", "pack", "parse"]

_VALUES = {
    "i8": "b",
    "u8": "B",
    "i16": "h",
    "u16": "H",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
    "f32": "f",
    "f64": "d",
    "ptr": "Q",
}
# bf16 and fp8 are stored as their codes.
_TYPES = {
    "i8": "i1",
    "u8": "u1",
    "i16": "i2",
    "u16": "u2",
    "i32": "i4",
    "u32": "u4",
    "i64": "i8",
    "u64": "u8",
    "f16": "f2",
    "f32": "f4",
    "f64": "f8",
    "bf16": "u2",
    "fp8": "u1",
}


@dataclass
class Argument:
    text: str
    value: bytes | None = None  # of a plain value
    buffer: np.ndarray | None = None
    save_to: Path | None = None


def _shaped(text: str) -> tuple[str, tuple[int, ...]]:
    match = re.fullmatch(r"(\w+)\[([\d,]+)\]", text)
    if not match or match[1] not in _TYPES:
        raise ValueError(f"{text!r}: expected a type and a shape such as f32[64,128]; types: {', '.join(_TYPES)}")
    return match[1], tuple(int(n) for n in match[2].split(",") if n)


def _random(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(_TYPES[kind])
    if kind == "bf16":
        return (rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind == "fp8":
        return rng.integers(0, 0x70, shape, dtype=np.uint8)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 100, shape).astype(dtype)


def parse(text: str) -> Argument:
    kind, _, rest = text.partition(":")
    if kind in _VALUES:
        code = _VALUES[kind]
        number = float(rest) if code in "fd" else int(rest, 0)
        return Argument(text, value=struct.pack("<" + code, number))
    parts = rest.split(":")
    if kind == "in":
        return Argument(text, buffer=np.ascontiguousarray(np.load(rest)))
    if kind == "out" and len(parts) == 2:
        name, shape = _shaped(parts[1])
        return Argument(text, buffer=np.zeros(shape, _TYPES[name]), save_to=Path(parts[0]))
    if kind == "inout" and len(parts) == 2:
        return Argument(text, buffer=np.ascontiguousarray(np.load(parts[0])), save_to=Path(parts[1]))
    if kind == "zeros":
        name, shape = _shaped(rest)
        return Argument(text, buffer=np.zeros(shape, _TYPES[name]))
    if kind == "random":
        name, shape = _shaped(parts[0])
        return Argument(text, buffer=_random(name, shape, int(parts[1]) if len(parts) > 1 else 0))
    raise ValueError(f"argument {text!r} is not understood.\n{__doc__}")


def pack(arguments: list[Argument], layout: list[tuple[int, int]]) -> bytes:
    """Kernel argument bytes. layout: (offset, size) of the kernel's explicit arguments; [] packs them in natural
    alignment.
    """
    out = b""
    for k, argument in enumerate(arguments):
        value = (argument.value or b"") if argument.buffer is None else struct.pack("<Q", argument.buffer.ctypes.data)
        if layout:
            offset, size = layout[k]
            if len(value) != size:
                raise ValueError(f"argument {k} ({argument.text}): {len(value)} bytes, the kernel takes {size}")
        else:
            offset = -(-len(out) // len(value)) * len(value)
        out = out.ljust(offset, b"\0") + value
    return out
