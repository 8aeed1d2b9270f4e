# SPDX-License-Identifier: MIT
"""What the nox sessions stand on: the shared environment is made once and never half; a run is what its line says."""

import fcntl
import json
import os
import re
import subprocess
from types import SimpleNamespace

import pytest

from tools import devenv, downloads, llvm, testing
from tools.monorepo import ROOT
from tools.new_wheel import render


class Recorded(devenv.DevEnv):
    """Runs nothing: notes the commands and makes the file that a finished environment would have."""

    def __init__(self, root, base_python=None, interrupted=False):
        super().__init__(base_python, root)
        self.commands = []
        self.interrupted = interrupted

    def _run(self, command):
        self.commands.append(" ".join(command))
        if "virtualenv" in command:
            self.python.parent.mkdir(parents=True)
            self.python.touch()
        if self.interrupted and "install" in command:
            raise KeyboardInterrupt


@pytest.fixture
def root(tmp_path):
    (tmp_path / "requirements.txt").write_text(
        "torch==2.13.0\ntriton==3.9.0; platform_system == 'Linux'  # why\npytest\n"
    )
    render("turbo-foo", tmp_path / "packages")
    return tmp_path


def ensure(root, **options):
    environment = Recorded(root, **options)
    environment.ensure()
    return environment.commands


def test_the_environment_is_made_once(root):
    made, torch, triton, editable = ensure(root)
    assert "virtualenv" in made
    assert torch.endswith("install torch==2.13.0 pytest --disable-pip-version-check")
    assert "--no-deps triton==3.9.0; platform_system == 'Linux'" in triton
    assert "--no-deps --no-build-isolation --editable" in editable and "turbo-foo" in editable
    assert ensure(root) == []


def test_an_interrupted_environment_is_made_anew(root):
    with pytest.raises(KeyboardInterrupt):
        ensure(root, interrupted=True)
    left_over = root / ".nox" / "dev" / "left-over"
    left_over.touch()
    assert len(ensure(root)) == 4
    assert not left_over.exists()


def test_a_stamp_that_cannot_be_read_counts_as_none(root):
    ensure(root)
    (root / ".nox" / "dev" / devenv.STAMP).write_text('{"base": ')
    assert len(ensure(root)) == 4


def test_new_requirements_make_it_anew(root):
    ensure(root)
    (root / "requirements.txt").write_text("torch==2.13.0\n")
    assert "virtualenv" in ensure(root)[0]


def test_a_changed_wheel_is_installed_again_and_nothing_else(root):
    ensure(root)
    with (root / "packages/turbo-foo/pyproject.toml").open("a") as file:
        file.write("# changed\n")
    (command,) = ensure(root)
    assert "--editable" in command and "turbo-foo" in command


def test_a_wheel_that_is_gone_is_uninstalled(root):
    render("turbo-bar", root / "packages")
    ensure(root)
    (root / "packages/turbo-bar/pyproject.toml").unlink()
    uninstall, install = ensure(root)
    assert "uninstall --yes turbo-bar" in uninstall
    assert "turbo-bar" not in install


def test_another_interpreter_gets_an_overlay_without_torch(root, monkeypatch):
    described = {"version": "3", "paths": ["/opt/rocm-env/lib/python3/site-packages"], "torch": True}
    monkeypatch.setattr(Recorded, "_describe_base", lambda self: described)
    monkeypatch.setattr(Recorded, "_output", staticmethod(lambda command: str(root)))
    commands = ensure(root, base_python="/opt/rocm-env/bin/python")
    assert not any("torch==" in command or "triton" in command for command in commands)
    link = (root / "zz-base-environment.pth").read_text()
    assert link == "import site; site.addsitedir('/opt/rocm-env/lib/python3/site-packages')\n"
    assert not (root / ".nox" / "dev").exists()


def test_another_interpreter_must_have_torch(root, monkeypatch):
    monkeypatch.setattr(Recorded, "_describe_base", lambda self: {"version": "3", "paths": [], "torch": False})
    with pytest.raises(devenv.EnvironmentFailure, match="has no torch"):
        ensure(root, base_python="/usr/bin/python3")


def test_a_failing_command_shows_the_end_of_its_output(root):
    environment = devenv.DevEnv(root=root)
    environment.path.parent.mkdir()
    environment.log.write_text("")
    with pytest.raises(devenv.EnvironmentFailure, match="ended with 3.*\n.*the reason"):
        environment._run(["sh", "-c", "echo the reason; exit 3"])


