# SPDX-License-Identifier: MIT
"""Comparing and showing the demo's two runs. Losses are in bits a byte: 8 is guessing.

The model on Turbo and its twin on plain torch agree when all of this holds; `BANDS` has the numbers by precision:

* For a batch before training, when the weights are still the same, the gradient of every parameter has a relative L2
  difference within the first number. (An optimiser that divides by the gradient's size hides a wrong scale in it.)
* Every point of the training curve (the mean over ten steps) and the validation loss agree within the second number.
* The loss fell: two models that learn nothing agree too.

The twin is bf16 where Turbo multiplies FP8 or FP4 numbers, so those bands allow for the quantisation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

__all__ = ["BANDS", "gradient_faults", "mean", "plot", "run_faults", "text_plot"]

BANDS = {"fp32": (1e-4, 0.01), "bf16": (2e-2, 0.03), "fp8": (0.2, 0.05), "mxfp8": (0.2, 0.05), "mxfp4": (0.6, 0.2)}
POINT_STEPS = 10
LEAST_FALL = 0.05


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def points(losses: Sequence[float]) -> list[float]:
    """The loss curve: means over ten steps, the last of what is left over."""
    return [mean(losses[at : at + POINT_STEPS]) for at in range(0, len(losses), POINT_STEPS)]


def gradient_faults(
    turbo_gradients: Mapping[str, Tensor], torch_gradients: Mapping[str, Tensor], tolerance: float
) -> list[str]:
    """Which gradients of the first batch differ by too much, in words; empty when none do."""
    if turbo_gradients.keys() != torch_gradients.keys():
        return [f"gradients exist for {sorted(turbo_gradients)} on turbo, for {sorted(torch_gradients)} on torch"]
    faults, errors = [], {}
    for name, expected in torch_gradients.items():
        difference = turbo_gradients[name].double() - expected.double()
        errors[name] = (difference.norm() / expected.double().norm()).item()
        if not errors[name] <= tolerance:
            faults.append(f"gradient of {name}: relative difference {errors[name]:.2e}, allowed is {tolerance:g}")
    worst = max(errors, key=errors.__getitem__)
    print(
        f"gradients of the first batch: largest relative difference {errors[worst]:.1e} ({worst}); "
        f"allowed is {tolerance:g}"
    )
    return faults


def _apart(a: float, b: float) -> float:
    """The distance; infinite where one is NaN or infinite."""
    return abs(a - b) if math.isfinite(a - b) else math.inf


def run_faults(curves: Mapping[str, Sequence[float]], validation: Mapping[str, float], band: float) -> list[str]:
    """What is wrong with the runs, in words; empty when they learned and agree."""
    faults = [
        f"{name} learned nothing: {losses[0]:.3f} bits a byte at first, {validation[name]:.3f} at the end"
        for name, losses in curves.items()
        if not validation[name] < losses[0] - LEAST_FALL
    ]
    in_training = max(map(_apart, points(curves["turbo"]), points(curves["torch"])))
    at_the_end = _apart(validation["turbo"], validation["torch"])
    what = f"bits a byte apart: training up to {in_training:.4f}, validation {at_the_end:.4f}"
    print(f"turbo and torch, {what}; allowed is {band:g}")
    if max(in_training, at_the_end) > band:
        faults.append(f"turbo and torch are more than {band:g} {what}")
    return faults


def text_plot(turbo_curve: Sequence[float], torch_curve: Sequence[float], width: int = 72, height: int = 12) -> str:
    """Both curves over the training, logarithmic in the loss: T turbo, o torch, * both in one place."""
    columns = min(width, len(torch_curve))
    picks = [round(i * (len(torch_curve) - 1) / max(1, columns - 1)) for i in range(columns)]
    logs = [[math.log10(max(curve[i], 1e-6)) for i in picks] for curve in (turbo_curve, torch_curve)]
    low, high = min(map(min, logs)), max(map(max, logs))
    span = max(high - low, 0.01)
    grid = [[" "] * columns for _ in range(height)]
    for mark, values in zip("To", logs, strict=True):
        for column, value in enumerate(values):
            row = round((high - value) / span * (height - 1))
            grid[row][column] = mark if grid[row][column] == " " else "*"
    labels = [10 ** (high - span * row / (height - 1)) for row in range(height)]
    body = "\n".join(f"{label:9.4f} |{''.join(cells)}" for label, cells in zip(labels, grid, strict=True))
    return f"{body}\n{'':9} +{'-' * columns}  {len(torch_curve)} points"


def plot(path: Path, curves: Mapping[str, Sequence[float]]) -> None:
    """The loss curves as a picture, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{path} is not written: matplotlib is not installed")
        return
    axes = (figure := Figure(figsize=(7, 4), layout="constrained")).subplots()
    for name, losses in curves.items():
        width, opacity = (4, 0.4) if name == "torch" else (1, 1)  # the two lie on each other where all is well
        axes.plot(losses, label=name, linewidth=width, alpha=opacity)
    axes.set(xlabel="step", ylabel="training loss, bits a byte")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")
