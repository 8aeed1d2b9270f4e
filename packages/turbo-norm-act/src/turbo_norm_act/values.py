# SPDX-License-Identifier: MIT
"""Values that the layers hand to each other. Neither torch nor triton is imported."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["Formula", "NormGradients", "NormResult", "Wanted"]


class Formula(NamedTuple):
    """A gate: ``silu``, ``gelu``, ``gelu_tanh`` or ``clamped``.

    Attributes:
        activation: its name.
        limit: gate is at most this, up from -limit to limit; inf: as they are.
        alpha: read by ``clamped`` alone.
    """

    activation: str
    limit: float = math.inf
    alpha: float = 0.0


class Wanted(NamedTuple):
    """Which gradients of a norm are computed: dx or not, dgamma and dbeta in which dtype (None: not)."""

    dx: bool
    dgamma: torch.dtype | None
    dbeta: torch.dtype | None


class NormResult(NamedTuple):
    """y; s = x + residual where there is a residual; mean float32 [rows] of a centred norm; rstd float32 [rows]."""

    y: torch.Tensor
    s: torch.Tensor | None
    mean: torch.Tensor | None
    rstd: torch.Tensor


class NormGradients(NamedTuple):
    """What was wanted of dx [rows, D] (of x and of residual alike), dgamma [D] and dbeta [D]."""

    dx: torch.Tensor | None
    dgamma: torch.Tensor | None
    dbeta: torch.Tensor | None
