# SPDX-License-Identifier: MIT
"""The quickstart says what it will do, does what is missing, shows progress, and ends with the demo's exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import devenv, progress, quickstart
from tools.new_wheel import render

REQUIREMENTS = """torch==2.13.0
triton==3.9.0; platform_system == "Linux"
numpy>=2.2,<3  # why
pytest~=9.0
hatchling~=1.27
ziglang==0.17.1
"""


class Recorded(quickstart.Environment):
    """Runs nothing: notes the commands and makes the files that they would."""

    def __init__(self, root: Path, base_python: str | None = None, fail: str = "") -> None:
        super().__init__(base_python, root)
        self.commands: list[str] = []
        self.fail = fail

    def _run(self, command: list[str]) -> None:
        line = " ".join(command)
        self.commands.append(line)
        if self.fail and self.fail in line:
            self._fail(command, 1)
        if "virtualenv" in command:
            self.python.parent.mkdir(parents=True)
            self.python.touch()
        if "--wheel-dir" in command:
            (self.path / "wheels").mkdir()
            (self.path / "wheels" / "turbo_foo-0.1.0-py3-none-any.whl").touch()

    def _add_base_packages(self) -> None:
        self.commands.append(f"see the packages of {self.base_python}")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GPU_ARCHS", raising=False)
    monkeypatch.delenv("ROCM_HOME", raising=False)
    monkeypatch.setattr(quickstart, "DRIVER", tmp_path / "kfd")
    (tmp_path / "requirements.txt").write_text(REQUIREMENTS)
    render("turbo-foo", tmp_path / "packages")
    return tmp_path


def names(environment: quickstart.Environment) -> list[str]:
    return [step.name for step in environment.steps()]


def make(environment: quickstart.Environment) -> list[str]:
    with environment.locked():
        for step in environment.steps():
            step.do()
    return environment.commands


# The environment


def test_a_bare_machine_gets_torch_and_the_wheels_and_a_second_run_nothing(root: Path) -> None:
    environment = Recorded(root)
    assert names(environment) == ["environment", "download", "install", "build", "wheels"]
    made, download, install, build, wheels = make(environment)
    assert "virtualenv" in made
    wanted = "torch==2.13.0 numpy>=2.2,<3 hatchling~=1.27"
    assert wanted in download and "pip download" in download
    assert wanted in install and "--no-index" in install
    for left_out in ("triton", "pytest", "ziglang"):
        assert f" {left_out}" not in download + install
    assert "pip wheel" in build and "--no-deps" in build and str(root / "packages" / "turbo-foo") in build
    assert "turbo_foo-0.1.0-py3-none-any.whl" in wheels and "--no-deps" in wheels and "--editable" not in wheels
    assert names(Recorded(root)) == []


def test_without_an_amd_gpu_there_is_no_device_code_nor_its_compiler(root: Path) -> None:
    assert Recorded(root).variables["GPU_ARCHS"] == "none"
    (root / "kfd").touch()
    assert Recorded(root).variables["GPU_ARCHS"] == "native"
    assert "ziglang==0.17.1" in Recorded(root)._requirements()


def test_the_users_architectures_stand(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_ARCHS", "gfx942")
    environment = Recorded(root)
    assert environment.variables["GPU_ARCHS"] == "gfx942" and "ziglang==0.17.1" in environment._requirements()
    assert "GPU_ARCHS=gfx942, whose kernels take longer" in environment.steps()[3].what
    monkeypatch.setenv("ROCM_HOME", "/opt/rocm")
    assert "ziglang==0.17.1" not in Recorded(root)._requirements(), "ROCm brings a compiler"


@pytest.mark.parametrize(
    "file", ["packages/turbo-foo/pyproject.toml", "packages/turbo-foo/src/turbo_foo/__init__.py", "csrc-common/a.h"]
)
def test_a_changed_source_builds_the_wheels_again_and_nothing_else(root: Path, file: str) -> None:
    (root / "csrc-common").mkdir()
    make(Recorded(root))
    with (root / file).open("a") as handle:
        handle.write("\n")
    assert names(Recorded(root)) == ["build", "wheels"]


def test_what_a_build_leaves_behind_is_no_source(root: Path) -> None:
    make(Recorded(root))
    (root / "packages/turbo-foo/src/turbo_foo/x.so").touch()
    (root / "packages/turbo-foo/build").mkdir()
    (root / "packages/turbo-foo/build/x.o").touch()
    assert names(Recorded(root)) == []


def test_other_requirements_make_it_anew_unless_they_are_the_developers(root: Path) -> None:
    make(Recorded(root))
    (root / "requirements.txt").write_text(REQUIREMENTS + "ruff\n")
    assert names(Recorded(root)) == []
    (root / "requirements.txt").write_text(REQUIREMENTS.replace("torch==2.13.0", "torch==2.13.1"))
    assert names(Recorded(root))[0] == "environment"


@pytest.mark.parametrize(
    ("fail", "left"),
    [
        ("pip download", ["environment", "download", "install", "build", "wheels"]),
        ("--no-compile", ["environment", "download", "install", "build", "wheels"]),
        ("pip wheel", ["build", "wheels"]),
        ("--force-reinstall", ["build", "wheels"]),
    ],
)
def test_after_a_failure_what_was_finished_is_kept(root: Path, fail: str, left: list[str]) -> None:
    with pytest.raises(devenv.EnvironmentFailure, match="the whole output is in"):
        make(Recorded(root, fail=fail))
    assert names(Recorded(root)) == left


def test_a_python_with_torch_is_used_and_gets_nothing_installed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorded, "_describe_base", lambda self: {"version": "3.12", "torch": True, "paths": []})
    environment = Recorded(root, base_python="/opt/rocm-venv/bin/python")
    assert environment.path.name.startswith("quickstart-")
    assert names(environment) == ["environment", "install", "build", "wheels"]
    made, seen, install, *_ = make(environment)
    assert "--python /opt/rocm-venv/bin/python" in made and "/opt/rocm-venv" in seen
    assert "torch" not in install.split("install")[-1] and "numpy" in install


# What is printed


def test_the_plan_names_every_step_with_its_measured_seconds(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [*Recorded(root).steps(), quickstart.Step("demo", "train", lambda: None)]
    quickstart.show_plan(steps)
    lines = capsys.readouterr().out.splitlines()
    assert quickstart.MEASURED_ON in lines[1]
    for number, step in enumerate(steps, 1):
        assert lines[number + 1] == f"  {number}. {step.what} ({quickstart.MEASURED[step.name]} s)"
    assert f"about {sum(quickstart.MEASURED.values())} s" in lines[8]
    assert f"in about {quickstart.MEASURED['demo']} s" in lines[9]


def test_the_times_show_downloads_and_installation_apart(capsys: pytest.CaptureFixture[str]) -> None:
    quickstart.show_times({"environment": 1.0, "download": 20.0, "install": 30.0, "build": 40.0, "demo": 15.0})
    printed = capsys.readouterr().out
    assert "106 s in all: environment 1, download 20, install 30, build 40, demo 15" in printed
    assert "the installation of torch and the others: 50 s" in printed and "all the rest: 56 s" in printed
    quickstart.show_times({"demo": 15.0})
    assert capsys.readouterr().out.strip() == "quickstart: 15 s in all: demo 15"


def test_progress_is_shown_while_a_program_runs(tmp_path: Path) -> None:
    """The program goes on only when the line that it waits for was shown, so that no time matters."""
    gate, log, lines = tmp_path / "gate", tmp_path / "log", []

    def say(line: str) -> None:
        lines.append(line)
        if "Downloading torch" in line:
            gate.touch()

    code = f"""
