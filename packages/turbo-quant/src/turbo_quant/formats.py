# SPDX-License-Identifier: MIT
"""The MX payload formats by name, and the torch dtypes that stand for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from turbo_core import UnsupportedError
from turbo_core.calls import empty
from turbo_core.low_precision import memory_dtype

__all__ = [
    "E2M1_VALUES",
    "MX_FORMATS",
    "MxFormat",
    "allocate",
    "fp4_dtype",
    "mx_format_of",
    "payload_dtype",
    "scale_dtype",
]

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of e2m1 by code; bit 3 is the sign."""


class MxFormat(NamedTuple):
    """One payload format (OCP Microscaling Formats v1.0, 5.3).

    Attributes:
        mantissa: bits of mantissa.
        exponent_max: exponent of the largest value's binade (E_max of the standard).
        exponent_min: exponent of the smallest normal value.
        largest: the largest value.
        per_byte: values in a byte.
    """

    mantissa: int
    exponent_max: int
    exponent_min: int
    largest: float
    per_byte: int


MX_FORMATS = {
    "e4m3": MxFormat(3, 8, -6, 448.0, 1),
    "e5m2": MxFormat(2, 15, -14, 57344.0, 1),
    "e2m1": MxFormat(1, 2, 0, 6.0, 2),
}


def fp4_dtype() -> torch.dtype:
    """torch's packed FP4 type, uint8 where this torch has none."""
    dtype: torch.dtype = getattr(torch, "float4_e2m1fn_x2", torch.uint8)
    return dtype


def scale_dtype() -> torch.dtype:
    """torch's E8M0 type, uint8 where this torch has none."""
    dtype: torch.dtype = getattr(torch, "float8_e8m0fnu", torch.uint8)
    return dtype


def payload_dtype(format: str) -> torch.dtype:
    """The dtype of an MX payload of ``format``."""
    return {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": fp4_dtype()}[format]


def mx_format_of(dtype: torch.dtype) -> str:
    """The MX format that payloads of ``dtype`` have; uint8 is read as packed e2m1."""
    names = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.uint8: "e2m1", fp4_dtype(): "e2m1"}
    if dtype not in names:
        raise UnsupportedError(f"dtype={dtype} is not an MX payload type; accepted are {', '.join(map(str, names))}")
    return names[dtype]


def allocate(specs: Iterable[Any], device: torch.device) -> list[torch.Tensor | None]:
    """Empty tensors of ``specs``, None for None."""
    return [
        None if spec is None else empty(spec._replace(dtype=memory_dtype(spec.dtype)), device).view(spec.dtype)
        for spec in specs
    ]
