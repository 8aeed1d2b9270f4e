# SPDX-License-Identifier: MIT
"""What the accuracy tools have in common: their inputs, drawn on the CPU, and their options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["DISTRIBUTIONS", "DTYPES", "add_input_options", "add_recording_options", "check_names", "draw", "sizes"]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DISTRIBUTIONS = ("normal", "uniform", "outliers")
OUTLIER_SHARE, OUTLIER_FACTOR = 1e-3, 100.0


def draw(distribution: str, *sizes: int, generator: torch.Generator) -> Tensor:
    """Float32 numbers on the CPU, the same on every platform."""
    if distribution == "uniform":
        return torch.rand(sizes, generator=generator) * 2 - 1
    numbers = torch.randn(sizes, generator=generator)
    if distribution == "outliers":
        large = torch.rand(sizes, generator=generator) < OUTLIER_SHARE
        numbers = torch.where(large, numbers * OUTLIER_FACTOR, numbers)
    return numbers


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """What inputs are drawn from, and their dtype."""
    add = parser.add_argument
    add("--dtype", choices=sorted(DTYPES), default="bf16", help="of inputs and outputs")
    add("--inputs", choices=DISTRIBUTIONS, default="normal", help="what inputs are drawn from")
    add("--with-outliers", dest="inputs", action="store_const", const="outliers", help="--inputs outliers")
    add("--uniform-dist", dest="inputs", action="store_const", const="uniform", help="--inputs uniform")
    add("--backend", help="force a backend; default: Turbo's choice")


def add_recording_options(parser: argparse.ArgumentParser) -> None:
    """Seed, device, dump and replay, and where results go."""
    add = parser.add_argument
    add("--seed", type=int, default=0)
    folder = parser.add_mutually_exclusive_group()
    folder.add_argument("--dump", type=Path, help="folder to leave inputs and results in, for another platform")
    folder.add_argument("--replay", type=Path, help="folder to take inputs from, and results to compare with")
    add("-o", "--output", type=Path, help="CSV file")
    add("--device", help="default: the first GPU, else the CPU")


def check_names(parser: argparse.ArgumentParser, option: str, text: str, accepted: Sequence[str]) -> list[str]:
    """The names of a comma list, all of them known."""
    names = text.split(",")
    if unknown := [name for name in names if name not in accepted]:
        parser.error(f"--{option} {','.join(unknown)}: accepted are {', '.join(accepted)}")
    return names


def sizes(text: str, names: str, example: str) -> tuple[int, ...]:
    """A shape like ``4096,4096,4096`` under the names M,N,K."""
    try:
        found = tuple(map(int, text.split(",")))
    except ValueError:
        found = ()
    if len(found) != len(names.split(",")):
        raise SystemExit(f"--shape {text!r} must be {names}, like {example}")
    return found
