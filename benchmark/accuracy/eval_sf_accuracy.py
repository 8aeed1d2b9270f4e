# SPDX-License-Identifier: MIT
"""Accuracy of elementary functions against float64: torch's, and those of our Triton kernels.

    python benchmark/accuracy/eval_sf_accuracy.py --dump recorded -o first.csv     # on one platform
    python benchmark/accuracy/eval_sf_accuracy.py --replay recorded -o second.csv  # on another, on the same inputs

Inputs are spread over the function's whole range, with zeros, infinities, NaN and numbers near overflow among them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "common")]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmark.accuracy.figures import FIGURES, figures  # noqa: E402
from benchmark.accuracy.options import DTYPES, add_recording_options, check_names  # noqa: E402
from benchmark.accuracy.recording import REPLAY_COLUMNS, Recording  # noqa: E402
from benchmark.common.machine import find_machine  # noqa: E402
from benchmark.common.results import format_table, write_csv  # noqa: E402
from turbo_core import why_no_triton  # noqa: E402
from turbo_testing import interpreter  # noqa: E402

SPECIALS = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-30, -1e-30, 88.7, -88.7, 11.0, 1e30)
COLUMNS = ["Platform", "GPU", "Function", "Library", "Dtype", "Elements", *FIGURES, *REPLAY_COLUMNS]
SHOWN = ["Function", "Library", "Dtype", "Max ULP", "Mean ULP", "Relative Error", "Wrong Specials"]


def _pow(x: Tensor) -> Tensor:
    """x^y for the pairs (first, second half)."""
    base, exponent = x.chunk(2)
    return base.pow(exponent)


# name -> torch's function, and the range from which inputs are drawn, uniformly or, if that is said, in the exponent
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], float, float, bool]] = {
    "exp": (torch.exp, -90.0, 90.0, False),
    "log": (torch.log, -120.0, 120.0, True),
    "sqrt": (torch.sqrt, -120.0, 120.0, True),
    "rsqrt": (torch.rsqrt, -120.0, 120.0, True),
    "sigmoid": (torch.sigmoid, -90.0, 90.0, False),
    "tanh": (torch.tanh, -12.0, 12.0, False),
    "erf": (torch.erf, -5.0, 5.0, False),
    "pow": (_pow, -8.0, 8.0, False),
}


def draw(name: str, dtype: torch.dtype, count: int, seed: int) -> Tensor:
    """Inputs of a function on the CPU, the special ones first; an even number of them."""
    _, low, high, in_exponent = FUNCTIONS[name]
    specials = torch.tensor(SPECIALS, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(count - len(specials), generator=generator, dtype=torch.float64) * (high - low) + low
    if in_exponent:
        numbers = numbers.exp2()
    return torch.cat([specials, numbers]).to(dtype)


def libraries(name: str, device: torch.device) -> dict[str, Callable[[Tensor], Tensor]]:
    """Who computes the function on this device."""
    found = {"torch": FUNCTIONS[name][0]}
    if why_no_triton(device) is None:
        interpreter.install_if_requested()  # Triton's own interpreter does not round bf16 to nearest
        from benchmark.accuracy import triton_functions

        if name in triton_functions.FUNCTIONS:
            found["triton"] = lambda x: triton_functions.apply(name, x)
    return found


def evaluate(name: str, dtype_name: str, args: argparse.Namespace, recording: Recording) -> list[dict]:
    """A row for each library that computes the function."""
    dtype, machine = DTYPES[dtype_name], recording.machine
    case = f"{name}_{dtype_name}"
    inputs = recording.inputs(case, lambda: {"x": draw(name, dtype, args.count, args.seed)})
    x = inputs["x"]
    exact = FUNCTIONS[name][0](x.double())
    results = {library: function(x) for library, function in libraries(name, machine.device).items()}
    recording.keep(case, inputs, results)
    return [
        {
            "Platform": machine.platform,
            "GPU": machine.name,
            "Function": name,
            "Library": library,
            "Dtype": dtype_name,
            "Elements": result.numel(),
            **figures(result, exact),
            **recording.compare(case, library, result),
        }
        for library, result in results.items()
    ]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--functions", default=",".join(FUNCTIONS), help="comma list; default all")
    add("--dtypes", default=",".join(DTYPES), help="comma list; default all")
    add("--count", type=int, default=1 << 20, help="inputs of each function (default 1048576)")
    add_recording_options(parser)
    add("--smoke", action="store_true", help="few inputs: shows that the tool works")
    args = parser.parse_args(argv)
    args.functions = check_names(parser, "functions", args.functions, list(FUNCTIONS))
    args.dtypes = check_names(parser, "dtypes", args.dtypes, list(DTYPES))
    if args.smoke:
        args.count = 2048
    if args.count < 2 * len(SPECIALS) or args.count % 2:
        parser.error(f"--count {args.count}: an even number from {2 * len(SPECIALS)} on is accepted")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate, print, write."""
    args = parse_args(argv)
    machine = find_machine(args.device)
    recording = Recording(machine, args.dump, args.replay)
    print(f"{machine.platform}, {machine.name}, torch {torch.__version__}, {args.count} inputs each")
    rows = [row for name in args.functions for dtype in args.dtypes for row in evaluate(name, dtype, args, recording)]
    print(format_table(SHOWN + (REPLAY_COLUMNS[1:] if args.replay else []), rows))
    if args.output:
        write_csv(args.output, COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
