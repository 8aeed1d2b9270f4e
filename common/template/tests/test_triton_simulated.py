# SPDX-License-Identifier: MIT
"""The machine code of gfx942 and gfx950: the tests marked `simulated`, on the simulator.

In a process of its own, without Triton's interpreter: `nox -s test-gfx950` runs them in the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("turbo_sim", reason="turbo-sim is not installed")
from turbo_sim.triton_driver import interpreting


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_simulated(arch, pytestconfig):
    if not interpreting():
        pytest.skip("Triton's interpreter is off here: run with --simulate")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment |= {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    tests = str(Path(__file__).with_name("test_scale_rows.py"))
    options = ["-q", "-p", "no:cacheprovider", "-c", str(pytestconfig.inipath), "--rootdir", str(pytestconfig.rootpath)]
    command = [sys.executable, "-m", "pytest", *options, "--simulate", arch, "-m", "simulated", "-k", "triton", tests]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout and "skipped" not in run.stdout, run.stdout[-2000:]