import pathlib, time
print("Collecting torch", flush=True)
print("  Downloading torch (200 MB)" + 200 * "=", flush=True)
while not pathlib.Path({str(gate)!r}).exists():
    time.sleep(0.01)
raise SystemExit(7)
"""
    assert progress.run([sys.executable, "-c", code], log, say, tmp_path, every=0.05) == 7
    assert lines and max(map(len, lines)) <= progress.WIDTH
    assert log.read_text().startswith(f"$ {sys.executable} -c ") and "Collecting torch" in log.read_text()


def test_the_line_is_of_the_command_that_runs_now(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of the one before\n")
    begin = log.stat().st_size
    assert progress.last_line(log, begin) == "started"
    with log.open("a") as handle:
        handle.write("first\n  second \nWARNING: no matter\n\n")
    assert progress.last_line(log, begin) == "second"


# The run as a whole


@pytest.fixture
def programs(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Runs no program: the commands that would have run, and the developer's environment is not there."""
    commands: list[list[str]] = []
    real = subprocess.run

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if "-c" in command:  # that the options are the demo's
            return real(command, **options)  # type: ignore[call-overload]
        commands.append(command)
        return subprocess.CompletedProcess(command, 3 if "400" in command else 0)

    monkeypatch.setattr(quickstart.subprocess, "run", run)
    monkeypatch.setattr(quickstart, "Environment", lambda base_python: Recorded(root, base_python))
    monkeypatch.setattr(devenv.DevEnv, "is_current", lambda self: False)
    monkeypatch.setattr(quickstart, "ROOT", root)
    return commands


def test_the_developers_environment_serves_where_it_is_up_to_date(
    programs: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devenv.DevEnv, "is_current", lambda self: True)
    assert quickstart.main(["--precision", "mxfp4"]) == 0
    (command,) = programs
    assert command[0] == str(devenv.DevEnv().python) and command[1:4] == ["-m", "primus_turbo", "demo"]
    assert command[-2:] == ["--precision", "mxfp4"], "the user's options come last"
    assert "[1/1] train" in capsys.readouterr().out


def test_the_whole_ends_with_the_demos_exit_code(programs: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert quickstart.main([]) == 0
    printed = capsys.readouterr().out
    assert [printed.index(f"[{number}/6] ") for number in range(1, 7)] == sorted(
        printed.index(f"[{number}/6] ") for number in range(1, 7)
    )
    assert "nox -s tests" in printed.splitlines()[-2]
    assert quickstart.main(["--steps", "400"]) == 3
    assert "nox -s tests" not in capsys.readouterr().out


@pytest.mark.parametrize(("options", "code"), [(["--precisions", "mxfp4"], 2), (["--steps", "0"], 2), (["--help"], 0)])
def test_options_are_looked_at_before_anything_is_made(
    options: list[str], code: int, programs: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert quickstart.main(options) == code
    assert programs == [] and "quickstart: what will be done" not in capsys.readouterr().out


def test_a_failure_is_a_message(
    programs: list[list[str]], root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quickstart, "Environment", lambda base_python: Recorded(root, base_python, "pip download"))
    assert quickstart.main([]) == 1
    assert "quickstart: " in (error := capsys.readouterr().err) and "the whole output is in" in error
    assert programs == []


def test_who_has_an_amd_gpu_is_told_of_their_torch(root: Path) -> None:
    assert list(quickstart.hints(None)) == []
    (root / "kfd").touch()
    (hint,) = quickstart.hints(None)
    assert "--use-python" in hint
    assert list(quickstart.hints("/opt/rocm-venv/bin/python")) == []


def test_the_stamp_is_what_the_next_run_reads(root: Path) -> None:
    environment = Recorded(root)
    make(environment)
    stamp = json.loads((environment.path / devenv.STAMP).read_text())
    assert set(stamp) == {"base", "wheels"}
