# SPDX-License-Identifier: MIT
"""Norms in plain PyTorch, float32: what runs where no kernel can, on any device."""

from __future__ import annotations

import torch

from turbo_norm_act.calls import NormBackward, NormCall, NormForward, NormGradients, NormResult

__all__ = ["run", "weight_of", "why_not"]


def why_not(call: NormCall) -> None:
    """It takes every call."""


def run(call: NormCall) -> NormResult | NormGradients:
    return _forward(call) if isinstance(call, NormForward) else _backward(call)


def weight_of(gamma: torch.Tensor | None, zero_centered: bool) -> torch.Tensor | float:
    if gamma is None:
        return 1.0
    return gamma.float() + 1.0 if zero_centered else gamma.float()


def _forward(call: NormForward) -> NormResult:
    """y = (s - mean) rstd w + beta over the last dimension of s = x + residual (rounded to x's dtype)."""
    x, residual, gamma, beta, eps, zero_centered, center = call
    s = None if residual is None else (x.float() + residual.float()).to(x.dtype)
    centred = (x if s is None else s).float()
    mean = None
    if center:
        mean = centred.mean(-1)
        centred = centred - mean[:, None]
    rstd = torch.rsqrt(centred.square().mean(-1) + eps)
    y = centred * rstd[:, None] * weight_of(gamma, zero_centered)
    if beta is not None:
        y += beta.float()
    return NormResult(y.to(x.dtype), s, mean, rstd)


def _backward(call: NormBackward) -> NormGradients:
    """dx = rstd (w dy - xhat mean(w dy xhat) - mean(w dy)) + ds; dgamma = sum(dy xhat); dbeta = sum(dy)."""
    s, gamma, mean, rstd, dy = call.s.float(), call.gamma, call.mean, call.rstd[:, None], call.dy.float()
    xhat = (s if mean is None else s - mean[:, None]) * rstd
    dx = None
    if call.dx:
        g = dy * weight_of(gamma, call.zero_centered)
        dx = g - xhat * (g * xhat).mean(-1, keepdim=True)
        if mean is not None:
            dx -= g.mean(-1, keepdim=True)
        dx *= rstd
        if call.ds is not None:
            dx += call.ds.float()
        dx = dx.to(call.s.dtype)
    return NormGradients(
        dx,
        (dy * xhat).sum(0).to(gamma.dtype) if call.dgamma and gamma is not None else None,
        None if call.dbeta is None else dy.sum(0).to(call.dbeta),
    )
