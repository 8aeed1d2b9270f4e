# SPDX-License-Identifier: MIT
"""Train a digit classifier twice, on Turbo and on plain torch, and demand that both learn the same thing.

Input: scikit-learn's 1797 handwritten digits. Model: 64-512-512-10 with ReLU, once from `turbo.modules.Linear`,
once from `torch.nn.Linear`, with the same initial weights, batches and optimiser. The optimiser's weights are
float32 in every precision; with ``--precision bf16`` the layers see bf16 copies of them, as in large-scale
training.

Exit code 1 if the runs differ; `digits_report` states the criterion and its reasons.

    python examples/train_digits.py --precision bf16 --output out
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from digits_report import (
    POINT_SAMPLES,
    TOLERANCE,
    differences,
    loss_points,
    run_faults,
    write_files,
)
from sklearn.datasets import load_digits
from torch import Tensor, nn

import primus_turbo.pytorch as turbo
from primus_turbo.demo.report import gradient_faults, text_plot
from turbo_core import GlobalBackendManager, UnsupportedError, explain, trace_dispatch

WIDTHS = (64, 512, 512, 10)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LEARNING_RATE, MOMENTUM = 0.05, 0.9  # for batches of 128 and more; less in proportion for smaller ones


@dataclass(frozen=True)
class Data:
    """Features in [0, 1] and labels, on the device; the test part is a random quarter."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def load_data(seed: int, device: torch.device, dtype: torch.dtype) -> Data:
    """The digits, split at random under ``seed``."""
    features, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    x = (torch.from_numpy(features).float() / 16)[order].to(device, dtype)
    y = torch.from_numpy(labels).long()[order].to(device)
    cut = len(labels) * 3 // 4
    return Data(x[:cut], y[:cut], x[cut:], y[cut:])


def build_model(linear: type[nn.Module]) -> nn.Sequential:
    """The classifier out of the given Linear class."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip(WIDTHS[:-1], WIDTHS[1:], strict=True):
        layers += [linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@dataclass
class Learner:
    """One model in training: low-precision weights in the layers, float32 ones in the optimiser."""

    name: str
    model: nn.Module
    learning_rate: float
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = list(self.model.parameters())
        self.master = [weight.detach().float().clone() for weight in self.weights]
        self.optimizer = torch.optim.SGD(self.master, lr=self.learning_rate, momentum=MOMENTUM)

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step of gradient descent; records the loss and the time."""
        start = time.perf_counter()
        loss = nn.functional.cross_entropy(self.model(x).float(), y)
        loss.backward()
        for master, weight in zip(self.master, self.weights, strict=True):
            if weight.grad is None:
                raise RuntimeError(f"{self.name}: a weight of shape {tuple(weight.shape)} got no gradient")
            master.grad, weight.grad = weight.grad.float(), None
        self.optimizer.step()
        with torch.no_grad():
            for master, weight in zip(self.master, self.weights, strict=True):
                weight.copy_(master)
        self.losses.append(loss.item())  # waits for the device, so the time below is that of the whole step
        self.seconds.append(time.perf_counter() - start)

    @torch.no_grad()
    def accuracy(self, x: Tensor, y: Tensor) -> float:
        """Share of samples classified right."""
        return (self.model(x).argmax(dim=1) == y).float().mean().item()


def build_learners(args: argparse.Namespace, device: torch.device) -> tuple[Learner, Learner]:
    """The model on Turbo and its twin on torch, with the same weights."""
    torch.manual_seed(args.seed)
    torch_model, turbo_model = build_model(nn.Linear), build_model(turbo.modules.Linear)
    turbo_model.load_state_dict(torch_model.state_dict())
    rate = LEARNING_RATE * min(1.0, args.batch_size / POINT_SAMPLES)
    on_turbo = Learner("turbo", turbo_model.to(device, DTYPES[args.precision]), rate)
    on_torch = Learner("torch", torch_model.to(device, DTYPES[args.precision]), rate)
    return on_turbo, on_torch


