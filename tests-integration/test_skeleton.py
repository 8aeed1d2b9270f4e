# SPDX-License-Identifier: MIT
"""Every wheel has the one skeleton that tools/monorepo.py describes, and the check sees each departure from it."""

import importlib
import re
from types import SimpleNamespace

import pytest

from tools.monorepo import ALLOWED_ARROWS, PACKAGES, WITHOUT_OPS, Wheel, skeleton_problems, wheels
from tools.new_wheel import render
from turbo_testing.training.matrix import load_training_cases


@pytest.mark.parametrize("wheel", wheels(), ids=lambda wheel: wheel.name)
def test_wheel_has_the_skeleton(wheel):
    assert skeleton_problems(wheel) == []


def test_every_folder_is_a_planned_wheel():
    folders = {path.name for path in PACKAGES.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders == {wheel.name for wheel in wheels()}, "a folder under packages/ without a pyproject.toml"
    assert folders <= set(ALLOWED_ARROWS), "write new wheels down in ALLOWED_ARROWS of tools/monorepo.py"


DEPARTURES = {
    "no README": (lambda w: (w.path / "README.md").unlink(), "README.md is missing"),
    "no changelog": (lambda w: (w.path / "CHANGELOG.md").unlink(), "CHANGELOG.md is missing"),
    "no licence": (lambda w: (w.path / "LICENSE").unlink(), "LICENSE is missing"),
    "another licence": (lambda w: (w.path / "LICENSE").write_text("yours\n"), "LICENSE differs"),
    "no py.typed": (lambda w: (w.source / "py.typed").unlink(), "py.typed is missing"),
    "no smoke test": (lambda w: (w.path / "tests/smoke.py").unlink(), "tests/smoke.py is missing"),
    "no matrix": (lambda w: (w.path / "tests/test_training_matrix.py").unlink(), "test_training_matrix.py is missing"),
    "no training cases": (lambda w: (w.path / "tests/training_cases.py").unlink(), "training_cases.py is missing"),
    "no __init__": (
        lambda w: (w.source / "pytorch/ops/__init__.py").rename(w.source / "pytorch/ops/x.py"),
        "ops/__init",
    ),
    "a second import": (lambda w: (w.path / "src/other").mkdir(), "alone"),
}
EDITS = {
    "torch required": ('dependencies = ["turbo-core', 'dependencies = ["torch>=2.6", "turbo-core', "is a requirement"),
    "triton required": ('dependencies = ["turbo-core', 'dependencies = ["Triton", "turbo-core', "is a requirement"),
    "no torch extra": ('torch = ["torch>=2.6"]', "", "extra 'torch'"),
    "another triton": ("triton>=3.4", "triton>=3.5", "extra 'triton'"),
    "another python": ('">=3.10"', '">=3.9"', "requires-python"),
    "dynamic version": ('version = "0.1.0"', 'dynamic = ["version"]', "not static"),
    "version without changes": ('version = "0.1.0"', 'version = "0.2.0"', "says nothing of 0.2.0"),
    "another name": ('name = "turbo-foo"', 'name = "turbo-bar"', "project.name"),
    "another author": ("The Turbo authors", "Someone", "authors"),
    "another backend": ("hatchling.build", "setuptools.build_meta", "build-backend"),
}


@pytest.fixture
def example(tmp_path) -> Wheel:
    wheel = render("turbo-foo", tmp_path)
    assert skeleton_problems(wheel) == []
    return wheel


@pytest.mark.parametrize("name", DEPARTURES)
def test_a_departure_is_found(example, name):
    depart, message = DEPARTURES[name]
    depart(example)
    problems = skeleton_problems(Wheel(example.path))
    assert len(problems) == 1 and message in problems[0], problems


def test_a_wheel_without_tests_is_found(example):
    for path in (example.path / "tests").glob("test_*.py"):
        path.unlink()
    assert any("tests/ holds no test_*.py" in problem for problem in skeleton_problems(Wheel(example.path)))


@pytest.mark.parametrize("name", EDITS)
def test_a_wrong_field_is_found(example, name):
    old, new, message = EDITS[name]
    path = example.path / "pyproject.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1) if name != "another author" else text.replace(old, new))
    problems = skeleton_problems(Wheel(example.path))
    assert any(re.search(re.escape(message), problem) for problem in problems), problems


# --- the matrix of training loops -------------------------------------------------------------------------------------

OF_OPS = [wheel for wheel in wheels() if wheel.name not in WITHOUT_OPS]


def unlisted(public: list[str], entry_points: set[str], cases) -> list[str]:
    """Public names of a wheel that its training_cases.py neither lists nor explains, and names that are not public."""
    listed = {case.name for case in (*cases.OPS, *cases.MODULES)}
    problems = [f"{name} is not listed" for name in public if name not in listed | set(cases.NOT_OPS)]
    problems += [f"{name} is an op by its entry point and not listed" for name in sorted(entry_points - listed)]
    return problems + [f"{name} is not public" for name in sorted((listed | set(cases.NOT_OPS)) - set(public))]


@pytest.mark.parametrize("wheel", OF_OPS, ids=lambda wheel: wheel.name)
def test_every_op_goes_through_the_matrix_of_training_loops(wheel):
    pytest.importorskip("torch")
    cases = load_training_cases(wheel.path / "tests")
    public = list(importlib.import_module(wheel.import_name).__all__)
    points = set(wheel.project.get("entry-points", {}).get("turbo_core.ops", {}))
    assert unlisted(public, points, cases) == []
    test = (wheel.path / "tests" / "test_training_matrix.py").read_text()
    assert "test_op = op_matrix(__file__)" in test and "test_module = module_matrix(__file__)" in test


def test_an_op_that_is_not_listed_is_found():
    class Cases:
        OPS, MODULES, NOT_OPS = (
            [SimpleNamespace(name="gemm"), SimpleNamespace(name="old")],
            [],
            {"check": "reads sizes"},
        )

    assert unlisted(["gemm", "check", "Linear"], {"gemm", "gemm_fp8"}, Cases) == [
        "Linear is not listed",
        "gemm_fp8 is an op by its entry point and not listed",
        "old is not public",
    ]
