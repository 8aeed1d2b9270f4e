# SPDX-License-Identifier: MIT
"""How long builds take on this machine: `python -m tools.build_times`, a table for CONTRIBUTING.md.

Caches and build folders are new ones, so the first build of each kind finds nothing. Those of pip are isolated: what
they download counts. Needs what tools.wheelhouse needs.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tools.monorepo import ROOT, wheels

LEFT_OUT = ("build", "dist", "__pycache__")


class Took(NamedTuple):
    """Seconds of the clock and of the processor."""

    clock: float
    processor: float


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(command: list[str], cache: Path, **variables: str) -> Took:
    """Runs the command in the root of the repository, or stops this program with its output."""
    environment = {key: value for key, value in os.environ.items() if key not in ("GPU_ARCHS", "MAX_JOBS")}
    environment |= {"TURBO_BUILD_CACHE": str(cache)} | variables
    before, started = processor_seconds(), time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return Took(time.monotonic() - started, processor_seconds() - before)


def show_times(folder: Path) -> None:
    """A line for each build, when it is done."""
    for name in ("csrc-common", "packages/turbo-gemm"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--target"]
    names = [wheel.name for wheel in wheels() if wheel.name != "turbo-sim"]  # a tool for developers
    wheelhouse = [sys.executable, "-m", "tools.wheelhouse"]

    def install(target: str, cache: str, **variables: str) -> Took:
        """As a user does: isolated, with build requirements from the index."""
        return measure([*pip, str(folder / target), str(folder / "packages/turbo-gemm")], folder / cache, **variables)

    def show(text: str, took: Took) -> None:
        print(f"{text:<60}{took.clock:>8.0f} s{took.processor:>8.0f} s", flush=True)

    print(f"{'':<60}{'clock':>10}{'processor':>10}")
    show("pip install packages/turbo-gemm", install("first", "one"))
    shutil.rmtree(folder / "packages/turbo-gemm/build", ignore_errors=True)
    show("the same again, in a build folder that is empty", install("second", "one"))
    show("GPU_ARCHS=none pip install packages/turbo-gemm", install("third", "one", GPU_ARCHS="none"))
    every = f"nox -s build, of all {len(names)} wheels but turbo-sim"
    show(every, measure([*wheelhouse, str(folder / "a"), *names], folder / "all"))
    show("the same again", measure([*wheelhouse, str(folder / "b"), *names], folder / "all"))


def main() -> int:
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?")
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores ({model.split(':')[-1].strip()}), load {load:.1f} before")
    with tempfile.TemporaryDirectory(prefix="turbo-build-times-") as folder:
        show_times(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
