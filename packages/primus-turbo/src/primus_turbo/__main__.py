# SPDX-License-Identifier: MIT
"""Command line: ``python -m primus_turbo demo``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from turbo_core.errors import UnsupportedError
from turbo_core.requirements import require_torch

PRECISIONS = {
    "fp32": "float32 throughout",
    "bf16": "bf16 weights and activations; a CPU without bf16 instructions is slower in it",
    "fp8": "as bf16, and the GEMMs of the blocks multiply E4M3 numbers, one scale a tensor",
    "mxfp8": "as bf16, and they multiply E4M3 numbers, one scale (a power of two) for 32 numbers",
    "mxfp4": "as bf16, and they multiply E2M1 numbers, one scale for 32 numbers",
}


def at_least_one(text: str) -> int:
    """A count in an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def demo(options: argparse.Namespace) -> int:
    """Run the demo; 1 when the models did not learn or agree, 2 when it could not begin."""
    try:
        require_torch()
        from primus_turbo.demo.command import run

        return run(options)
    except (ImportError, FileNotFoundError, UnsupportedError) as error:
        print(f"python -m primus_turbo demo: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    precisions = "\n".join(f"  {name:<6} {meaning}" for name, meaning in PRECISIONS.items())
    made = argparse.ArgumentParser(
        prog="python -m primus_turbo", description="The Turbo training operators behind one import."
    )
    commands = made.add_subparsers(title="commands")
    command = commands.add_parser(
        "demo",
        help="train a small language model on Turbo and on plain torch, and compare the two",
        description="Trains a small language model on the sources of the standard library, once on Turbo and once on\n"
        "plain torch from the same weights; fails if the two differ by more than rounding explains.",
        epilog=f"precisions, all of which run on a CPU too:\n{precisions}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=demo)
    add = command.add_argument
    add("--precision", choices=list(PRECISIONS), default="bf16", help="what Turbo computes in (default: bf16)")
    add("--steps", type=at_least_one, default=100, help="(default: 100)")
    add("--batch-size", type=at_least_one, default=8, help="(default: 8)")
    add("--context", type=at_least_one, default=64, help="bytes that the model sees (default: 64)")
    add("--layers", type=at_least_one, default=2, help="(default: 2)")
    add("--seed", type=int, default=0, help="of the weights and the batches (default: 0)")
    add("--device", help="such as cpu (default: a GPU if there is one)")
    # One: the operations are so small that threads wait for each other, on a busy machine most of the time.
    add("--threads", type=at_least_one, default=1, help="of the CPU; a larger model takes more (default: 1)")
    add("--plot", type=Path, metavar="FILE", help="PNG of the losses, where matplotlib is installed")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run a command; without one, print what there is. Returns the exit code."""
    commands = parser()
    options = commands.parse_args(arguments)
    if not hasattr(options, "run"):
        commands.print_help()
        print(
            "\nwhat was found on this machine, and which backend each operator would use: python -m turbo_core doctor"
        )
        return 0
    return int(options.run(options))


if __name__ == "__main__":
    raise SystemExit(main())
