# SPDX-License-Identifier: MIT
"""Backend TORCH of the fused expert MLP's steps, in plain PyTorch, float32: products, then the gate."""

from __future__ import annotations

import math
from typing import Any

import torch

from turbo_core.calls import outputs
from turbo_grouped_gemm.calls import GroupedGemmCall, Groups
from turbo_grouped_gemm.calls_mlp import (
    DgateCall,
    Gate,
    GateCall,
    GatedDgradCall,
    GatedGemmCall,
    GatedRows,
    GateGradients,
    MlpCall,
    dgate_specs,
    inner_dgrad,
    inner_gemm,
)
from turbo_grouped_gemm.pytorch.kernels import grouped_gemm_reference

__all__ = ["run", "why_not"]


def why_not(call: MlpCall) -> str | None:
    """Every call is accepted."""
    return None


def run(call: MlpCall) -> Any:
    """Compute the call."""
    if isinstance(call, GatedGemmCall):
        return _gated(call, grouped_gemm_reference.run(inner_gemm(call)))
    if isinstance(call, GatedDgradCall):
        dout: GroupedGemmCall = inner_dgrad(call)._replace(out_dtype=torch.float32)
        return _dgate(
            DgateCall(
                grouped_gemm_reference.run(dout), call.pre, call.probs, call.groups, call.gate, call.out, call.dprobs
            )
        )
    return _gate(call) if isinstance(call, GateCall) else _dgate(call)


def _gated(call: GatedGemmCall, pre: torch.Tensor) -> GatedRows:
    out = _gate(GateCall(pre, call.probs, call.groups, call.gate))
    return GatedRows(out, pre if call.keeps else None)


def _gate(call: GateCall) -> torch.Tensor:
    owned = _owned(call.groups, call.pre)
    act, _, factor, _ = _activate(call.pre, call.gate)
    out = act * factor
    if call.probs is not None:
        out = out * call.probs.float()[:, None]
    return torch.where(owned, out, 0.0).to(call.pre.dtype)


def _dgate(call: DgateCall) -> GateGradients:
    """dgate = dout probs act' up; dup = dout probs act up'; dprobs = sum(dout act up); zeros for rows of no group."""
    results: GateGradients = outputs(dgate_specs(call), call.pre.device)
    owned = _owned(call.groups, call.pre)
    pre = torch.where(owned, call.pre, 0)
    act, slope, factor, factor_slope = _activate(pre, call.gate)
    dout = torch.where(owned, call.dout.float(), 0.0)
    out = act * factor
    if results.probs is not None:
        results.probs.copy_((dout * out).sum(-1))
    if call.probs is not None:
        probs = torch.where(owned, call.probs.float()[:, None], 0.0)
        dout, out = dout * probs, out * probs
    if results.out is not None:
        results.out.copy_(out)
    dgate, dup = results.pre.chunk(2, -1)
    dgate.copy_(dout * slope * factor)
    dup.copy_(dout * act * factor_slope)
    return results


def _owned(groups: Groups, pre: torch.Tensor) -> torch.Tensor:
    """Which rows belong to a group, [S,1]."""
    owner = grouped_gemm_reference.group_of_rows(groups, pre.shape[0])
    return (owner < groups.lens.shape[0])[:, None]


def _activate(pre: torch.Tensor, gate: Gate) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | float]:
    """act(gate), its derivative, the second factor and its derivative, clamps included; float32."""
    g, up = pre.float().chunk(2, -1)
    passes: torch.Tensor | float = 1.0
    up_slope: torch.Tensor | float = 1.0
    if gate.limit != math.inf:
        limit = gate.limit
        passes, up_slope = (g <= limit).float(), ((up <= limit) & (up >= -limit)).float()
        g, up = g.clamp(max=limit), up.clamp(-limit, limit)
    act, slope = _curve(g, gate)
    return act, slope * passes, 1 + up if gate.activation == "clamped" else up, up_slope


def _curve(g: torch.Tensor, gate: Gate) -> tuple[torch.Tensor, torch.Tensor]:
    """act(g) and its derivative, of a gate within the limit."""
    if gate.activation == "gelu":
        cdf = 0.5 + 0.5 * torch.erf(g * math.sqrt(0.5))
        return g * cdf, cdf + g * torch.exp(-0.5 * g * g) / math.sqrt(2 * math.pi)
    if gate.activation == "gelu_tanh":
        scale = math.sqrt(8 / math.pi)  # (1 + tanh z) / 2 = sigmoid(2 z)
        sigmoid = torch.sigmoid(scale * g * (1 + 0.044715 * g * g))
        act = g * sigmoid
        return act, sigmoid + act * (1 - sigmoid) * scale * (1 + 3 * 0.044715 * g * g)
    alpha = gate.alpha if gate.activation == "clamped" else 1.0
    sigmoid = torch.sigmoid(alpha * g)
    return g * sigmoid, sigmoid * (1 + alpha * g * (1 - sigmoid))
