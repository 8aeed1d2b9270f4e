# SPDX-License-Identifier: MIT
"""The commands of this repository: `nox -l` lists them, CONTRIBUTING.md explains them.

All sessions share one environment, `.nox/dev` (tools/devenv.py), so only the first one pays for torch. A session runs
in another environment, such as one with a ROCm build of torch, with `-- --use-current-python` or
`-- --use-python /path/to/python`. All other arguments after `--` go to pytest, or to the program that the session runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tools import devenv, testing  # noqa: E402
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


@nox.session
def quickstart(session: nox.Session) -> None:
    """Train a small model with Turbo next to the same model in plain torch, on whatever is here (CPU included)."""
    python, arguments = environment(session)
    session.run(python, "examples/quickstart.py", *arguments, external=True)


@nox.session
def tests(session: nox.Session) -> None:
    """Everything that this machine can show: lint, then the tests of all wheels, then what crosses wheels."""
    python, arguments = environment(session)
    failures = [] if testing.names_tests(arguments) else run_lint(session, python)
    pytest(session, python, [], arguments)
    if failures:
        session.error("the tests passed, but not: " + ", ".join(failures))


def run_lint(session: nox.Session, python: str) -> list[str]:
    """Runs every check, so that one run shows all findings; returns the names of those that failed."""
    checks = {
        "ruff check": ["-m", "ruff", "check", "."],
        "ruff format": ["-m", "ruff", "format", "--check", "."],
        "mypy": ["-m", "mypy"],
    }
    failed = []
    for name, command in checks.items():
        if session.run(python, *command, external=True, success_codes=range(256), silent=False) is False:
            failed.append(name)
    return failed


@nox.session
def lint(session: nox.Session) -> None:
    """ruff check, ruff format --check, mypy on turbo_core. `-- --fix` repairs what can be repaired."""
    python, arguments = environment(session)
    if arguments == ["--fix"]:
        session.run(python, "-m", "ruff", "check", "--fix", ".", external=True)
        session.run(python, "-m", "ruff", "format", ".", external=True)
    elif arguments:
        session.error(f"lint takes --fix and nothing else, not {' '.join(arguments)}")
    if failed := run_lint(session, python):
        session.error("failed: " + ", ".join(failed))
