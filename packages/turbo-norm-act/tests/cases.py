# SPDX-License-Identifier: MIT
"""Shapes of turbo-norm-act and its float64 references, shared by its tests and its benchmark.

Rows and D of a norm, T and H of an activation. ``CPU`` lists keep the interpreter quick; ``GPU`` lists are real sizes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

# every D once: a single element, odd, one over a power of two, models' widths, wide rows
NORMS_CPU = [
    (511, 1),
    (7, 33),
    (3, 128),
    (511, 513),
    (5, 4096),
    (1, 5120),
    (2, 7168),
    (3, 8193),
    (1, 16384),
    (2, 65536),
]
NORMS_GPU = [
    *NORMS_CPU,
    (511, 1023), (8192, 33), (4096, 128), (8192, 513), (511, 4096), (4096, 5120), (1, 7168), (8192, 8192), (511, 8193),
    (511, 16384), (300, 16385), (129, 32768), (511, 65536), (33, 65537), (2, 131072),
]  # fmt: skip
ACTIVATIONS_CPU = [(511, 1), (7, 33), (1, 128), (25, 256), (3, 2048), (2, 8193)]
ACTIVATIONS_GPU = [*ACTIVATIONS_CPU, (8 * 2025, 128), (8 * 2048, 2048), (1, 65536), (511, 14336), (16, 100001)]

BENCHMARK_NORMS = [(16384, 4096), (16384, 8192), (65536, 1024), (4096, 65536)]
BENCHMARK_ACTIVATIONS = [(16384, 14336), (32768, 2048)]


def norm(
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    eps: float = 1e-6,
    zero_centered: bool = False,
    center: bool = False,
) -> Tensor:
    """RMSNorm, or LayerNorm with ``center``, of float64 tensors."""
    if center:
        x = x - x.mean(-1, keepdim=True)
    y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    if gamma is not None:
        y = y * (1 + gamma if zero_centered else gamma)
    return y if beta is None else y + beta


def glu(
    gate: Tensor,
    up: Tensor,
    activation: str,
    probs: Tensor | None = None,
    row_mask: Tensor | None = None,
    limit: float = 7.0,
    alpha: float = 1.702,
) -> Tensor:
    """The gated activations of float64 tensors; masked rows are zeros, whatever they hold.

    ``clamped`` and names that end in ``limited`` read the limit.
    """
    if row_mask is not None:
        active = (row_mask != 0)[:, None]
        gate, up = torch.where(active, gate, 0.0), torch.where(active, up, 0.0)
    if activation == "clamped" or activation.endswith("limited"):
        gate, up, activation = gate.clamp(max=limit), up.clamp(-limit, limit), activation.removesuffix(" limited")
    if activation == "clamped":
        out = gate * torch.sigmoid(alpha * gate) * (up + 1)
    elif activation == "silu":
        out = F.silu(gate) * up
    else:
        out = F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up
    if probs is not None:
        out = out * (probs if row_mask is None else torch.where(row_mask != 0, probs, 0.0))[:, None]
    return out


def float64(*tensors: Tensor | None) -> list[Tensor | None]:
    """Leaves in float64 with the tensors' values."""
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]