@pytest.mark.parametrize(
    "arguments, base, rest",
    [
        (["-n", "8", "-k", "gemm"], None, ["-n", "8", "-k", "gemm"]),
        (["--use-python", "/a/python", "-x"], "/a/python", ["-x"]),
        (["-x", "--use-python=/a/python"], "/a/python", ["-x"]),
    ],
)
def test_the_interpreter_option(arguments, base, rest):
    assert devenv.base_python_option(arguments) == (base, rest)


def test_the_current_python_is_that_of_the_path(tmp_path, monkeypatch):
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devenv.base_python_option(["--use-current-python"]) == (str(python), [])
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(devenv.EnvironmentFailure, match="no python3"):
        devenv.base_python_option(["--use-current-python"])
    with pytest.raises(devenv.EnvironmentFailure, match="needs the path"):
        devenv.base_python_option(["--use-python"])


MI355X = testing.Device("gfx950", "AMD Instinct MI355X")
H200 = testing.Device("sm_90", "NVIDIA H200")


def test_an_arch_run_on_its_card():
    plan = testing.arch_plan("gfx950", [MI355X, MI355X])
    assert plan.line == "gfx950: 2 x AMD Instinct MI355X is here: the op tests run on the card"
    assert plan.environment == {}
    options, paths, _ = plan.runs[-1]
    assert "packages/turbo-gemm/tests" in paths
    assert "tools.arch_plugin" not in options


def test_an_arch_run_without_its_card_says_so_and_hides_other_cards():
    plan = testing.arch_plan("gfx942", [MI355X, H200])
    assert plan.line.startswith("gfx942: no such card here (AMD Instinct MI355X (gfx950), NVIDIA H200 (sm_90))")
    assert "interpreter" in plan.line and "audited" in plan.line
    assert plan.environment["TURBO_TEST_ARCH"] == "gfx942"
    assert plan.environment["HIP_VISIBLE_DEVICES"] == plan.environment["CUDA_VISIBLE_DEVICES"] == ""
    options, paths, _ = plan.runs[-1]
    assert "tools.arch_plugin" in options


def test_an_arch_run_among_other_cards_uses_only_its_own():
    other = testing.Device("gfx942", "AMD Instinct MI300X")
    assert testing.arch_plan("gfx950", [other, MI355X]).environment == {"HIP_VISIBLE_DEVICES": "1"}


def test_an_arch_run_audits_what_its_line_says():
    """The line promises an audit: there is one, and its tests are left out of the run of the ops."""
    *_, (audit_options, audits, _), (options, _, _) = testing.arch_plan("gfx950", []).runs
    assert audit_options == ["-k", "gfx950"]
    assert audits and all(f"--ignore={path}" in options for path in audits)


def test_an_arch_run_of_named_tests_runs_those():
    plan = testing.arch_plan("gfx950", [], ["packages/turbo-gemm/tests", "-x"])
    assert plan.runs == [(["-p", "tools.arch_plugin"], [], {})]


def test_an_arch_run_without_its_card_simulates():
    """Machine code of that architecture, in processes without Triton's interpreter; files that exist."""
    simulated = [run for run in testing.arch_plan("gfx942", []).runs if run[2] == {"TRITON_INTERPRET": "0"}]
    assert [options for options, _, _ in simulated] == [
        ["-k", "gfx942"],
        ["--simulate", "gfx942", "-m", "simulated"],
    ]
    assert all((testing.ROOT / path).exists() for _, paths, _ in simulated for path in paths)
    assert not any(run[2] for run in testing.arch_plan("gfx950", [MI355X]).runs), "a card needs no simulator"


