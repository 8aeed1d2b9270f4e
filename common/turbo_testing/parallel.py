# SPDX-License-Identifier: MIT
"""A transformer block of Turbo's modules, and training it across processes and in one, for tests that compare the two.

Sizes are multiples of the quantisation blocks on each of two ranks, so that no block is cut. Data-parallel training
quantises each rank's sequences by themselves; the run in one process that it must equal takes them one after another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

import primus_turbo.pytorch as turbo
from turbo_core.low_precision import Float8QuantConfig, ScaleDtype, ScalingGranularity

__all__ = ["DIM", "PRECISIONS", "Block", "batches", "loss_of", "optimizer_of", "train", "train_in_turns"]

DIM, HEADS, SEQLEN = 256, 4, 8
_CONFIGS = {
    "tensorwise": Float8QuantConfig(),
    "rowwise": Float8QuantConfig(granularity=ScalingGranularity.ROWWISE),
    "blockwise": Float8QuantConfig(granularity=ScalingGranularity.BLOCKWISE, block_size=128),
    "mx": Float8QuantConfig(granularity=ScalingGranularity.MX_BLOCKWISE, block_size=32, scale_dtype=ScaleDtype.E8M0),
}
PRECISIONS = ("plain", *_CONFIGS, "fp4")


def _linear(precision: str, inputs: int, outputs: int, bias: bool, **kwargs: Any) -> torch.nn.Module:
    modules = turbo.modules
    if precision == "plain":
        return modules.Linear(inputs, outputs, bias, **kwargs)
    if precision == "fp4":
        return modules.Float4Linear(inputs, outputs, bias, **kwargs)
    return modules.Float8Linear(inputs, outputs, bias, _CONFIGS[precision], **kwargs)


class Block(torch.nn.Module):
    """x + attention(norm(x)), and a gated feed-forward after that: every module once, ``gated`` names one of two.

    Heads are counted from what q, k, v turn out to be, so that a tensor-parallel plan may leave a rank a part of them.
    """

    def __init__(self, precision: str = "plain", gated: str = "SwiGLU", **kwargs: Any) -> None:
        super().__init__()
        self.attention_norm = turbo.modules.RMSNorm(DIM, **kwargs)
        self.q = _linear(precision, DIM, DIM, True, **kwargs)
        self.k = _linear(precision, DIM, DIM, False, **kwargs)
        self.v = _linear(precision, DIM, DIM, True, **kwargs)
        self.attention = turbo.modules.TurboAttention(causal=True)
        self.o = _linear(precision, DIM, DIM, True, **kwargs)
        self.norm = turbo.modules.LayerNorm(DIM, **kwargs)
        self.gate = _linear(precision, DIM, DIM, True, **kwargs)
        self.up = _linear(precision, DIM, DIM, False, **kwargs)
        self.activation = getattr(turbo.modules, gated)()
        self.down = _linear(precision, DIM, DIM, True, **kwargs)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, DIM // HEADS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.attention_norm(x)
        attended = self.attention(self.heads(self.q(y)), self.heads(self.k(y)), self.heads(self.v(y)))
        x = x + self.o(attended.flatten(-2))
        y = self.norm(x)
        return x + self.down(self.activation(self.gate(y), self.up(y)))


def batches(steps: int = 2, sequences: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets of each step, the same in every process."""
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(sequences, SEQLEN, DIM, generator=generator),
            torch.randn(sequences, SEQLEN, DIM, generator=generator),
        )
        for _ in range(steps)
    ]


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (model(x).float() - target).square().mean()


def optimizer_of(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """Steps large enough to see in float32, and in proportion to the gradient: a wrong one shows as what it is."""
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def train(model: torch.nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """Losses of plain training in one process; the model keeps the gradients of the last step."""
    optimizer = optimizer_of(model.parameters())
    losses = []
    for x, target in data:
        optimizer.zero_grad()
        loss = loss_of(model, x, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_in_turns(
    model: torch.nn.Module,
    data: list[tuple[torch.Tensor, torch.Tensor]],
    ranks: int,
    dtype: torch.dtype | None = None,
) -> list[float]:
    """`train` as data parallelism does it: each rank's sequences alone, gradients averaged in float32.

    dtype: of the parameters that are computed with; the optimizer has them in float32.
    """
    optimizer = optimizer_of(model.parameters())
    losses = []
    for x, target in data:
        optimizer.zero_grad()
        total = 0.0
        for part, wanted in zip(x.chunk(ranks), target.chunk(ranks), strict=True):
            replica = copy.deepcopy(model).to(dtype)
            loss = loss_of(replica, part if dtype is None else part.to(dtype), wanted) / ranks
            loss.backward()
            total += loss.item()
            for parameter, copied in zip(model.parameters(), replica.parameters(), strict=True):
                gradient = copied.grad.to(parameter.dtype)  # type: ignore[union-attr]
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        optimizer.step()
        losses.append(total)
    return losses
