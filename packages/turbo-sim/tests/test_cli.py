# SPDX-License-Identifier: MIT
"""The commands: info, run, profile."""

from __future__ import annotations

import json

import numpy as np
import pytest
from elf_kernels import code_object, why_no_linker
from test_hip_library import ADD_ONE, ARGS, NO_WAIT

from turbo_sim.arguments import parse
from turbo_sim.cli import main
from turbo_sim.testing import why_no_assembler

REASON = why_no_assembler() or why_no_linker()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture
def files(tmp_path):
    for name, text in (("good", ADD_ONE), ("bad", NO_WAIT), ("odd", "ds_append v1\n" + ADD_ONE)):
        (tmp_path / f"{name}.hsaco").write_bytes(code_object(text, "gfx950", "kernel", ARGS))
    np.save(tmp_path / "x.npy", np.arange(64, dtype=np.int32))
    return tmp_path


def test_run_writes_results(files, capsys):
    arguments = ["--arg", f"inout:{files}/x.npy:{files}/y.npy", "--arg", "u32:7"]
    assert main(["run", f"{files}/good.hsaco", *arguments]) == 0
    assert np.load(files / "y.npy").tolist() == list(range(7, 71))
    assert "0 findings" in capsys.readouterr().out


def test_run_reports_findings(files, capsys):
    arguments = ["--arg", f"in:{files}/x.npy", "--arg", "u32:7"]
    assert main(["run", f"{files}/bad.hsaco", *arguments]) == 1
    assert "v2 is read before" in capsys.readouterr().out
    assert main(["run", f"{files}/bad.hsaco", *arguments, "--checks", "bounds"]) == 0
    assert main(["run", f"{files}/good.hsaco", "--arg", "zeros:u8[252]", "--arg", "u32:7", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.split("\n", 2)[2])["findings"]


def test_profile(files, capsys):
    arguments = ["--arg", "random:f32[64]:1", "--arg", "u32:7"]
    assert main(["profile", f"{files}/good.hsaco", *arguments]) == 0
    table = capsys.readouterr().out
    for text in (
        "model, not a measurement",
        "wave-instructions",
        "lower bound",
        "hot instructions",
        "global_load_dword v2",
    ):
        assert text in table
    assert main(["profile", f"{files}/good.hsaco", *arguments, "--json"]) == 0
    (p,) = json.loads(capsys.readouterr().out)
    assert p["wave_instructions"] == 9 and p["vmem_load_bytes"] == 256


def test_info(files, capsys):
    assert main(["info", f"{files}/good.hsaco"]) == 0
    out = capsys.readouterr().out
    assert "gfx950" in out and "global_buffer" in out and "every instruction can be simulated" in out
    assert main(["info", f"{files}/odd.hsaco"]) == 1
    assert "ds_append" in capsys.readouterr().out


def test_errors_are_one_line(files, capsys):
    for arguments in (
        ["run", f"{files}/missing.hsaco"],
        ["run", f"{files}/good.hsaco", "--arg", "u32:1"],
        ["run", f"{files}/good.hsaco", "-k", "other"],
        ["run", f"{files}/odd.hsaco", "--arg", "zeros:u8[256]", "--arg", "u32:1"],
        ["info", f"{files}/x.npy"],
    ):
        assert main(arguments) == 2
        assert capsys.readouterr().err.startswith("turbo-sim: ")


@pytest.mark.parametrize("text", ["i33:1", "zeros:f32", "random:f31[4]", "out:y.npy", "nothing"])
def test_arguments_that_are_not_understood(text):
    with pytest.raises(ValueError):
        parse(text)
