# SPDX-License-Identifier: MIT
"""The commands of this repository: `nox -l` lists them, CONTRIBUTING.md explains them.

All sessions share one environment, `.nox/dev` (tools/devenv.py), so only the first one pays for torch. A session runs
in another environment, such as one with a ROCm build of torch, with `-- --use-current-python` or
`-- --use-python /path/to/python`. All other arguments after `--` go to pytest, or to the program that the session runs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tools import devenv, downloads, llvm, testing  # noqa: E402
from tools.monorepo import wheels  # noqa: E402

nox.needs_version = ">=2024.10"
nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "none"
nox.options.error_on_external_run = False


def environment(session: nox.Session) -> tuple[str, list[str]]:
    """The interpreter of the shared environment, made or refreshed if need be, and the session's other arguments."""
    try:
        base_python, arguments = devenv.base_python_option(list(session.posargs))
        return str(devenv.DevEnv(base_python).ensure()), arguments
    except devenv.EnvironmentFailure as failure:
        session.error(str(failure))


def pytest(session: nox.Session, python: str, paths: list[str], arguments: list[str], **env: str) -> None:
    """Runs the tests under `paths`, or what the arguments name instead, on as many workers as the machine can feed."""
    workers, extra_env = testing.workers(python, arguments)
    targets = [] if testing.names_tests(arguments) else paths
    command = [python, "-m", "pytest", *workers, *targets, *arguments]
    session.run(*command, env={**extra_env, **env}, external=True)


def aiter_wheel(session: nox.Session, python: str, arguments: list[str]) -> list[str]:
    """The option that names the amd-aiter wheel; nothing where it cannot be had, and its tests say that they skip."""
    if any(argument.startswith("--aiter-wheel") for argument in arguments):
        return []
    try:
        return [f"--aiter-wheel={downloads.wheel(python, downloads.AITER)}"]
    except downloads.DownloadFailure as failure:
        session.warn(str(failure))
        return []


def llvm_tools(session: nox.Session) -> None:
    """LLVM 22 for turbo-sim's tests, where root may install it; they skip without it."""
    if line := llvm.install():
        session.log(line)


@nox.session
def quickstart(session: nox.Session) -> None:
    """Build and install the wheels, train a language model on them next to plain torch; its options go after `--`."""
    session.run(sys.executable, "-m", "tools.quickstart", *session.posargs, external=True)


@nox.session
def tests(session: nox.Session) -> None:
    """Everything that this machine can show: lint, then the tests of all wheels and of all of them together."""
    run_tests(session, ["--budgets"])


@nox.session(name="tests-full")
def tests_full(session: nox.Session) -> None:
    """`tests` with whole products where it takes covering arrays, and what only repeats on more cases."""
    run_tests(session, ["--budgets", "--full"])


def run_tests(session: nox.Session, options: list[str]) -> None:
    python, arguments = environment(session)
    failures = [] if testing.names_tests(arguments) else run_lint(session, python)
    llvm_tools(session)
    pytest(session, python, [], [*options, *aiter_wheel(session, python, arguments), *arguments])
    if failures:
        session.error("the tests passed, but not: " + ", ".join(failures))


def run_lint(session: nox.Session, python: str) -> list[str]:
    """Runs every check, so that one run shows all findings; returns the names of those that failed."""
    checks = {
        "ruff check": ["-m", "ruff", "check", "."],
        "ruff format": ["-m", "ruff", "format", "--check", "."],
        "mypy": ["-m", "mypy"],
        "clang-format": ["-m", "tools.clang_format"],
    }
    failed = []
    for name, command in checks.items():
        session.log(f"{name}: python {' '.join(command)}")
        if subprocess.run([python, *command], cwd=ROOT).returncode:
            failed.append(name)
    return failed


@nox.session
def lint(session: nox.Session) -> None:
    """ruff check, ruff format --check, mypy on turbo_core. `-- --fix` repairs what can be repaired."""
    python, arguments = environment(session)
    if arguments == ["--fix"]:
        session.run(python, "-m", "ruff", "check", "--fix", ".", external=True)
        session.run(python, "-m", "ruff", "format", ".", external=True)
        session.run(python, "-m", "tools.clang_format", "--fix", external=True)
    elif arguments:
        session.error(f"lint takes --fix and nothing else, not {' '.join(arguments)}")
    if failed := run_lint(session, python):
        session.error("failed: " + ", ".join(failed))


