# SPDX-License-Identifier: MIT
"""Runs simulated/ in a process without Triton's interpreter when this one has it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from turbo_sim.triton_driver import interpreting

FOLDER = Path(__file__).parent / "simulated"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))


@pytest.mark.parametrize("file", FILES)
def test_in_a_process_of_its_own(file, request):
    if not interpreting():
        pytest.skip("Triton's interpreter is off here: simulated/ is collected directly")
    for name in ("torch", "triton"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    environment["TRITON_INTERPRET"] = "0"
    full = ["--full"] if request.config.getoption("--full", False) else []
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *full, str(FOLDER / file)],
        env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    print(run.stdout[-6000:], run.stderr[-2000:])
    assert run.returncode in (0, 5), f"{file} failed in its own process"
    last = run.stdout.strip().splitlines()[-1]
    if " passed" not in last:
        pytest.skip(f"{file}: {last}")