def test_workers_follow_the_machine_unless_told(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(testing, "devices", lambda python: [])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert testing.workers("python", []) == (["-n", "4", "--dist", "worksteal"], {"OMP_NUM_THREADS": "1"})
    assert testing.workers("python", ["-n", "8"]) == (["--dist", "worksteal"], {})
    assert testing.workers("python", ["-n8", "--dist=load"]) == ([], {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert testing.workers("python", []) == (["--dist", "worksteal"], {})
    monkeypatch.setattr(testing, "devices", lambda python: [MI355X] * 8)
    assert testing.workers("python", [])[0][:2] == ["-n", "8"]


@pytest.mark.parametrize(
    "arguments, answer",
    [
        (["packages/turbo-core/tests"], True),
        (["tests-integration/test_tools.py::test_x", "-x"], True),
        (["-k", "packages"], False),
        (["-n", "8", "--deterministic-only"], False),
        (["--aiter-wheel", str(testing.ROOT / "noxfile.py")], False),
        ([], False),
    ],
)
def test_arguments_that_name_tests_replace_the_choice(arguments, answer):
    assert testing.names_tests(arguments) is answer


def test_the_stamp_records_the_wheels(root):
    ensure(root)
    stamp = json.loads((root / ".nox" / "dev" / devenv.STAMP).read_text())
    assert stamp["names"] == ["turbo-foo"]


def test_an_installer_that_outlives_nox_keeps_the_lock(root):
    """nox was killed, its pip still writes: the next nox must not take the half-made folder away under it."""
    lock = root / "dev.lock"
    environment = devenv.DevEnv(root=root)
    environment.log.parent.mkdir()
    with devenv._locked(lock) as environment._lock:
        environment._run(["sh", "-c", "sleep 2 & true"])  # the child of sh stands for the pip left behind
    with lock.open("w") as handle:
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_EX)  # free once that child has ended


def fake_pip(folder, body):
    """A "python" whose `-m pip download ... --dest FOLDER REQUIREMENT` runs `body` with FOLDER as $dest."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\ndest=$2\n{body}\n')
    script.chmod(0o755)
    return str(script)


def test_a_download_happens_once(tmp_path):
    python = fake_pip(tmp_path, 'echo wheel > "$dest/some_thing-1.0-py3-none-any.whl"')
    found = downloads.wheel(python, "some-thing==1.0", tmp_path / "downloads")
    assert found.read_text() == "wheel\n" and found.parent == tmp_path / "downloads"
    assert downloads.wheel("no such program", "some-thing==1.0", tmp_path / "downloads") == found


@pytest.mark.parametrize("body", ["echo no route to host >&2; exit 1", 'echo half > "$dest/some_thing-1.0.tmp"'])
def test_a_failed_download_says_why_and_leaves_nothing(tmp_path, body):
    with pytest.raises(downloads.DownloadFailure, match="some-thing==1.0.*(no route to host|another file)"):
        downloads.wheel(fake_pip(tmp_path, body), "some-thing==1.0", tmp_path / "downloads")
    assert list((tmp_path / "downloads").iterdir()) == []


# --- LLVM -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def apt(tmp_path, monkeypatch):
    """A machine of root with apt alone on PATH; what was asked of it, and what it answers: (offered, exit code)."""
    asked, answers = [], {"policy": "llvm-22:\n  Candidate: 1:22.1.0-1\n", "code": 0}

    def run(command):
        asked.append(" ".join(word for word in command if word != "-o" and "::" not in word))
        said = answers["policy"] if command[0] == "apt-cache" else ""
        if "update" in command and "updated" in answers:
            answers["policy"] = answers["updated"]
        return subprocess.CompletedProcess(command, answers["code"] if "install" in command else 0, said, "E: held\n")

    for program in ("apt-get", "apt-cache"):
        (tmp_path / program).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(llvm.os, "geteuid", lambda: 0)
    monkeypatch.setattr(llvm, "_run", run)
    return SimpleNamespace(asked=asked, answers=answers, folder=tmp_path)


INSTALL = "apt-get install -y -qq --no-install-recommends llvm-22"


def test_llvm_is_installed_where_root_may(apt):
    assert llvm.install() == "installed llvm-22, which turbo-sim's tests assemble with"
    assert apt.asked == ["apt-cache policy llvm-22", INSTALL]


def test_llvm_is_asked_for_again_with_new_lists(apt):
    """The lists of an image are as old as the image, or are not there."""
    apt.answers |= {"policy": "N: Unable to locate package llvm-22\n", "updated": apt.answers["policy"]}
    assert llvm.install() is not None
    policy = "apt-cache policy llvm-22"
    assert apt.asked == [policy, "apt-get update -qq", policy, INSTALL]


def test_llvm_that_is_not_offered_or_fails_is_no_error(apt):
    apt.answers["code"] = 100
    assert llvm.install() == "llvm-22 could not be installed: E: held"
    apt.answers["policy"] = "N: Unable to locate package llvm-22\n"
    assert llvm.install() is None


@pytest.mark.parametrize("change", ["there", "not root", "no apt"])
def test_nothing_is_installed(apt, monkeypatch, change):
    if change == "there":
        for tool in llvm.TOOLS:
            (apt.folder / tool).touch(0o755)
    elif change == "not root":
        monkeypatch.setattr(llvm.os, "geteuid", lambda: 1000)
    else:
        (apt.folder / "apt-get").unlink()
    assert llvm.install() is None and apt.asked == []


def test_continuous_integration_runs_the_session_and_nothing_else():
    """What `.ci/run` does before `nox -s tests` is what a user does: have Python and nox."""
    script = (ROOT / ".ci" / "run").read_text()
    assert "apt" not in script and re.findall(r"pip install .* (\S+)$", script, re.M) == ["nox"]
    assert script.rstrip().endswith('exec "${nox[@]}" --non-interactive -s tests -- "$@" </dev/null')
