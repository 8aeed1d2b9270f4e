# SPDX-License-Identifier: MIT
"""Importing a wheel loads little and needs no framework, no GPU, no git and no particular working directory."""

import os
import re
import subprocess
import sys

import pytest

from tools.monorepo import wheels

HEAVY = {"torch", "triton", "jax", "numpy", "aiter", "flash_attn", "deep_ep"}
MOST_MODULES = 220  # turbo-core's parts of the standard library are 130 of them

every_wheel = pytest.mark.parametrize("wheel", wheels(), ids=lambda wheel: wheel.name)


def run(code: str, cwd, *options: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRITON"))}
    environment["PATH"] = str(cwd)  # nothing to call: no git, no rocm-smi, no compiler
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


@every_wheel
def test_importtime_shows_no_framework(wheel, tmp_path):
    done = run(f"import {wheel.import_name}", tmp_path, "-X", "importtime")
    assert done.returncode == 0, done.stderr
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert wheel.import_name in imported
    assert not {name.split(".")[0] for name in imported} & HEAVY


def test_importtime_would_show_a_framework(tmp_path):
    done = run("import numpy", tmp_path, "-X", "importtime")
    assert re.search(r"\| *numpy$", done.stderr, re.M)


@every_wheel
def test_import_loads_little(wheel, tmp_path):
    """A count, which the machine's load does not change: numpy alone is some 150 modules, torch more than 1000."""
    code = f"import sys; before = set(sys.modules)\nimport {wheel.import_name}\nprint(len(set(sys.modules) - before))"
    assert 0 < int(run(code, tmp_path).stdout) < MOST_MODULES


@every_wheel
def test_import_touches_no_device_and_starts_no_process(wheel, tmp_path):
    code = f"""
import sys
def hook(event, arguments):
    if event in ("subprocess.Popen", "os.system", "os.posix_spawn", "os.fork", "socket.connect"):
        raise RuntimeError(f"import started {{event}} {{arguments}}")
    if event == "open" and str(arguments[0]).startswith(("/dev/kfd", "/dev/dri", "/dev/nvidia")):
        raise RuntimeError(f"import opened {{arguments[0]}}")
sys.addaudithook(hook)
import {wheel.import_name}
"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_torch_alone_is_enough_for_the_front_end(tmp_path):
    """No triton, aiter or flash-attn: importing the ops works and the reference serves the call."""
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"triton", "aiter", "flash_attn", "deep_ep"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
import torch
import primus_turbo.pytorch as turbo
a = torch.randn(4, 8)
assert torch.allclose(turbo.ops.gemm(a, a, trans_b=True), a @ a.T, atol=1e-5)
print("served")
"""
    done = run(code, tmp_path)
    assert done.stdout.strip() == "served", done.stderr
