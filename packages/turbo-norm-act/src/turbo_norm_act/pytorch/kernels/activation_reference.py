# SPDX-License-Identifier: MIT
"""Gated activations in plain PyTorch, float32: what runs where no kernel can, on any device."""

from __future__ import annotations

import math

import torch

from turbo_core.calls import outputs
from turbo_norm_act.calls import GluBackward, GluCall, GluForward, GluGradients, glu_gradient_specs, halves

__all__ = ["run", "why_not"]


def why_not(call: GluCall) -> None:
    """It takes every call."""


def run(call: GluCall) -> torch.Tensor | GluGradients:
    return _forward(call) if isinstance(call, GluForward) else _backward(call)


def _activate(call: GluCall) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | float]:
    """act(gate), its derivative, the second factor and its derivative, clamps included."""
    gate, up = halves(call.x, call.interleaved) if call.up is None else (call.x, call.up)
    gate, up, limit = gate.float(), up.float(), call.limit
    if limit == math.inf:
        return *_curve(gate, call), 1 + up if call.activation == "clamped" else up, 1.0
    gate_slope = (gate <= limit).float()
    up_slope = ((up <= limit) & (up >= -limit)).float()
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    act, slope = _curve(gate, call)
    return act, gate_slope * slope, 1 + up if call.activation == "clamped" else up, up_slope


def _curve(gate: torch.Tensor, call: GluCall) -> tuple[torch.Tensor, torch.Tensor]:
    """act(gate) and its derivative, of a gate within the limit."""
    if call.activation == "gelu":
        cdf = 0.5 + 0.5 * torch.erf(gate * math.sqrt(0.5))
        return gate * cdf, cdf + gate * torch.exp(-0.5 * gate * gate) / math.sqrt(2 * math.pi)
    if call.activation == "gelu_tanh":
        scale = math.sqrt(8 / math.pi)  # (1 + tanh z) / 2 = sigmoid(2 z)
        sigmoid = torch.sigmoid(scale * gate * (1 + 0.044715 * gate * gate))
        act = gate * sigmoid
        return act, sigmoid + act * (1 - sigmoid) * scale * (1 + 3 * 0.044715 * gate * gate)
    alpha = call.alpha if call.activation == "clamped" else 1.0
    sigmoid = torch.sigmoid(alpha * gate)
    return gate * sigmoid, sigmoid * (1 + alpha * gate * (1 - sigmoid))


def _forward(call: GluForward) -> torch.Tensor:
    """out = act(gate) up probs; zeros in the rows whose mask is 0."""
    act, _, factor, _ = _activate(call)
    out = act * factor
    if call.probs is not None:
        out *= call.probs.float()[:, None]
    if call.row_mask is not None:
        out = torch.where((call.row_mask != 0)[:, None], out, 0.0)
    return out.to(call.x.dtype, memory_format=torch.contiguous_format)


def _backward(call: GluBackward) -> GluGradients:
    """dgate = dout probs act' up; dup = dout probs act up'; dprobs = sum(dout act up); zeros in masked rows."""
    gradients: GluGradients = outputs(glu_gradient_specs(call), call.x.device)
    dgate, dup, dprobs = gradients
    if call.up is None and dgate is not None:
        dgate, dup = halves(dgate, call.interleaved)
    act, slope, factor, factor_slope = _activate(call)
    dout = call.dout.float()
    active = None if call.row_mask is None else (call.row_mask != 0)[:, None]

    def masked(gradient: torch.Tensor) -> torch.Tensor:
        return gradient if active is None else torch.where(active, gradient, 0.0)

    if dprobs is not None:
        dprobs.copy_(masked(dout * act * factor).sum(-1))
    if call.probs is not None:
        dout = dout * call.probs.float()[:, None]
    if dgate is not None:
        dgate.copy_(masked(dout * slope * factor))
    if dup is not None:
        dup.copy_(masked(dout * act * factor_slope))
    return gradients