def batches(size: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """One epoch of sample indices in random order; the last batch is what is left over."""
    yield from torch.randperm(size, generator=generator).split(batch_size)


def train(args: argparse.Namespace, data: Data, learners: tuple[Learner, Learner]) -> list[int]:
    """Train both models on the same batches, print a line an epoch; returns the sizes of all batches."""
    generator = torch.Generator().manual_seed(args.seed)
    sizes: list[int] = []
    print("\n  epoch   loss: turbo    torch   test accuracy: turbo    torch   ms/step: turbo   torch")
    for epoch in range(args.epochs):
        first = len(sizes)
        for index in batches(len(data.train_y), args.batch_size, generator):
            index = index.to(data.train_x.device)
            for learner in learners:
                learner.step(data.train_x[index], data.train_y[index])
            sizes.append(len(index))
        turbo_loss, torch_loss = (statistics.mean(learner.losses[first:]) for learner in learners)
        turbo_ms, torch_ms = (1e3 * statistics.median(learner.seconds[first:]) for learner in learners)
        accuracies = [learner.accuracy(data.test_x, data.test_y) for learner in learners]
        print(
            f"{epoch + 1:>3}/{args.epochs:<3} {turbo_loss:>13.4f} {torch_loss:>8.4f}"
            f" {accuracies[0]:>22.2%} {accuracies[1]:>8.2%} {turbo_ms:>16.2f} {torch_ms:>7.2f}",
            flush=True,
        )
    return sizes


def gradients(args: argparse.Namespace, data: Data, learner: Learner) -> dict[str, Tensor]:
    """The gradient of every parameter for the first batch; the weights stay as they are."""
    x, y = data.train_x[: args.batch_size], data.train_y[: args.batch_size]
    nn.functional.cross_entropy(learner.model(x).float(), y).backward()
    found = {name: weight.grad for name, weight in learner.model.named_parameters() if weight.grad is not None}
    learner.model.zero_grad(set_to_none=True)
    return found


def show_backends(args: argparse.Namespace, data: Data, learner: Learner) -> None:
    """Print each GEMM's backend and the reason, then what every backend answers for the middle layer."""
    with trace_dispatch() as trace:
        gradients(args, data, learner)
    print("\nWhich backend serves each GEMM of a step, and why:")
    for record in trace.records:
        print(f"  {record.role:<8} {record.backend.name:<10} {record.call}\n           because: {record.reason}")
    print("\nWhat each backend answers for the middle layer, from turbo_core.explain:")
    x = data.train_x.new_empty(args.batch_size, WIDTHS[1], requires_grad=True)
    weight, bias = learner.model.get_parameter("2.weight"), learner.model.get_parameter("2.bias")
    explain("gemm", x, weight, trans_b=True, bias=bias)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train on handwritten digits with Turbo and with plain torch; compare."
    )
    parser.add_argument("--precision", choices=sorted(DTYPES), default="bf16", help="what the layers compute in")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: a GPU if any"
    )
    parser.add_argument("--backend", help="force a GEMM backend (HIPBLASLT, TRITON, TORCH); default: Turbo's choice")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="folder for loss.csv and loss.png; default: none are written")
    args = parser.parse_args(argv)
    if args.epochs < 1 or not 8 <= args.batch_size <= 1347:
        parser.error("--epochs must be at least 1 and --batch-size from 8 to 1347 (the training samples)")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Train, show, compare; 0 if the runs agree."""
    args, start = parse_args(argv), time.perf_counter()
    device = torch.device(args.device)
    if args.backend:
        GlobalBackendManager.set_gemm_backend(args.backend)
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    widths = "-".join(map(str, WIDTHS))
    print(f"digits, {widths}, {args.precision}, {place}, torch {torch.__version__}, seed {args.seed}")
    data = load_data(args.seed, device, DTYPES[args.precision])
    on_turbo, on_torch = build_learners(args, device)
    show_backends(args, data, on_turbo)
    tolerance = TOLERANCE[args.precision]
    faults = gradient_faults(gradients(args, data, on_turbo), gradients(args, data, on_torch), tolerance)
    sizes = train(args, data, (on_turbo, on_torch))

    turbo_curve, torch_curve = loss_points(on_turbo.losses, sizes), loss_points(on_torch.losses, sizes)
    accuracies = (on_turbo.accuracy(data.test_x, data.test_y), on_torch.accuracy(data.test_x, data.test_y))
    if all(map(math.isfinite, [*turbo_curve, *torch_curve])):
        print(f"\nTraining loss, T turbo, o torch, * both:\n{text_plot(turbo_curve, torch_curve)}")
    if args.output:
        write_files(args.output, turbo_curve, torch_curve)
    print(f"\ntest accuracy: turbo {accuracies[0]:.2%}, torch {accuracies[1]:.2%}")
    largest = max(differences(turbo_curve, torch_curve, tolerance))
    print(f"largest loss difference: {largest:.2f} of what rtol = atol = {tolerance:g} allows")
    faults += run_faults(turbo_curve, torch_curve, accuracies, tolerance)
    for fault in faults:
        print(f"FAIL: {fault}", file=sys.stderr)
    print(f"{'FAIL' if faults else 'PASS'} in {time.perf_counter() - start:.1f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnsupportedError as refusal:  # such as a backend that cannot run here
        sys.exit(f"FAIL: {refusal}")
