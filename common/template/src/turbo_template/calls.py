# SPDX-License-Identifier: MIT
"""The calls of the template ops and what they return: shapes and dtypes. Neither torch nor triton is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from turbo_core.calls import Spec

if TYPE_CHECKING:
    import torch

__all__ = ["ScaleRows", "ScaleRowsBackward", "ScaleRowsCall", "ScaleRowsGradients", "backward_specs", "forward_specs"]


class ScaleRows(NamedTuple):
    """y[r, d] = x[r, d] * scale[r] + residual[r, d]; y [rows, D] in x's dtype, contiguous.

    Attributes:
        x: [rows, D], any strides; bfloat16, float16 or float32.
        scale: [rows], any of the three.
        residual: like x, strides of its own; None: nothing is added.
    """

    x: torch.Tensor
    scale: torch.Tensor
    residual: torch.Tensor | None

    @property
    def data(self) -> torch.Tensor:
        return self.x


class ScaleRowsBackward(NamedTuple):
    """The gradients of `ScaleRows` in x and scale; that in residual is dy itself.

    Attributes:
        dy: [rows, D], any strides.
        x: of the forward; None: dscale is not wanted.
        scale: of the forward.
        wants_dx: whether dx is wanted.
    """

    dy: torch.Tensor
    x: torch.Tensor | None
    scale: torch.Tensor
    wants_dx: bool

    @property
    def data(self) -> torch.Tensor:
        return self.dy


ScaleRowsCall = ScaleRows | ScaleRowsBackward


class ScaleRowsGradients(NamedTuple):
    """What was wanted of dx[r, d] = dy[r, d] * scale[r] and dscale[r] = sum over d of dy[r, d] * x[r, d].

    dx is [rows, D] in dy's dtype, contiguous; dscale [rows] in scale's.
    """

    dx: torch.Tensor | None
    dscale: torch.Tensor | None


def forward_specs(call: ScaleRows) -> Spec:
    """What y looks like."""
    return Spec(tuple(call.x.shape), call.x.dtype)


def backward_specs(call: ScaleRowsBackward) -> ScaleRowsGradients:
    """The result of ``call`` with a `Spec` in place of each tensor."""
    dx = Spec(tuple(call.dy.shape), call.dy.dtype) if call.wants_dx else None
    dscale = None if call.x is None else Spec(tuple(call.scale.shape), call.scale.dtype)
    return ScaleRowsGradients._make((dx, dscale))
