# SPDX-License-Identifier: MIT
"""Compiles HIP sources in tests, with the compiler and flags of the builds (csrc-common/cmake/compile_kernels.py)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC_COMMON = ROOT / "csrc-common"
ARCHS = ("gfx942", "gfx950")


def zig() -> str:
    """The program of the package ziglang; skips the test where it is not installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package ziglang")
    return str(Path(spec.origin).parent / "zig")


def compile_hip(
    source: Path, arch: str, output: Path, *flags: str, allow_spills: bool = False
) -> subprocess.CompletedProcess:
    """Runs the build's own compile step; the caller looks at the return code."""
    tool = [sys.executable, "-B", str(CSRC_COMMON / "cmake" / "compile_kernels.py"), "compile"]
    arguments = ["--arch", arch, "--source", str(source), "--output", str(output)]
    compilers = ["--compiler", f"{zig()};clang", "--linker", f"{zig()};ld.lld"]
    spills = ["--allow-spills"] if allow_spills else []
    command = [*tool, *arguments, *compilers, *spills, "--", f"-I{CSRC_COMMON / 'include'}", *flags]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
