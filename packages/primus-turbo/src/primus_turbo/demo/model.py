# SPDX-License-Identifier: MIT
"""The demo's model, a decoder as in Llama, made of Turbo's modules or of plain torch's: bytes in, the next byte out.

RMSNorm, rotary positions, causal attention with fewer key heads than query heads, SwiGLU. Both sets of parts have the
same parameters under the same names, so one state dict serves both models.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import primus_turbo.pytorch as turbo
from turbo_core.low_precision import Float8QuantConfig, ScaleDtype, ScalingGranularity

__all__ = ["LINEARS", "LanguageModel", "build_models"]

WIDTH, HIDDEN, HEAD_DIM, HEADS, KV_HEADS = 128, 384, 32, 4, 2

MXFP8 = Float8QuantConfig(granularity=ScalingGranularity.MX_BLOCKWISE, block_size=32, scale_dtype=ScaleDtype.E8M0)
LINEARS: dict[str, Callable[..., nn.Module]] = {
    "fp32": turbo.modules.Linear,
    "bf16": turbo.modules.Linear,
    "fp8": turbo.modules.Float8Linear,
    "mxfp8": functools.partial(turbo.modules.Float8Linear, config=MXFP8),
    "mxfp4": turbo.modules.Float4Linear,
}
"""Precision -> the linear layers of the blocks. The head stays in bf16, as is usual."""


class Parts(NamedTuple):
    """What a model is made of."""

    linear: Callable[..., nn.Module]  # in the blocks
    head: Callable[..., nn.Module]
    norm: Callable[[int], nn.Module]
    swiglu: Callable[[], nn.Module]
    attention: Callable[[], nn.Module]


def turbo_parts(precision: str) -> Parts:
    """Turbo's modules."""
    modules = turbo.modules
    attention = functools.partial(modules.TurboAttention, causal=True)
    return Parts(LINEARS[precision], modules.Linear, modules.RMSNorm, modules.SwiGLU, attention)


class TorchNorm(nn.RMSNorm):
    """norm(x + residual), and the sum."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return super().forward(total), total


class TorchSwiGLU(nn.Module):
    """silu(gate) * up, for gate and up side by side."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up


class TorchAttention(nn.Module):
    """Causal attention of [B,S,H,D]."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


TORCH_PARTS = Parts(nn.Linear, nn.Linear, functools.partial(TorchNorm, eps=1e-6), TorchSwiGLU, TorchAttention)


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions: the halves of each head [B,S,H,D] as pairs, each rotated by an angle of its position."""
    (cos, sin), (a, b) = angles, x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    """Attention, then a gated MLP; each adds to the residual stream, and the norm before the next does the adding."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = parts.norm(WIDTH), parts.norm(WIDTH)
        self.qkv = parts.linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.attention = parts.attention()
        self.projection = parts.linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.gate_up = parts.linear(WIDTH, 2 * HIDDEN, bias=False)
        self.swiglu = parts.swiglu()
        self.down = parts.linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor, residual: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, residual = self.attention_norm(x, residual)
        q, k, v = self.qkv(x).unflatten(-1, (-1, HEAD_DIM)).split([HEADS, KV_HEADS, KV_HEADS], dim=-2)
        x = self.projection(self.attention(rotate(q, angles), rotate(k, angles), v).flatten(-2))
        x, residual = self.mlp_norm(x, residual)
        return self.down(self.swiglu(self.gate_up(x))), residual


class LanguageModel(nn.Module):
    """Logits [B,S,256] of the next byte for bytes [B,S]."""

    def __init__(self, parts: Parts, layers: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block(parts) for _ in range(layers))
        self.norm = parts.norm(WIDTH)
        self.head = parts.head(WIDTH, 256, bias=False)
        speeds = 1000.0 ** (-torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
        angles = (torch.arange(context)[:, None] * speeds)[:, None]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, angles = self.embedding(tokens), (self.cos, self.sin)
        residual = torch.zeros_like(x)
        for block in self.blocks:
            x, residual = block(x, residual, angles)
        return self.head(self.norm(x, residual)[0])

    def loss(self, windows: Tensor) -> Tensor:
        """Mean over all bytes but the first of each window [B,S+1], in bits."""
        logits = self(windows[:, :-1]).float()
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()) / math.log(2)


def build_models(precision: str, layers: int, context: int, seed: int) -> dict[str, LanguageModel]:
    """The model on Turbo and its twin on plain torch, with the same weights."""
    torch.manual_seed(seed)
    on_torch = LanguageModel(TORCH_PARTS, layers, context)
    on_turbo = LanguageModel(turbo_parts(precision), layers, context)
    on_turbo.load_state_dict(on_torch.state_dict())
    return {"turbo": on_turbo, "torch": on_torch}
