# SPDX-License-Identifier: MIT
"""Tests that run Triton kernels on the simulator. They need a process without Triton's interpreter:

    TRITON_INTERPRET=0 pytest packages/turbo-sim/tests/simulated

In a run with the interpreter on, which is what the repository's plugin does on a CPU, they are not collected here;
../test_simulated.py runs them in a process of their own.
"""

from __future__ import annotations

import os

import pytest

_ON = ("1", "true", "on", "yes", "y")
if os.environ.get("TRITON_INTERPRET", "0").lower() in _ON:
    collect_ignore_glob = ["test_*.py"]
else:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("triton", reason="triton is not installed")
    from turbo_sim.pytest_plugin import gfx942, gfx950, simulator  # noqa: F401  (also where the wheel is not installed)
