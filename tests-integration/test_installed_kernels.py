# SPDX-License-Identifier: MIT
"""`python -m turbo_core audit` on the wheels that are installed, in its short form: every wheel, both architectures.

The tests of the wheels compile the same Triton kernels one architecture at a time; Triton's cache makes this one cheap.
"""

import json
import os
import subprocess
import sys

import pytest

from turbo_core.audit import ARCHS, ENTRY_POINT_GROUP
from turbo_core.installed import entry_points


def test_the_audit_passes():
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("triton", reason="triton is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "turbo_core", "audit", "--json"],
        env={**os.environ, "TRITON_INTERPRET": "0"},  # the interpreter replaces the compiler
        capture_output=True,
        text=True,
    )
    rows = json.loads(done.stdout or "[]")
    failed = [f"{row['wheel']} {row['kernel']} {row['arch']}: {row['failures']}" for row in rows if row["failures"]]
    assert failed == []
    assert done.returncode == 0, done.stderr
    wheels = entry_points(ENTRY_POINT_GROUP)
    assert len(wheels) >= 4
    found = {(row["wheel"], row["source"], row["arch"]) for row in rows}
    assert found >= {(wheel, "Triton", arch) for wheel in wheels for arch in ARCHS}
    native = {(wheel, arch) for wheel, source, arch in found if source == "HIP"}
    assert {wheel for wheel, arch in native} == set(wheels), "a wheel was installed without its HIP kernels"
