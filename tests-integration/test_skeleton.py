# SPDX-License-Identifier: MIT
"""Every wheel has the one skeleton that tools/monorepo.py describes, and the check sees each departure from it."""

import re

import pytest

from tools.monorepo import ALLOWED_ARROWS, PACKAGES, Wheel, skeleton_problems, wheels
from tools.new_wheel import render


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
    "no tests": (lambda w: (w.path / "tests/test_smoke.py").unlink(), "tests/ holds no test_"),
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


@pytest.mark.parametrize("name", EDITS)
def test_a_wrong_field_is_found(example, name):
    old, new, message = EDITS[name]
    path = example.path / "pyproject.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1) if name != "another author" else text.replace(old, new))
    problems = skeleton_problems(Wheel(example.path))
    assert any(re.search(re.escape(message), problem) for problem in problems), problems
