# SPDX-License-Identifier: MIT
"""turbo_sim.use: what it sets and puts back; refusals. No Triton here (see simulated/)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import turbo_sim
from turbo_sim.hip_library import hip

VARIABLE = "TURBO_HIP_LIBRARY"


def test_everything_is_put_back():
    before = os.environ.get(VARIABLE)
    assert turbo_sim.simulated() is None
    with turbo_sim.use("gfx942", checks=["race", "wait"], threads=1, seed=3, triton=False) as outer:
        assert turbo_sim.simulated() == outer.arch == "gfx942" and os.environ[VARIABLE] == turbo_sim.library_path()
        assert hip().settings["checks"] == "race,wait" and hip().settings["seed"] == "3"
        with turbo_sim.use("gfx950", checks=False, triton=False):
            assert turbo_sim.simulated() == "gfx950" and hip().settings["arch"] == "gfx950"
        assert hip().settings["arch"] == "gfx942" and hip().settings["checks"] == "race,wait"
    assert turbo_sim.simulated() is None and os.environ.get(VARIABLE) == before
    assert hip().settings["checks"] == "all" and hip().settings["seed"] == "0"


def test_put_back_after_an_error():
    with pytest.raises(KeyError):
        with turbo_sim.use("gfx942", triton=False):
            raise KeyError("user's")
    assert turbo_sim.simulated() is None and VARIABLE not in os.environ


def test_turbo_core_reports_the_arch():
    device = pytest.importorskip("turbo_core.device", reason="turbo-core is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    assert device.device_facts("cpu").arch == "cpu"
    with turbo_sim.use("gfx950", triton=False):
        assert device.device_facts("cpu").arch == "gfx950"
    assert device.device_facts("cpu").arch == "cpu"


BAD = [
    dict(arch="gfx90a"),
    dict(arch="gfx950", checks=["all"]),
    dict(arch="gfx950", findings="ignore"),
    dict(arch="gfx950", bounds="none"),
]


@pytest.mark.parametrize("arguments", BAD)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError):
        with turbo_sim.use(**arguments, triton=False):
            pass
    assert turbo_sim.simulated() is None


def test_the_interpreter_is_refused_in_words(monkeypatch):
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set.*process without it"):
        with turbo_sim.use("gfx950", triton=True):
            pass
    with turbo_sim.use("gfx950"):  # HIP kernels only
        pass


def test_import_is_light():
    program = (
        "import sys, turbo_sim; print([m for m in ('torch', 'triton', 'numpy', 'turbo_core') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ})
    assert run.stdout.strip() == "[]", run.stderr
