# SPDX-License-Identifier: MIT
"""Transformer blocks of published models, from torch's own ops or from Turbo's, with the same parameters.

    h = x + o(attention(rotate(q(norm(x))), rotate(k(norm(x))), v(norm(x))))
    y = h + down(silu(gate(norm(h))) up(norm(h)))      or h + experts(norm(h))

Shapes: x [B, S, hidden]; q, k, v [B, S, heads, head_dim]. Rotary embeddings are torch's ops in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import turbo_attention
import turbo_gemm
import turbo_norm_act
from benchmark.model.experts import Experts, TorchExperts, TurboExperts
from turbo_core.low_precision import Float8QuantConfig, ScaleDtype, ScalingGranularity

EPS = 1e-5


@dataclass(frozen=True)
class BlockShape:
    """What of a model's published configuration decides its block.

    Attributes:
        window: keys that a query sees before its own; -1: all.
        sink: whether each head has a learned logit in the softmax's denominator.
        experts: of the width ``intermediate``, in place of the gated projections; 0: none.
        topk: experts of a token.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    window: int = -1
    sink: bool = False
    experts: int = 0
    topk: int = 0


SHAPES = {
    #                        hidden interm. heads kv
    "llama3.1-8b": BlockShape(4096, 14336, 32, 8),
    "llama3.1-70b": BlockShape(8192, 28672, 64, 8),
    "qwen3-8b": BlockShape(4096, 12288, 32, 8),
    # GPT-OSS-20B's attention; its experts are replaced by one dense gate of the width of four, which a token sees
    "gpt-oss-dense": BlockShape(2880, 11520, 64, 8, head_dim=64, window=127, sink=True),
    "mixtral-8x7b": BlockShape(4096, 14336, 32, 8, experts=8, topk=2),
    "qwen3-30b-a3b": BlockShape(2048, 768, 32, 4, experts=128, topk=8),
    "gpt-oss-20b": BlockShape(2880, 2880, 64, 8, head_dim=64, window=127, sink=True, experts=32, topk=4),
    "smoke": BlockShape(64, 96, 4, 2, head_dim=16),
    "smoke-experts": BlockShape(64, 48, 4, 2, head_dim=16, experts=4, topk=2),
}

GRANULARITIES = {
    "fp8-tensorwise": Float8QuantConfig(granularity=ScalingGranularity.TENSORWISE),
    "fp8-rowwise": Float8QuantConfig(granularity=ScalingGranularity.ROWWISE),
    "fp8-blockwise": Float8QuantConfig(granularity=ScalingGranularity.BLOCKWISE, block_size=128),
    "mxfp8": Float8QuantConfig(granularity=ScalingGranularity.MX_BLOCKWISE, block_size=32, scale_dtype=ScaleDtype.E8M0),
}


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [B, S, heads, D]; cos, sin [S, 1, D]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(torch.nn.Module):
    """What the implementations have in common.

    Args:
        shape: of the model.
        linear: (in, out) -> a linear layer without bias.
        norm: width -> an RMSNorm.
        experts: those of the shape, None where it has none.
    """

    def __init__(
        self,
        shape: BlockShape,
        linear: Callable[[int, int], torch.nn.Module],
        norm: Callable[[int], torch.nn.Module],
        experts: Experts | None = None,
    ) -> None:
        super().__init__()
        self.shape = shape
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q, self.k, self.v = (linear(shape.hidden, width) for width in (wide, narrow, narrow))
        self.o = linear(wide, shape.hidden)
        self.experts = experts
        if experts is None:
            self.gate, self.up = (linear(shape.hidden, shape.intermediate) for _ in range(2))
            self.down = linear(shape.intermediate, shape.hidden)
        self.attention_norm, self.ffn_norm = norm(shape.hidden), norm(shape.hidden)
        self.sink = torch.nn.Parameter(torch.zeros(shape.heads)) if shape.sink else None

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        B, S, _ = x.shape
        normed = self.attention_norm(x)
        q, k, v = (layer(normed).view(B, S, -1, self.shape.head_dim) for layer in (self.q, self.k, self.v))
        attended = self.attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + self.o(attended.reshape(B, S, -1))
        normed = self.ffn_norm(x)
        if self.experts is not None:
            return x + self.experts(normed)
        return x + self.down(self.gated(self.gate(normed), self.up(normed)))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal attention, [B, S, heads, head_dim] in and out."""
        raise NotImplementedError

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) up."""
        raise NotImplementedError


class TorchBlock(Block):
    """torch's own ops."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if self.shape.window < 0 and self.sink is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
        return self._attend_slowly(q, k, v).transpose(1, 2)

    def _attend_slowly(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Windows and sinks by the definition: torch has no kernel for a sink."""
        shape, S = self.shape, q.shape[2]
        k, v = (x.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for x in (k, v))
        scores = (q @ k.transpose(2, 3)).float() * shape.head_dim**-0.5
        distance = torch.arange(S, device=q.device)[:, None] - torch.arange(S, device=q.device)
        hidden = (distance < 0) | ((distance > shape.window) if shape.window >= 0 else False)
        scores = scores.masked_fill(hidden, -torch.inf)
        if self.sink is not None:
            column = self.sink[None, :, None, None].expand(*scores.shape[:3], 1)
            scores = torch.cat((scores, column.to(scores.dtype)), -1)
        return (scores.softmax(-1)[..., :S].to(v.dtype)) @ v

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up


class TurboBlock(Block):
    """Turbo's ops."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return turbo_attention.flash_attn_func(q, k, v, causal=True, window_size=(self.shape.window, 0), sink=self.sink)

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return turbo_norm_act.swiglu(gate, up)


IMPLEMENTATIONS = ("torch", "turbo-bf16", *(f"turbo-{name}" for name in GRANULARITIES))


class Stack(torch.nn.Module):
    """``layers`` blocks of one implementation, with bfloat16 parameters that depend on the seed alone; ``lens``: see
    `Experts`."""

    def __init__(
        self, shape: BlockShape, implementation: str, layers: int, device: torch.device, lens: str = "balanced"
    ) -> None:
        super().__init__()
        where = {"device": device, "dtype": torch.bfloat16}
        config = GRANULARITIES.get(implementation.removeprefix("turbo-"))

        def linear(width: int, out: int) -> torch.nn.Module:
            if implementation == "torch":
                return torch.nn.Linear(width, out, bias=False, **where)
            if config is None:
                return turbo_gemm.Linear(width, out, bias=False, **where)
            return turbo_gemm.Float8Linear(width, out, bias=False, config=config, **where)

        def experts() -> Experts | None:
            if not shape.experts:
                return None
            if implementation == "torch":
                return TorchExperts(shape, lens, **where)
            found = TurboExperts(shape, lens, **where)
            found.config = config
            return found

        norm = torch.nn.RMSNorm if implementation == "torch" else turbo_norm_act.RMSNorm
        kind = TorchBlock if implementation == "torch" else TurboBlock
        self.blocks = torch.nn.ModuleList(
            kind(shape, linear, lambda width: norm(width, eps=EPS, **where), experts()) for _ in range(layers)
        )
        self.to(device)
        generator = torch.Generator(device).manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, cos, sin)
        return x
