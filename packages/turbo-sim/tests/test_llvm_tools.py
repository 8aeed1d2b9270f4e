# SPDX-License-Identifier: MIT
"""Which of LLVM's tools the tests take: those of the version that they were written for, whatever else is on PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turbo_sim.testing import assembler, llvm_tool, why_no_assembler, why_no_llvm

HERE = Path(__file__).resolve().parent
TOOLS = ("llvm-mc", "llvm-objdump")
AMD = "    amdgcn     - AMD GCN GPUs\n"
X86 = "    x86-64     - 64-bit X86: EM64T and AMD64\n"
DEBIAN_14 = f"Debian LLVM version 14.0.6\n  Optimized build.\n\n  Registered Targets:\n{AMD}{X86}"
LLVM_22 = f"Ubuntu LLVM version 22.1.0\n  Optimized build.\n\n  Registered Targets:\n{AMD}{X86}"


def install(folder: Path, name: str, says: str) -> str:
    """A program that answers --version as LLVM's tools do and does nothing else well."""
    path = folder / name
    path.write_text(
        f"#!/bin/sh\n[ \"$1\" = --version ] || exit 1\ncat <<'END'\n{says}\nEND\n".replace("cat", "/bin/cat")
    )
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_nothing_on_path(only: Path) -> None:
    assert assembler() is None and llvm_tool("llvm-objdump") is None
    assert why_no_assembler() == "needs LLVM 22 (Debian, Ubuntu: apt install llvm-22): there is no llvm-mc"


def test_llvm_14_is_not_taken(only: Path) -> None:
    paths = [install(only, tool, DEBIAN_14) for tool in TOOLS]
    assert [llvm_tool(tool) for tool in TOOLS] == [None, None]
    assert str(why_no_llvm(*TOOLS)).endswith(f": {paths[0]} is of LLVM 14; {paths[1]} is of LLVM 14")


def test_llvm_22_is_taken_by_either_name_and_before_another(only: Path) -> None:
    install(only, "llvm-mc", DEBIAN_14)
    versioned = install(only, "llvm-mc-22", LLVM_22)
    plain = install(only, "llvm-objdump", LLVM_22)
    assert [llvm_tool(tool) for tool in TOOLS] == [versioned, plain]
    assert why_no_llvm(*TOOLS) is None


def test_a_name_with_22_that_is_something_else_does_not_hide_the_right_one(only: Path) -> None:
    install(only, "llvm-mc-22", DEBIAN_14)
    plain = install(only, "llvm-mc", LLVM_22)
    assert llvm_tool("llvm-mc") == plain


def test_later_versions_and_builds_without_amd_gpus_are_refused(only: Path) -> None:
    mc = install(only, "llvm-mc", LLVM_22.replace("22.1.0", "23.0.0git"))
    objdump = install(only, "llvm-objdump", LLVM_22.replace(AMD, ""))
    assert str(why_no_llvm(*TOOLS)).endswith(f"{mc} is of LLVM 23; {objdump} was built without AMD GPUs")


def test_a_tool_that_says_nothing_is_refused(only: Path) -> None:
    path = install(only, "llvm-mc", "")
    assert str(why_no_assembler()).endswith(f"{path} does not say its version")


@pytest.mark.parametrize("fake", [None, DEBIAN_14], ids=["none", "llvm-14"])
def test_the_tests_skip_and_none_fails(fake: str | None, tmp_path: Path) -> None:
    """A module that assembles as a whole, one that skips by test and one that compares with llvm-objdump."""
    for tool in TOOLS if fake else ():
        install(tmp_path, tool, fake)
    files = [str(HERE / f"{name}.py") for name in ("test_wait_states", "test_salu", "test_decode")]
    environment = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in done.stdout and "error" not in done.stdout
    reason = f"is of LLVM {14}" if fake else "there is no llvm-mc"
    assert "needs LLVM 22" in done.stdout and reason in done.stdout
