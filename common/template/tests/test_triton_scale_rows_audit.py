# SPDX-License-Identifier: MIT
"""Every kernel of the wheel, HIP and Triton, as gfx942 and gfx950 would run it: no spill, no scratch, LDS in bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not installed")

KERNELS = {"scale_rows_forward_kernel", "scale_rows_backward_kernel"}
# native: begin
HIP_KERNELS = {
    f"scale_rows_{which}_{dtype}_{access}"
    for which in ("forward", "backward")
    for dtype in ("bf16", "fp16", "fp32")
    for access in ("scalar", "vector")
}
# native: end


def audited(arch, *options):
    """The audit's rows, from a process of its own: this one's kernels belong to the interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "turbo_core", "audit", "--json", "--wheel", "turbo-template", "--arch", arch]
    result = subprocess.run([*command, *options], env=environment, capture_output=True, text=True)
    assert result.stdout, result.stderr[-3000:]
    return json.loads(result.stdout)


def check(rows):
    assert [(row["kernel"], row["failures"]) for row in rows if row["failures"]] == []
    assert {row["kernel"].split()[0] for row in rows if row["source"] == "Triton"} == KERNELS
    assert {row["kernel"] for row in rows if row["source"] == "HIP"} == HIP_KERNELS  # native only


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_audit(arch):
    check(audited(arch))


@pytest.mark.audit_full
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_audit_full(arch):
    check(audited(arch, "--full"))
