# SPDX-License-Identifier: MIT
"""How far a result is from its float64 reference, in the figures that people compare."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from turbo_testing.metrics import compute_snr

__all__ = ["FIGURES", "figures", "ulp"]

FIGURES = [
    "Relative Error",
    "MSE",
    "Max Abs Error",
    "Cosine",
    "SNR (dB)",
    "Max ULP",
    "Mean ULP",
    "Wrong Specials",
]


def ulp(reference: Tensor, dtype: torch.dtype) -> Tensor:
    """The spacing of ``dtype`` at each value of ``reference`` (float64), that of the subnormals near zero."""
    info = torch.finfo(dtype)
    smallest = math.frexp(info.tiny)[1] - 1
    exponent = torch.where(reference == 0, smallest, torch.frexp(reference.abs()).exponent - 1)
    return torch.ldexp(torch.full_like(reference, info.eps), exponent.clamp(min=smallest))


def figures(actual: Tensor, reference: Tensor) -> dict[str, float]:
    """Figures of ``actual`` against ``reference`` (float64), over the elements where the reference is a finite number
    of actual's dtype.

    Relative Error: |a - r| / |r| (2-norms). Cosine: of the angle between the two. ULP: |a - r| in spacings of actual's
    dtype at r; half an ULP is the best that rounding can do. Wrong Specials: elements that are NaN or infinite, or not,
    or of the wrong sign, where the reference, rounded to actual's dtype, is the other way.
    """
    reference = reference.double()
    rounded = reference.to(actual.dtype)
    same = (actual == rounded) | (actual.isnan() & rounded.isnan())
    special = ~rounded.isfinite() | ~actual.isfinite()
    good = rounded.isfinite() & actual.isfinite()
    wrong = int((special & ~same).sum())
    a, r = actual.double()[good], reference[good]
    if not r.numel():
        return dict.fromkeys(FIGURES, math.nan) | {"Wrong Specials": wrong}
    difference = (a - r).abs()
    in_ulp = difference / ulp(r, actual.dtype)
    norms = a.norm() * r.norm()
    return {
        "Relative Error": (difference.norm() / r.norm()).item() if r.any() else float(difference.any()),
        "MSE": difference.square().mean().item(),
        "Max Abs Error": difference.max().item(),
        "Cosine": (a @ r / norms).item() if norms else float(not a.any() and not r.any()),
        "SNR (dB)": compute_snr(r, a),
        "Max ULP": in_ulp.max().item(),
        "Mean ULP": in_ulp.mean().item(),
        "Wrong Specials": wrong,
    }
