# SPDX-License-Identifier: MIT
"""`nox -s new-wheel` makes a wheel that has the skeleton, builds, imports and passes its own tests."""

import os
import subprocess
import sys
import zipfile

import pytest

from tools import wheelhouse
from tools.monorepo import ROOT, skeleton_problems
from tools.new_wheel import main, render


@pytest.fixture
def wheel(tmp_path):
    return render("turbo-two-words", tmp_path)


def test_it_has_the_skeleton_and_no_trace_of_the_template(wheel):
    assert skeleton_problems(wheel) == []
    for path in wheel.path.rglob("*"):
        assert "example" not in path.name
        if path.is_file():
            assert "example" not in path.read_text(), path


def test_it_builds_and_imports(wheel, tmp_path):
    built = wheelhouse.build(wheel, tmp_path / "dist", isolated=False)
    assert wheelhouse.wheel_problems(wheel, built.wheel) == []
    assert wheelhouse.sdist_problems(wheel, built.sdist) == []
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = "import turbo_two_words.pytorch.ops as ops; print(ops.__name__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "turbo_two_words.pytorch.ops", done.stderr


def test_its_tests_pass(wheel, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(wheel.path / "src"), str(ROOT / "common")))}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "tests"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=wheel.path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_its_code_is_formatted(wheel):
    config = ["--config", str(ROOT / "pyproject.toml")]
    for command in (["check", "--ignore", "S101", *config], ["format", "--check", *config]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, str(wheel.path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "name", ["foo", "turbo_foo", "Turbo-foo", "turbo-", "turbo-foo-", "turbo-1", "../turbo-foo", ""]
)
def test_an_unfit_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="a wheel is named"):
        render(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_wheel_is_not_overwritten(capsys):
    with pytest.raises(SystemExit):
        main(["turbo-core"])
    assert "exists" in capsys.readouterr().err
