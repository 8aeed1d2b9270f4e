# SPDX-License-Identifier: MIT
"""The benchmark of norms and activations runs on tiny shapes, and does not time what is wrong."""

import csv
import dataclasses
import importlib

import pytest

pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def bench():
    return importlib.import_module("benchmark.ops.training.bench_norm_act_turbo")


def test_smoke(bench, tmp_path, capsys):
    path = tmp_path / "out.csv"
    assert bench.main(["--smoke", "--device", "cpu", "-o", str(path)]) == 0
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["Op"], row["Pass"]) for row in rows] == [
        (op, which) for op in bench.OPS for which in ("forward", "backward")
    ]
    assert all(row["Check"] == "PASS" and float(row["Turbo ms"]) > 0 for row in rows)
    assert "geometric mean" in capsys.readouterr().out


def test_what_is_wrong_is_not_timed(bench, monkeypatch, capsys):
    op = bench.OPS["swiglu"]
    wrong = dataclasses.replace(op, turbo=lambda gate, up: op.turbo(gate, up) * 1.1)
    monkeypatch.setitem(bench.OPS, "swiglu", wrong)
    assert bench.main(["--smoke", "--device", "cpu", "--ops", "swiglu"]) == 1
    text = capsys.readouterr()
    assert "FAIL" in text.out and "are wrong" in text.err


def test_bytes_that_must_move(bench):
    """Counted by hand: rmsnorm reads x and writes y; backward reads x and dy and writes dx; and so on."""
    counts = {name: (op.tensors("forward"), op.tensors("backward")) for name, op in bench.OPS.items()}
    assert counts == {
        "rmsnorm": (2, 3),
        "rmsnorm_residual": (4, 4),
        "layernorm": (2, 3),
        "swiglu": (3, 5),
        "geglu": (3, 5),
    }
