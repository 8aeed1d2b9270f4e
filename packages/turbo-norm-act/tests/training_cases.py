# SPDX-License-Identifier: MIT
"""Every op and module of this wheel with small inputs, for the matrix of what training loops do to them."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

import turbo_norm_act as tn
from turbo_testing.training import ModuleCase, OpCase, floats

WIDTH = 24


def _rms(x, gamma=None, eps=1e-6, zero_centered=False):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if gamma is None else y * (gamma + 1.0 if zero_centered else gamma)


def _rms_residual(x, residual, gamma, eps=1e-6):
    s = x + residual
    return _rms(s, gamma, eps), s


def _layer(x, gamma, beta, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], gamma, beta, eps)


def _norm_inputs(rows, dtype, device, *, residual=False, vectors=("gamma",)):
    tensors = {"x": floats(rows, WIDTH, dtype=dtype, device=device)}
    if residual:
        tensors["residual"] = floats(rows, WIDTH, dtype=dtype, device=device)
    for name in vectors:
        tensors[name] = 1.0 + floats(WIDTH, dtype=dtype, device=device, scale=0.1)
    return tensors


def _halves(x, up, interleaved):
    if up is not None:
        return x, up
    return (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)


def _swiglu(x, up=None, probs=None, row_mask=None, limit=None, alpha=1.702, interleaved=False):
    gate, up = _halves(x, up, interleaved)
    if limit is None:
        out = F.silu(gate) * up
    else:
        gate = gate.clamp(max=limit)
        out = gate * torch.sigmoid(alpha * gate) * (up.clamp(-limit, limit) + 1.0)
    return _weighted(out, probs, row_mask)


def _geglu(x, up=None, probs=None, row_mask=None, approximate="none"):
    gate, up = _halves(x, up, False)
    return _weighted(F.gelu(gate, approximate=approximate) * up, probs, row_mask)


def _weighted(out, probs, row_mask):
    if probs is not None:
        out = out * probs[:, None]
    return out if row_mask is None else torch.where((row_mask != 0)[:, None], out, torch.zeros((), dtype=out.dtype))


def _limited(x, probs, clamp_limit=0.7):
    gate, up = x.chunk(2, -1)
    return F.silu(gate.clamp(max=clamp_limit)) * up.clamp(-clamp_limit, clamp_limit) * probs[:, None]


def _packed(rows, dtype, device, *, probs=False, mask=False, separate=False):
    tensors = {"x": floats(rows, WIDTH, dtype=dtype, device=device)}
    if separate:
        tensors["up"] = floats(rows, WIDTH, dtype=dtype, device=device)
    if probs:
        tensors["probs"] = floats(rows, dtype=torch.float32, device=device).sigmoid()
    if mask:
        tensors["row_mask"] = torch.arange(rows, dtype=torch.int32, device=device) % 3
    return tensors


OPS = [
    OpCase(
        "rmsnorm", tn.rmsnorm, _norm_inputs, ("x", "gamma"), _rms, numbers={"eps": (1e-6, 1e-2)}, second=True,
    ),
    OpCase(
        "rmsnorm", partial(tn.rmsnorm, zero_centered=True), _norm_inputs, ("x", "gamma"),
        partial(_rms, zero_centered=True), "zero-centred", second=True,
    ),
    OpCase(
        "rmsnorm", partial(tn.rmsnorm, gamma=None), partial(_norm_inputs, vectors=()), ("x",), _rms, "without a weight",
        second=True,
    ),
    OpCase(
        "rmsnorm_residual", tn.rmsnorm_residual, partial(_norm_inputs, residual=True), ("x", "residual", "gamma"),
        _rms_residual, mixed=("x", "residual"), numbers={"eps": (1e-6, 1e-2)}, second=True,
    ),
    OpCase(
        "layernorm", tn.layernorm, partial(_norm_inputs, vectors=("gamma", "beta")), ("x", "gamma", "beta"), _layer,
        numbers={"eps": (1e-5, 1e-2)}, second=True,
    ),
    OpCase("swiglu", tn.swiglu, _packed, ("x",), _swiglu, second=True),
    OpCase(
        "swiglu", tn.swiglu, partial(_packed, separate=True), ("x", "up"), _swiglu, "gate and up", mixed=("x", "up"),
        second=True,
    ),
    OpCase(
        "swiglu", partial(tn.swiglu, interleaved=True), _packed, ("x",), partial(_swiglu, interleaved=True), "clamped",
        numbers={"limit": (0.7, 1.1), "alpha": (1.702, 1.1)}, second=True,
    ),
    OpCase("geglu", tn.geglu, _packed, ("x",), _geglu, second=True),
    OpCase(
        "geglu", partial(tn.geglu, approximate="tanh"), partial(_packed, separate=True), ("x", "up"),
        partial(_geglu, approximate="tanh"), "tanh", mixed=("x", "up"), second=True,
    ),
    OpCase(
        "swiglu_with_probs", tn.swiglu_with_probs, partial(_packed, probs=True, mask=True), ("x", "probs"), _swiglu,
        second=True,
    ),
    OpCase(
        "geglu_with_probs", tn.geglu_with_probs, partial(_packed, probs=True, mask=True), ("x", "probs"), _geglu,
        second=True,
    ),
    OpCase(
        "swiglu_with_probs", tn.swiglu_with_probs, partial(_packed, probs=True), ("x", "probs"), _limited, "clamped up",
        numbers={"clamp_limit": (0.7, 1.1)}, second=True,
    ),
]  # fmt: skip


def _rows(device, width=WIDTH):
    return (floats(2, 5, width, dtype=torch.float32, device=device),)


MODULES = [
    ModuleCase(
        "RMSNorm", lambda device: tn.RMSNorm(WIDTH, device=device), _rows,
        lambda device: torch.nn.RMSNorm(WIDTH, eps=1e-6, device=device),
    ),
    ModuleCase(
        "LayerNorm", lambda device: tn.LayerNorm(WIDTH, device=device), _rows,
        lambda device: torch.nn.LayerNorm(WIDTH, device=device),
    ),
    ModuleCase("SwiGLU", lambda device: tn.SwiGLU(), _rows),
    ModuleCase("GeGLU", lambda device: tn.GeGLU(), _rows),
]  # fmt: skip

NOT_OPS: dict[str, str] = {}
