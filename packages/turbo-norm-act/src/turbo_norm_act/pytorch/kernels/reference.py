# SPDX-License-Identifier: MIT
"""Norms and gated activations in plain PyTorch, float32: what runs where no kernel can, on any device."""

from __future__ import annotations

import math

import torch

from turbo_norm_act.values import Formula, NormGradients, NormResult, Wanted

__all__ = [
    "glu_backward_reference",
    "glu_forward_reference",
    "norm_backward_reference",
    "norm_forward_reference",
    "weight_of",
]


def weight_of(gamma: torch.Tensor | None, zero_centered: bool) -> torch.Tensor | float:
    if gamma is None:
        return 1.0
    return gamma.float() + 1.0 if zero_centered else gamma.float()


def norm_forward_reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    eps: float,
    *,
    center: bool,
    zero_centered: bool,
) -> NormResult:
    """y = (s - mean) rstd w + beta over the last dimension of s = x + residual (rounded to x's dtype)."""
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


def norm_backward_reference(
    dy: torch.Tensor,
    ds: torch.Tensor | None,
    s: torch.Tensor,
    gamma: torch.Tensor | None,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    *,
    zero_centered: bool,
    wanted: Wanted,
) -> NormGradients:
    """dx = rstd (w dy - xhat mean(w dy xhat) - mean(w dy)) + ds; dgamma = sum(dy xhat); dbeta = sum(dy)."""
    dy = dy.float()
    xhat = (s.float() if mean is None else s.float() - mean[:, None]) * rstd[:, None]
    dx = None
    if wanted.dx:
        g = dy * weight_of(gamma, zero_centered)
        dx = g - xhat * (g * xhat).mean(-1, keepdim=True)
        if mean is not None:
            dx -= g.mean(-1, keepdim=True)
        dx *= rstd[:, None]
        if ds is not None:
            dx += ds.float()
        dx = dx.to(s.dtype)
    return NormGradients(
        dx,
        None if wanted.dgamma is None else (dy * xhat).sum(0).to(wanted.dgamma),
        None if wanted.dbeta is None else dy.sum(0).to(wanted.dbeta),
    )


def _activate(
    gate: torch.Tensor, up: torch.Tensor, formula: Formula
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | float]:
    """act(gate), its derivative, the second factor and its derivative, clamps included."""
    limit = formula.limit
    if limit == math.inf:
        return *_curve(gate, formula), 1 + up if formula.activation == "clamped" else up, 1.0
    gate_slope = (gate <= limit).float()
    up_slope = ((up <= limit) & (up >= -limit)).float()
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    act, slope = _curve(gate, formula)
    return act, gate_slope * slope, 1 + up if formula.activation == "clamped" else up, up_slope


def _curve(gate: torch.Tensor, formula: Formula) -> tuple[torch.Tensor, torch.Tensor]:
    """act(gate) and its derivative, of a gate within the limit."""
    if formula.activation == "gelu":
        cdf = 0.5 + 0.5 * torch.erf(gate * math.sqrt(0.5))
        return gate * cdf, cdf + gate * torch.exp(-0.5 * gate * gate) / math.sqrt(2 * math.pi)
    if formula.activation == "gelu_tanh":
        scale = math.sqrt(8 / math.pi)  # (1 + tanh z) / 2 = sigmoid(2 z)
        sigmoid = torch.sigmoid(scale * gate * (1 + 0.044715 * gate * gate))
        act = gate * sigmoid
        return act, sigmoid + act * (1 - sigmoid) * scale * (1 + 3 * 0.044715 * gate * gate)
    alpha = formula.alpha if formula.activation == "clamped" else 1.0
    sigmoid = torch.sigmoid(alpha * gate)
    return gate * sigmoid, sigmoid * (1 + alpha * gate * (1 - sigmoid))


def glu_forward_reference(
    gate: torch.Tensor,
    up: torch.Tensor,
    probs: torch.Tensor | None,
    row_mask: torch.Tensor | None,
    formula: Formula,
) -> torch.Tensor:
    """out = act(gate) up probs; zeros in the rows whose mask is 0."""
    act, _, factor, _ = _activate(gate.float(), up.float(), formula)
    out = act * factor
    if probs is not None:
        out *= probs.float()[:, None]
    if row_mask is not None:
        out = torch.where((row_mask != 0)[:, None], out, 0.0)
    return out.to(gate.dtype, memory_format=torch.contiguous_format)


def glu_backward_reference(
    dout: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    probs: torch.Tensor | None,
    row_mask: torch.Tensor | None,
    formula: Formula,
    dgate: torch.Tensor | None,
    dup: torch.Tensor | None,
    dprobs: torch.Tensor | None,
) -> None:
    """Writes what is wanted of dgate, dup and dprobs."""
    dout = dout.float()
    act, slope, factor, factor_slope = _activate(gate.float(), up.float(), formula)
    active = None if row_mask is None else row_mask != 0
    if dprobs is not None:
        total = (dout * act * factor).sum(-1)
        dprobs.copy_(total if active is None else torch.where(active, total, 0.0))
    if probs is not None:
        dout = dout * probs.float()[:, None]
    for out, value in ((dgate, slope * factor), (dup, act * factor_slope)):
        if out is not None:
            gradient = dout * value
            out.copy_(gradient if active is None else torch.where(active[:, None], gradient, 0.0))
