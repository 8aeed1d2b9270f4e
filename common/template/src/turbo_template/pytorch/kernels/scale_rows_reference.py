# SPDX-License-Identifier: MIT
"""`scale_rows` in plain PyTorch, in float32: the backend TORCH, which runs on any device."""

from __future__ import annotations

import torch

from turbo_template.calls import ScaleRows, ScaleRowsBackward, ScaleRowsCall, ScaleRowsGradients

__all__ = ["run", "why_not"]


def why_not(call: ScaleRowsCall) -> str | None:
    """It takes every call."""
    return None


def run(call: ScaleRowsCall) -> torch.Tensor | ScaleRowsGradients:
    """The forward or the backward."""
    return _forward(call) if isinstance(call, ScaleRows) else _backward(call)


def _forward(call: ScaleRows) -> torch.Tensor:
    y = call.x.float() * call.scale.float()[:, None]
    if call.residual is not None:
        y = y + call.residual.float()
    return y.to(call.x.dtype, memory_format=torch.contiguous_format)


def _backward(call: ScaleRowsBackward) -> ScaleRowsGradients:
    dy, x, scale, wants_dx = call
    dx = dscale = None
    if wants_dx:
        dx = (dy.float() * scale.float()[:, None]).to(dy.dtype, memory_format=torch.contiguous_format)
    if x is not None:
        dscale = (dy.float() * x.float()).sum(-1).to(scale.dtype)
    return ScaleRowsGradients(dx, dscale)
