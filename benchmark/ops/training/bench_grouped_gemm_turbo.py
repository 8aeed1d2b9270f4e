# SPDX-License-Identifier: MIT
"""The grouped-gemm ops: correctness, then bytes a second, next to torch and torch.compile.

    python benchmark/ops/training/bench_grouped_gemm_turbo.py -o grouped-gemm.csv
    python benchmark/ops/training/bench_grouped_gemm_turbo.py --smoke

A rate counts the bytes that must move: each input read once and each output written once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "common")]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmark.common.machine import Machine, find_machine  # noqa: E402
from benchmark.common.results import format_table, write_csv  # noqa: E402
from benchmark.common.timing import Budget, measure  # noqa: E402
from turbo_grouped_gemm import scale_rows  # noqa: E402
from turbo_testing.cases import load  # noqa: E402
from turbo_testing.metrics import assert_close  # noqa: E402

cases = load("turbo-grouped-gemm", ROOT / "packages")
COLUMNS = [
    "Platform",
    "GPU",
    "Op",
    "Pass",
    "Rows",
    "Width",
    "Check",
    "Turbo ms",
    "Turbo GB/s",
    "torch ms",
    "compile ms",
]
MOVED = {"forward": 3, "backward": 3}  # tensors [rows, width]: x, residual and y; dy, x and dx


def gradients(function: Callable[..., Tensor], leaves: list[Tensor], dy: Tensor) -> tuple[Tensor, ...]:
    """y and the gradients of all leaves."""
    y = function(*leaves)
    return y, *torch.autograd.grad(y, leaves, dy)


def check(leaves: list[Tensor], dy: Tensor) -> str:
    """PASS, or what is wrong with an output or a gradient against float64."""
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    pairs = zip(gradients(scale_rows, leaves, dy), gradients(cases.scale_rows, wide, dy.double()), strict=True)
    try:
        for number, (found, expected) in enumerate(pairs):
            size = expected.abs().amax().clamp(min=1.0)
            assert_close(found.double() / size, expected / size, dtype=dy.dtype, what=f"tensor {number}")
    except AssertionError as error:
        print(error, file=sys.stderr)
        return "FAIL"
    return "PASS"


def timed(function: Callable[..., Tensor], leaves: list[Tensor], dy: Tensor, which: str) -> Callable[[int], object]:
    """One call of the pass."""
    if which == "forward":
        constants = [leaf.detach() for leaf in leaves]
        return lambda number: function(*constants)
    y = function(*leaves)
    return lambda number: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def rows_of(rows: int, width: int, machine: Machine, budget: Budget, peers: bool) -> list[dict[str, object]]:
    """The lines of one shape."""
    x, residual, dy = torch.randn(3, rows, width, device=machine.device, dtype=torch.bfloat16)
    scale = torch.rand(rows, device=machine.device)
    leaves = [x.requires_grad_(), scale.requires_grad_(), residual.requires_grad_()]
    verdict = check(leaves, dy)
    functions = {"Turbo": scale_rows, "torch": cases.scale_rows}
    if peers:
        functions["compile"] = torch.compile(cases.scale_rows)
    lines = []
    for which, tensors in MOVED.items():
        line: dict[str, object] = {"Platform": machine.platform, "GPU": machine.name, "Op": "scale_rows", "Pass": which}
        line |= {"Rows": rows, "Width": width, "Check": verdict}
        if verdict == "PASS":
            calls = {name: timed(function, leaves, dy, which) for name, function in functions.items()}
            for name, taken in measure(calls, machine.device, budget).items():
                line[f"{name} ms"] = taken.milliseconds
            line["Turbo GB/s"] = tensors * x.nbytes / float(str(line["Turbo ms"])) / 1e6
        lines.append(line)
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu, cuda:1, ...; default: the first GPU, else the CPU")
    parser.add_argument("--shape", action="append", help="ROWS,WIDTH in place of the usual ones; may be repeated")
    parser.add_argument("--seconds", type=float, default=0.3, help="longest time for one measurement")
    parser.add_argument("--smoke", action="store_true", help="a tiny shape, torch alone: does it work at all?")
    parser.add_argument("-o", "--output", type=Path, help="CSV, rewritten after each shape")
    options = parser.parse_args(arguments)
    machine = find_machine(options.device)
    shapes = [tuple(map(int, text.split(","))) for text in options.shape or ()] or cases.SHAPES
    lines: list[dict[str, object]] = []
    for rows, width in [(8, 128)] if options.smoke else shapes:
        budget = Budget(seconds=0.01 if options.smoke else options.seconds)
        lines += rows_of(rows, width, machine, budget, not options.smoke)
        if options.output is not None:
            write_csv(options.output, COLUMNS, lines)
    print(f"{machine.name}, {machine.platform}, torch {torch.__version__}")
    print(format_table(COLUMNS, lines))
    return 1 if any(line["Check"] != "PASS" for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
