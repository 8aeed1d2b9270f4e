# SPDX-License-Identifier: MIT
"""The AITER backend of MXFP4: an adapter to ``aiter.gemm_a4w4``. Operands that are not preshuffled are, on the fly.

Its products come in bfloat16, and a bias, or the sum that they are added to, is added to the rounded product. That is
little beside the error of 4 bits, and nobody else takes preshuffled operands.

AITER is imported by the first product it computes, never before: its import needs a ROCm device. Its signature has
changed between releases, so arguments go by keyword, through a table by version.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from typing import Any

import torch

from turbo_core import device_facts
from turbo_gemm.calls import GemmFp8Call, mx_format
from turbo_quant.developer import shuffle_scale_bytes, shuffle_weight_bytes

__all__ = ["AITER_ARGUMENTS", "aiter_arguments", "known_releases", "run", "why_not"]

_Version = tuple[int, ...]

# Keywords of aiter.gemm_a4w4 by release: from the first number on, up to but without the second. 0.1.8 stands on both
# sides of the change and is left out.
AITER_ARGUMENTS: tuple[tuple[_Version, _Version, tuple[str, ...]], ...] = (
    ((0, 1, 5), (0, 1, 8), ("A", "B", "A_scale", "B_scale", "out", "bpreshuffle")),
    ((0, 1, 9), (0, 2), ("A", "B", "A_scale", "B_scale", "dtype", "bpreshuffle")),
)
_ALIGNMENT = 16
_OUT_ROWS = 32  # AITER's kernels write whole tiles of so many rows


def aiter_arguments(version: str) -> tuple[str, ...] | None:
    """The keywords of that release, None if it is not in the table."""
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    return next((names for first, end, names in AITER_ARGUMENTS if first <= numbers < end), None)


def known_releases() -> str:
    """The releases in the table, in words: ``>= 0.1.5, < 0.1.8 and >= 0.1.9, < 0.2``."""
    rows = (tuple(".".join(map(str, numbers)) for numbers in row[:2]) for row in AITER_ARGUMENTS)
    return " and ".join(f">= {first}, < {end}" for first, end in rows)


@functools.cache
def _installed() -> str | None:
    try:
        return importlib.metadata.version("amd-aiter")
    except importlib.metadata.PackageNotFoundError:
        return None


def why_not(call: GemmFp8Call) -> str | None:
    """Why AITER cannot take the call; None when it can. AITER is not imported."""
    version = _installed()
    if version is None:
        return "amd-aiter is not installed: pip install amd-aiter, on a machine with ROCm"
    if aiter_arguments(version) is None:
        return f"amd-aiter {version}; this turbo-gemm knows how to call the FP4 GEMM of {known_releases()}"
    if call.a.data.device.type != "cuda":
        return f"a is on {call.a.data.device.type}; AITER needs tensors on a GPU"
    arch = device_facts(call.a.data.device).arch
    if arch != "gfx950":
        return f"this is {arch}; AITER's FP4 GEMM needs gfx950"
    formats = mx_format(call.a.data), mx_format(call.b.data)
    if not call.is_mx() or formats != ("e2m1", "e2m1"):
        return f"operands are {' and '.join(formats)}; AITER's FP4 GEMM takes MXFP4"
    m, n, _ = call.sizes()
    if m % _ALIGNMENT or n % _ALIGNMENT:
        return f"M={m} and N={n} must be multiples of {_ALIGNMENT}"
    if call.out is None and call.out_dtype is not torch.bfloat16:
        return f"out_dtype is {call.out_dtype}; AITER's FP4 GEMM gives torch.bfloat16"
    return None


def run(call: GemmFp8Call) -> torch.Tensor:
    """Compute the call."""
    import aiter

    names = aiter_arguments(_installed() or "") or ()  # in the table: why_not has looked
    m, n, _ = call.sizes()
    result: torch.Tensor = aiter.gemm_a4w4(**_values(call, names, m, n))
    result = result[:m]
    if call.out is not None:
        return call.out.add_(result)
    return result if call.bias is None else result.add_(call.bias)


def _values(call: GemmFp8Call, names: tuple[str, ...], m: int, n: int) -> dict[str, Any]:
    """The arguments of one call by keyword."""
    values: dict[str, Any] = {
        "A": call.a.data,
        "B": call.b.data if call.preshuffled else _shuffled(call.b.data, shuffle_weight_bytes),
        "A_scale": call.a.scale_inv if call.preshuffled else _shuffled(call.a.scale_inv, shuffle_scale_bytes),
        "B_scale": call.b.scale_inv if call.preshuffled else _shuffled(call.b.scale_inv, shuffle_scale_bytes),
        "dtype": torch.bfloat16,
        "bpreshuffle": True,
    }
    if "out" in names:
        values["out"] = call.a.data.new_empty((m + -m % _OUT_ROWS, n), dtype=torch.bfloat16)
    return {name: values[name] for name in names}


def _shuffled(tensor: torch.Tensor, shuffle: Any) -> torch.Tensor:
    shuffled: torch.Tensor = shuffle(tensor.view(torch.uint8)).view(tensor.dtype)
    return shuffled
