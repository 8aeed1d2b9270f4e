# SPDX-License-Identifier: MIT
"""Run a few instructions on one wave with given registers: for tests of single instructions.

    from turbo_sim.testing import run_asm
    out = run_asm("v_add_f32_e32 v0, v1, v2", arch="gfx950", v={1: a, 2: b}, exec_mask=0xFF)
    out.v[0]            # uint32[64]

Needs LLVM's assembler (`llvm-mc-22`, Debian package llvm-22); `why_no_assembler()` says why it cannot be used.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from types import ModuleType

import numpy as np

LANES = 64
AGPR = 256  # row of a0
VCC, M0, EXEC = 106, 124, 126
ALL = (1 << 64) - 1
# MODE as kernels of clang and Triton start: nearest even, subnormals kept, DX10_CLAMP and IEEE set.
DEFAULT_MODE = 0x3F0
FP16_OVFL = 1 << 23


def native() -> ModuleType:
    """The compiled module with the test hooks."""
    from turbo_sim._native import module

    return module


@functools.cache
def assembler() -> str | None:
    """Path of an llvm-mc that knows gfx950."""
    for name in (os.environ.get("TURBO_SIM_LLVM_MC", ""), "llvm-mc-22", "llvm-mc"):
        path = shutil.which(name) if name else None
        if path and "gfx950" in subprocess.run([path, "-triple=amdgcn", "-mcpu=help"], input="", capture_output=True, text=True).stderr:
            return path
    return None


def why_no_assembler() -> str | None:
    """Reason that instructions cannot be assembled here, or None."""
    return None if assembler() else "no llvm-mc with gfx950 (install Debian's llvm-22)"


@functools.lru_cache(maxsize=4096)
def assemble(text: str, arch: str) -> bytes:
    """Machine code of straight-line assembly."""
    tool = assembler()
    if tool is None:
        raise RuntimeError(why_no_assembler())
    command = [tool, "-triple=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-show-encoding"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"{arch}: {done.stderr.strip()}")
    encodings = re.findall(r"encoding: \[([^\]]*)\]", done.stdout)
    return b"".join(bytes(int(x, 16) for x in e.split(",")) for e in encodings)


@dataclass
class Registers:
    """Registers after a run: v[row, lane] (AGPR n is row 256 + n), s[index], scc."""

    v: np.ndarray
    s: np.ndarray
    scc: int

    def s64(self, index: int) -> int:
        return int(self.s[index]) | int(self.s[index + 1]) << 32

    def v64(self, row: int) -> np.ndarray:
        return self.v[row].astype(np.uint64) | self.v[row + 1].astype(np.uint64) << np.uint64(32)


def run_asm(
    text: str,
    *,
    arch: str = "gfx950",
    v: dict[int, np.ndarray] | np.ndarray | None = None,
    s: dict[int, int] | None = None,
    exec_mask: int = ALL,
    vcc: int = 0,
    mode: int = DEFAULT_MODE,
) -> Registers:
    """Assemble and run. `v` maps rows to uint32[64] (or is the whole [512, 64] file), `s` maps indices to values."""
    rows = np.zeros((512, LANES), np.uint32)
    if isinstance(v, dict):
        for row, values in v.items():
            rows[row] = values
    elif v is not None:
        rows[:] = v
    scalars = np.zeros(128, np.uint32)
    for index, value in (s or {}).items():
        scalars[index] = value & 0xFFFFFFFF
    for index, value in ((EXEC, exec_mask), (VCC, vcc)):
        scalars[index], scalars[index + 1] = value & 0xFFFFFFFF, value >> 32
    out = native().run_wave(arch, assemble(text, arch), rows, scalars, mode)
    return Registers(*out)
