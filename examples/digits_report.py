# SPDX-License-Identifier: MIT
"""Comparing and showing the two runs of `train_digits`.

The runs agree when all of this holds, with a tolerance of 1e-2 for bf16 and 2e-3 for fp32:

* For the first batch, when the weights are still the same, the gradient of every parameter has a relative L2
  difference within the tolerance. (Measured on a CPU over 60 seeds: at most 7e-4 in bf16, 2e-7 in fp32.)
* Every point of the loss curve (the mean over at least 128 consecutive samples) agrees within rtol = atol = the
  tolerance. Two correct bf16 GEMMs may round a result to neighbouring values, 2**-8 apart, so the runs drift apart
  by themselves; at the learning rate of the example, which keeps the descent smooth, the drift took at most 0.2 of
  the tolerance (CPU, 30 seeds, 220 steps), while weight gradients wrong by 2 % take 1.6 times of it or more. Single
  steps of a few samples are not points: their loss moves by more when one sample changes sides.
* The test accuracies are within one percentage point.
* The loss fell: two models that learn nothing agree too.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

TOLERANCE = {"bf16": 1e-2, "fp32": 2e-3}  # of gradients (relative) and loss points (rtol and atol)
ACCURACY_TOLERANCE = 0.01
POINT_SAMPLES = 128


def loss_points(losses: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """The loss curve: means over consecutive steps that hold at least `POINT_SAMPLES` samples together."""
    points: list[float] = []
    total, samples = 0.0, 0
    for loss, size in zip(losses, sizes, strict=True):
        total, samples = total + loss * size, samples + size
        if samples >= POINT_SAMPLES:
            points.append(total / samples)
            total, samples = 0.0, 0
    return points


def differences(turbo_curve: Sequence[float], torch_curve: Sequence[float], tolerance: float) -> list[float]:
    """Distance of the curves, point by point, as a share of what is allowed; NaN counts as infinitely far."""
    shares = [abs(a - b) / (tolerance + tolerance * abs(b)) for a, b in zip(turbo_curve, torch_curve, strict=True)]
    return [share if math.isfinite(share) else math.inf for share in shares]


def run_faults(
    turbo_curve: Sequence[float],
    torch_curve: Sequence[float],
    accuracies: tuple[float, float],
    tolerance: float,
) -> list[str]:
    """What is wrong with the two runs, in words; empty when they agree."""
    faults = []
    shares = differences(turbo_curve, torch_curve, tolerance)
    worst = max(range(len(shares)), key=shares.__getitem__)
    if shares[worst] > 1:
        outside = [i for i, share in enumerate(shares) if share > 1]
        faults.append(
            f"{len(outside)} of {len(shares)} loss points differ by more than rtol = atol = {tolerance:g}, "
            f"the first at point {outside[0]}; the worst is point {worst}: "
            f"turbo {turbo_curve[worst]:.5f}, torch {torch_curve[worst]:.5f}"
        )
    if not abs(accuracies[0] - accuracies[1]) <= ACCURACY_TOLERANCE:
        faults.append(f"test accuracies differ by more than 1 %: turbo {accuracies[0]:.2%}, torch {accuracies[1]:.2%}")
    if len(torch_curve) > 1 and not torch_curve[-1] < torch_curve[0]:
        faults.append(
            f"nothing was learned, so nothing is shown: "
            f"torch's loss went from {torch_curve[0]:.4f} to {torch_curve[-1]:.4f}"
        )
    return faults


def write_files(folder: Path, turbo_curve: Sequence[float], torch_curve: Sequence[float]) -> None:
    """``loss.csv`` always, ``loss.png`` where matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "loss.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["point", "turbo", "torch"])
        writer.writerows(zip(range(len(torch_curve)), turbo_curve, torch_curve, strict=True))
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"wrote {folder / 'loss.csv'} (no loss.png: matplotlib is not installed)")
        return
    axes = (figure := Figure(figsize=(7, 4), layout="constrained")).subplots()
    axes.semilogy(torch_curve, label="torch.nn.Linear", linewidth=3, alpha=0.5)
    axes.semilogy(turbo_curve, label="turbo.modules.Linear", linewidth=1)
    axes.set(xlabel="loss point", ylabel="training loss")
    axes.legend()
    figure.savefig(folder / "loss.png", dpi=120)
    print(f"wrote {folder / 'loss.csv'} and {folder / 'loss.png'}")
