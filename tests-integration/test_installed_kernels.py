# SPDX-License-Identifier: MIT
"""`python -m turbo_core audit` on the wheels that are installed: every wheel, both architectures, Triton and HIP.

The wheels' own tests compile all the Triton kernels of its short form, one architecture at a time; here the first one
of each wheel stands for them, and all of them with --full.
"""

import json
import os
import subprocess
import sys

import pytest

from turbo_core.audit import ARCHS, ENTRY_POINT_GROUP
from turbo_core.installed import entry_points

PROGRAM = """
import sys
from turbo_core import __main__, audit

def first(kernels):
    def listed(arch, full):
        found = list(kernels(arch, full))
        triton = [kernel for kernel in found if isinstance(kernel, audit.TritonKernel)]
        return [kernel for kernel in found if kernel not in triton[1:]]
    return listed

found = audit.find_kernels()
audit.find_kernels = lambda: {wheel: first(kernels) for wheel, kernels in found.items()}
sys.exit(__main__.main(["audit", "--json"]))
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(["-c", PROGRAM], id="first kernels"),
        pytest.param(["-m", "turbo_core", "audit", "--json"], id="all", marks=pytest.mark.full),
    ],
)
def test_the_audit_passes(program):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("triton", reason="triton is not installed")
    done = subprocess.run(
        [sys.executable, *program],
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
