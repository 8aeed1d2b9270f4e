# SPDX-License-Identifier: MIT
"""The demo from its options to its exit code."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from primus_turbo.demo import model, report, text
from primus_turbo.demo.training import Learner, show_backends, train
from turbo_core.errors import UnsupportedError

__all__ = ["run"]

NEXT = """what to try next:
  python -m primus_turbo demo --precision mxfp8        the GEMMs in FP8 with one scale for 32 numbers; fp8, mxfp4, fp32
  python -m primus_turbo demo --steps 400              longer; --layers, --context and --batch-size make it larger
  python -m turbo_core doctor                          what was found here, and which backend each operator would use
  python -c "import torch, turbo_core; turbo_core.explain('gemm', torch.empty(128, 64), torch.empty(64, 32))"
                                                       which backend serves one call, and why not the others
in a model of yours: `import primus_turbo.pytorch as turbo`, then turbo.modules.Linear in place of torch.nn.Linear"""


def find_device(name: str | None) -> torch.device:
    """The named device, else a GPU if there is one."""
    if name is None:
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:  # torch without CUDA raises the former
        raise UnsupportedError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from error


def place(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cpu":
        return f"CPU, --threads {torch.get_num_threads()}"
    return torch.get_device_module(device).get_device_name(device)


def batches(source: Tensor, options: argparse.Namespace, device: torch.device) -> Iterator[Tensor]:
    """Windows from random places, without end, the same for the same seed."""
    generator = torch.Generator().manual_seed(options.seed)
    while True:
        starts = torch.randint(len(source) - options.context, (options.batch_size,), generator=generator)
        yield text.windows(source, starts, options.context, device)


def show_losses(curves: dict[str, list[float]], picture: Path | None) -> None:
    """The curves in the terminal and, where a file is named, as a picture."""
    if all(loss < float("inf") for losses in curves.values() for loss in losses):  # neither NaN nor infinite
        print(f"\ntraining loss, T turbo, o torch, * both:\n{report.text_plot(curves['turbo'], curves['torch'])}\n")
    if picture:
        report.plot(picture, curves)


def run(options: argparse.Namespace) -> int:
    """Train on Turbo and on torch, show, compare; 0 if both learned and agree."""
    start = time.perf_counter()
    torch.set_num_threads(options.threads)
    device = find_device(options.device)
    train_text, held_out = text.read_text()
    models = model.build_models(options.precision, options.layers, options.context, options.seed)
    learners = {name: Learner(each, options.precision, device, options.steps) for name, each in models.items()}
    size = sum(weight.numel() for weight in learners["turbo"].weights)
    print(f"model: {size / 1e6:.2f} M parameters, {options.precision}, {place(device)}, torch {torch.__version__}")

    tokens = options.batch_size * options.context
    starts = torch.linspace(0, len(held_out) - options.context - 1, 8 * options.batch_size).long()
    unseen = [text.windows(held_out, some, options.context, device) for some in starts.split(options.batch_size)]
    gradient_band, loss_band = report.BANDS[options.precision]
    show_backends(learners["turbo"], unseen[0])
    if device.type == "cpu":
        print("  (TORCH is the reference in plain PyTorch, which serves on a CPU; on a GPU faster ones take over)")
    faults = report.gradient_faults(*(one.gradients(unseen[0]) for one in learners.values()), gradient_band)
    train(learners, batches(train_text, options, device), options.steps, tokens)

    validation = {name: learner.validation(unseen) for name, learner in learners.items()}
    curves = {name: learner.losses for name, learner in learners.items()}
    show_losses(curves, options.plot)
    print("validation, bits a byte: " + ", ".join(f"{name} {value:.3f}" for name, value in validation.items()))
    faults += report.run_faults(curves, validation, loss_band)
    for fault in faults:
        print(f"FAIL: {fault}", file=sys.stderr)
    print(f"{'FAIL' if faults else 'PASS'} in {time.perf_counter() - start:.1f} s")
    if not faults:
        print(f"\n{NEXT}")
    return 1 if faults else 0
