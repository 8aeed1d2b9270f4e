# SPDX-License-Identifier: MIT
"""`nox -s new-wheel` makes wheels of both forms that have the skeleton, build, pass their own tests and the linters."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import wheelhouse
from tools.monorepo import ROOT, Wheel, skeleton_problems
from tools.new_wheel import main, render, render_benchmark

NAMES = {"pure": "turbo-two-words", "native": "turbo-hip"}


@pytest.fixture(scope="module", params=["pure", "native"])
def wheel(request, tmp_path_factory):
    """A new wheel in a repository of its own, which shares csrc-common."""
    root = tmp_path_factory.mktemp(request.param)
    (root / "packages").mkdir()
    (root / "csrc-common").symlink_to(ROOT / "csrc-common")
    return render(NAMES[request.param], root / "packages", native=request.param == "native")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The built wheel, unpacked, its contents checked."""
    folder = tmp_path_factory.mktemp("installed")
    built = wheelhouse.build(wheel, folder / "dist", isolated=False)
    assert wheelhouse.wheel_problems(wheel, built.wheel) == []
    assert wheelhouse.sdist_problems(wheel, built.sdist) == []
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def is_native(wheel: Wheel) -> bool:
    return wheel.name == NAMES["native"]


def run(*command: object, path: tuple[Path, ...] = (), cwd: Path = ROOT, **variables: str) -> str:
    """The output of a program that must succeed; this session's own settings do not reach it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_the_skeleton_and_no_trace_of_the_template(wheel):
    assert skeleton_problems(wheel) == []
    assert (wheel.path / "csrc").is_dir() is is_native(wheel)
    for path in wheel.path.rglob("*"):
        if not path.is_file():
            continue
        text = f"{path.name}\n{path.read_text()}"
        for trace in ("turbo-template", "turbo_template", "TURBO_TEMPLATE", "native only", "native: ", "pure: "):
            assert trace not in text, path


def test_its_tests_pass(wheel, installed):
    """On all levels; of the other form those that are not the same."""
    same = "matrix or simulated or audit or odd_shapes or opcheck or compiled"
    chosen = [] if is_native(wheel) else ["-k", f"not ({same})"]
    options = ["-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", "--rootdir", wheel.path.parents[1]]
    path = (installed, ROOT / "common")
    command = [sys.executable, "-m", "pytest", *options, *chosen, "tests"]
    output = run(*command, path=path, cwd=wheel.path, PYTEST_PLUGINS="turbo_testing.plugin")
    assert " passed" in output
    assert "is not built" not in output, "the native tests ran"


def test_its_benchmark_runs(wheel, installed):
    program = render_benchmark(wheel.name, wheel.path.parents[1] / "benchmark" / "ops" / "training")
    output = run(sys.executable, program, "--smoke", "--device", "cpu", path=(installed, ROOT, ROOT / "common"))
    assert output.count("PASS") == 2


def test_the_linters_have_nothing_to_say(wheel):
    config = ["--config", ROOT / "pyproject.toml"]
    run(sys.executable, "-m", "ruff", "check", *config, wheel.path / "src")
    run(sys.executable, "-m", "ruff", "check", "--ignore", "S101", *config, wheel.path / "tests")
    run(sys.executable, "-m", "ruff", "format", "--check", *config, wheel.path)
    sources = os.pathsep.join(map(str, (wheel.path / "src", ROOT / "packages" / "turbo-core" / "src")))
    command = [sys.executable, "-m", "mypy", "-p", wheel.import_name]  # options would cost another cache of torch
    checked = subprocess.run(command, env={**os.environ, "MYPYPATH": sources}, capture_output=True, text=True, cwd=ROOT)
    errors = [line for line in checked.stdout.splitlines() if ": error:" in line and "_kernel.py:" not in line]
    assert errors == [] and not checked.stderr, "but for the kernels, whose arguments are no Python objects"


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
