# SPDX-License-Identifier: MIT
"""The derivatives of the backward ops, for second derivatives such as those of a gradient penalty.

Plain PyTorch on any device, float32, built only when somebody differentiates a gradient. They are compositions of
differentiable functions of everything that they read, so derivatives of any further order are right as well.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from turbo_norm_act.calls import GluBackward, GluGradients, NormBackward, NormGradients, halves
from turbo_norm_act.pytorch.kernels.norm_reference import weight_of

__all__ = ["glu_second", "norm_second"]

_Optional = torch.Tensor | None


def norm_second(call: NormBackward, grads: NormGradients, needs: Any) -> dict[str, _Optional]:
    """Gradients of the inputs of ``call``, given those of its results (``grads``).

    With n = xhat = (s - mean) rstd, w the weight, g = w dy and P v = v - n mean(v n) [- mean(v)]:
    dx = rstd P g, dgamma = sum(dy n), dbeta = sum(dy); P is symmetric. For a, b, c that reach dx, dgamma, dbeta:
    to n: u = b dy - rstd (a mean(g n) + g mean(a n));  to dy: w rstd P a + b n + c;  to gamma: sum(dy rstd P a);
    to s: rstd P u - rstd^2 n mean(a P g), since rstd is a function of s too.
    """
    gamma, dy, centred = call.gamma, call.dy.float(), call.s.float()
    if call.center:
        centred = centred - centred.mean(-1, keepdim=True)
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + call.eps)
    n = centred * rstd

    def project(v: torch.Tensor) -> torch.Tensor:
        v = v - n * (v * n).mean(-1, keepdim=True)
        return v - v.mean(-1, keepdim=True) if call.center else v

    d_dy, d_s, d_n, d_gamma = torch.zeros_like(n), torch.zeros_like(n), torch.zeros_like(n), None
    if grads.dx is not None:
        weight = weight_of(gamma, call.zero_centered)
        a, g = grads.dx.float(), dy * weight
        projected = rstd * project(a)
        d_dy = d_dy + projected * weight
        d_n = d_n - rstd * (a * (g * n).mean(-1, keepdim=True) + g * (a * n).mean(-1, keepdim=True))
        d_s = d_s - rstd.square() * n * (a * project(g)).mean(-1, keepdim=True)
        d_gamma = None if gamma is None else (dy * projected).sum(0).to(gamma.dtype)
    if grads.dgamma is not None:
        d_dy, d_n = d_dy + n * grads.dgamma.float(), d_n + dy * grads.dgamma.float()
    if grads.dbeta is not None:
        d_dy = d_dy + grads.dbeta.float()
    d_s = (d_s + rstd * project(d_n)).to(call.s.dtype)
    return {"s": d_s, "dy": d_dy.to(call.dy.dtype), "ds": grads.dx if needs.ds else None, "gamma": d_gamma}


class _Curve(NamedTuple):
    """act(gate) with its first two derivatives, the second factor and its derivative (it is linear)."""

    act: torch.Tensor
    slope: torch.Tensor
    bend: torch.Tensor
    factor: torch.Tensor
    factor_slope: torch.Tensor | float


def _curve(gate: torch.Tensor, up: torch.Tensor, call: GluBackward) -> _Curve:
    passes: torch.Tensor | float = 1.0
    factor_slope, limit = passes, call.limit
    if limit != math.inf:
        passes, factor_slope = (gate <= limit).float(), ((up <= limit) & (up >= -limit)).float()
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    factor = 1 + up if call.activation == "clamped" else up
    act, slope, bend = _derivatives(gate, call)
    return _Curve(act, slope * passes, bend * passes, factor, factor_slope)


def _derivatives(gate: torch.Tensor, call: GluBackward) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """act(gate) with its first two derivatives, of a gate within the limit."""
    if call.activation == "gelu":
        cdf = 0.5 + 0.5 * torch.erf(gate * math.sqrt(0.5))
        density = torch.exp(-0.5 * gate * gate) / math.sqrt(2 * math.pi)
        return gate * cdf, cdf + gate * density, density * (2 - gate * gate)
    # the others are gate sigmoid(z) with z a polynomial of the gate; d1 and d2 are its derivatives
    if call.activation == "silu":
        z, d1, d2 = gate, torch.ones_like(gate), torch.zeros_like(gate)
    elif call.activation == "gelu_tanh":
        scale, cubic = math.sqrt(8 / math.pi), 0.044715
        square = gate * gate
        z, d1, d2 = scale * gate * (1 + cubic * square), scale * (1 + 3 * cubic * square), 6 * scale * cubic * gate
    else:
        alpha = call.alpha
        z, d1, d2 = alpha * gate, torch.full_like(gate, alpha), torch.zeros_like(gate)
    sigmoid = torch.sigmoid(z)
    tail = sigmoid * (1 - sigmoid)
    steep = tail * d1  # of the sigmoid; 0 for a large gate, where the square of d1 alone would overflow
    slope = sigmoid + gate * steep
    bend = 2 * steep + gate * (tail * d2 + (1 - 2 * sigmoid) * steep * d1)
    return gate * sigmoid, slope, bend


def glu_second(call: GluBackward, grads: GluGradients, needs: Any) -> dict[str, _Optional]:
    """Gradients of the inputs of ``call``, given those of its results (``grads``).

    With o = dout, p = probs, f the second factor: dgate = o p act' f, dup = o p act f', dprobs = sum(o act f).
    For a, b, c that reach them: to dout: p (a act' f + b act f') + c act f;  to probs: sum(o (a act' f + b act f'));
    to gate: o p (a act'' f + b act' f') + c o act' f;  to up: o p a act' f' + c o act f'. Masked rows are zeros.
    """
    x, up, probs, row_mask, dout = call.x, call.up, call.probs, call.row_mask, call.dout
    gate, second, to_dgate, to_dup = x, up, grads.dx, grads.dup
    if up is None:
        gate, second = halves(x, call.interleaved)
        to_dgate, to_dup = (None, None) if grads.dx is None else halves(grads.dx, call.interleaved)
    active = None if row_mask is None else (row_mask != 0)[:, None]

    def read(tensor: _Optional) -> torch.Tensor | float:
        """In float32; what stands in masked rows is not read. None is 0."""
        if tensor is None:
            return 0.0
        tensor = tensor.float() if tensor.dim() == 2 else tensor.float()[:, None]
        return tensor if active is None else torch.where(active, tensor, 0.0)

    act, slope, bend, factor, factor_slope = _curve(read(gate), read(second), call)  # type: ignore[arg-type]
    o, p = read(dout), 1.0 if probs is None else read(probs)
    a, b, c = read(to_dgate), read(to_dup), read(grads.dprobs)
    both = a * slope * factor + b * act * factor_slope
    through = o * p
    d_gate = (through * (a * bend * factor + b * slope * factor_slope) + c * o * slope * factor).to(x.dtype)
    d_up = (through * a * slope * factor_slope + c * o * act * factor_slope).to(x.dtype)
    found: dict[str, _Optional] = {"dout": (p * both + c * act * factor).to(dout.dtype), "x": d_gate, "up": d_up}
    if up is None:
        packed = torch.stack((d_gate, d_up), -1).flatten(-2) if call.interleaved else torch.cat((d_gate, d_up), -1)
        found["x"], found["up"] = packed, None
    found["probs"] = None if probs is None else (o * both).sum(-1).to(probs.dtype)
    return found
