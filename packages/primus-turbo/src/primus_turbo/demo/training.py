# SPDX-License-Identifier: MIT
"""Training of the demo's models. The optimiser's weights are float32 in every precision.

The layers see float32 weights and activations in fp32, else bf16 copies of the weights and bf16 activations; in fp8,
mxfp8 and mxfp4 the GEMMs of Turbo's blocks quantise both further.
"""

from __future__ import annotations

import collections
import functools
import math
import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from primus_turbo.demo.model import LanguageModel
from primus_turbo.demo.report import mean
from turbo_core import trace_dispatch

__all__ = ["Learner", "show_backends", "train"]

PEAK_RATE, WARM_UP, CLIP = 4e-3, 0.1, 1.0  # of AdamW; the share of the steps that warms up; the gradient's largest norm


class Learner:
    """One model in training: low-precision weights in the layers, float32 ones in the optimiser."""

    def __init__(self, model: LanguageModel, precision: str, device: torch.device, steps: int) -> None:
        self.model = model.to(device, torch.float32 if precision == "fp32" else torch.bfloat16)
        self.weights = list(self.model.parameters())
        self.master = [weight.detach().float().clone() for weight in self.weights]
        self.optimizer = torch.optim.AdamW(self.master, lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.1)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, functools.partial(rate, steps=steps))
        self.losses: list[float] = []
        self.seconds = 0.0

    def step(self, batch: Tensor) -> None:
        start = time.perf_counter()
        loss = self.model.loss(batch)
        loss.backward()
        for master, weight in zip(self.master, self.weights, strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        nn.utils.clip_grad_norm_(self.master, CLIP)
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            for master, weight in zip(self.master, self.weights, strict=True):
                weight.copy_(master)
        self.losses.append(loss.item())  # waits for the device, so the time below is that of the whole step
        self.seconds += time.perf_counter() - start

    def gradients(self, batch: Tensor) -> dict[str, Tensor]:
        """Of every parameter; the weights stay as they are."""
        found = torch.autograd.grad(self.model.loss(batch), self.weights)
        return dict(zip((name for name, _ in self.model.named_parameters()), found, strict=True))

    @torch.no_grad()
    def validation(self, batches: list[Tensor]) -> float:
        return mean([self.model.loss(batch).item() for batch in batches])


def rate(step: int, steps: int) -> float:
    """The learning rate's share of its peak: up linearly, then down along a cosine to a tenth."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm))


def show_backends(learner: Learner, batch: Tensor) -> None:
    """Print which backend serves each op of a step, how often it is called, and why it was chosen."""
    with trace_dispatch() as trace:
        learner.gradients(batch)
    calls = collections.Counter((record.op, record.backend.name, record.reason) for record in trace.records)
    print("backends of a training step:")
    for (op, backend, reason), count in calls.items():
        print(f"  {op:<10} {count:>3} calls   {backend:<10} {reason}")


def train(learners: Mapping[str, Learner], batches: Iterator[Tensor], steps: int, tokens: int) -> None:
    """Train all models on the same batches of so many tokens each; a line of progress about ten times."""
    every, done = max(1, steps // 10), 0
    for step, batch in zip(range(1, steps + 1), batches):
        for learner in learners.values():
            learner.step(batch)
        if step % every == 0 or step == steps:
            columns = (
                f"{name} {mean(one.losses[done:]):6.3f} ({step * tokens / one.seconds:7.0f} tokens/s)"
                for name, one in learners.items()
            )
            print(f"step {step:>5}/{steps}   bits a byte: {'   '.join(columns)}", flush=True)
            done = step