READ_AITER = ("turbo-sim", "turbo-attention", "turbo-gemm")  # wheels whose tests read the amd-aiter wheel


def add_wheel_session(name: str) -> None:
    @nox.session(name=f"test-{name}")
    def test_wheel(session: nox.Session) -> None:
        python, arguments = environment(session)
        others = aiter_wheel(session, python, arguments) if name in READ_AITER else []
        if name == "turbo-sim":
            llvm_tools(session)
        pytest(session, python, [f"packages/{name}/tests"], ["--budgets", *others, *arguments])

    test_wheel.__doc__ = f"The tests of {name} alone."


for wheel in wheels():
    add_wheel_session(wheel.name)


@nox.session(name="test-sim-aiter")
def test_sim_aiter(session: nox.Session) -> None:
    """turbo-sim against the amd-aiter wheel: the disassembly of all its code objects, the numbers of its kernels."""
    python, arguments = environment(session)
    wheel = aiter_wheel(session, python, arguments)
    if not wheel and not any(argument.startswith("--aiter-wheel") for argument in arguments):
        session.error("the amd-aiter wheel could not be fetched; name one with --aiter-wheel=FILE")
    llvm_tools(session)
    everything = [] if "-m" in arguments else ["-m", "all_objects or not all_objects"]
    paths = [f"packages/turbo-sim/tests/{name}.py" for name in ("test_aiter_objects", "test_aiter")]
    pytest(session, python, paths, [*wheel, *everything, *arguments])


def test_arch(session: nox.Session, arch: str) -> None:
    python, arguments = environment(session)
    plan = testing.arch_plan(arch, testing.devices(python), arguments)
    print(plan.line, flush=True)
    for options, paths, env in plan.runs:
        pytest(session, python, paths, [*options, *arguments], **plan.environment, **env)


@nox.session(name="test-gfx942")
def test_gfx942(session: nox.Session) -> None:
    """The op tests for gfx942 (MI300X, MI325X): on the card where there is one; the first line says what runs."""
    test_arch(session, "gfx942")


@nox.session(name="test-gfx950")
def test_gfx950(session: nox.Session) -> None:
    """The op tests for gfx950 (MI350X, MI355X): on the card where there is one; the first line says what runs."""
    test_arch(session, "gfx950")


@nox.session
def isolation(session: nox.Session) -> None:
    """Build every wheel and sdist, install each alone in a clean environment, smoke-test it from outside the tree."""
    python, arguments = environment(session)
    everything = [] if "-m" in arguments else ["-m", "long_build or not long_build"]
    pytest(session, python, ["tests-integration/test_isolation.py"], [*everything, *arguments])


@nox.session
def audit(session: nox.Session) -> None:
    """Registers, spills and LDS of every kernel of every wheel, in every configuration (an hour and a half)."""
    python, arguments = environment(session)
    env = {"TRITON_INTERPRET": "0"}
    session.run(python, "-m", "turbo_core", "audit", *(arguments or ["--full"]), env=env, external=True)


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and sdists of all packages into dist/, their contents checked. Names after `--` choose packages."""
    python, arguments = environment(session)
    session.run(python, "-m", "tools.wheelhouse", "dist", *arguments, external=True)


@nox.session(name="new-wheel")
def new_wheel(session: nox.Session) -> None:
    """Make a new wheel from common/template: `nox -s new-wheel -- turbo-foo`, with HIP kernels `--native`."""
    python, arguments = environment(session)
    session.run(python, "-m", "tools.new_wheel", *arguments, external=True)


@nox.session
def benchmark(session: nox.Session) -> None:
    """A program of benchmark/: `nox -s benchmark -- ops/training/bench_gemm_turbo.py --dtype bf16`."""
    python, arguments = environment(session)
    if not arguments:
        programs = sorted(str(path.relative_to(ROOT / "benchmark")) for path in ROOT.glob("benchmark/**/bench_*.py"))
        session.error("name a program: " + ", ".join(programs))
    session.run(python, str(Path("benchmark") / arguments[0]), *arguments[1:], external=True)
