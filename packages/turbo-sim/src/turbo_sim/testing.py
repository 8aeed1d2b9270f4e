# SPDX-License-Identifier: MIT
"""Run a few instructions on one wave with given registers: for tests of single instructions.

    from turbo_sim.testing import run_asm
    out = run_asm("v_add_f32_e32 v0, v1, v2", arch="gfx950", v={1: a, 2: b}, exec_mask=0xFF)
    out.v[0]            # uint32[64]

Needs LLVM 22's assembler (`llvm-mc`, Debian package llvm-22); `why_no_assembler()` says why it cannot be used.
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

LLVM = 22  # the version whose text, encodings and wait states the simulator is compared with
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
def _found(tool: str, _path: str | None) -> tuple[str | None, str]:
    """Path of an LLVM tool that fits and, where none does, what is wrong with those that are here."""
    wrong = []
    for name in (f"{tool}-{LLVM}", tool):
        path = shutil.which(name)
        if path is None:
            continue
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"version (\d+)", said)
        if version is None:
            wrong.append(f"{path} does not say its version")
        elif int(version[1]) != LLVM:
            wrong.append(f"{path} is of LLVM {version[1]}")
        elif not re.search(r"^\s*amdgcn\b", said, re.MULTILINE):
            wrong.append(f"{path} was built without AMD GPUs")
        else:
            return path, ""
    return None, "; ".join(wrong) or f"there is no {tool}"


def llvm_tool(tool: str) -> str | None:
    """Path of ``llvm-mc`` or ``llvm-objdump`` of LLVM 22 with AMD GPUs on PATH, whatever the file is called; or None.

    Asked of the tool itself: Debian's plain ``llvm-mc`` may be LLVM 14, which knows neither architecture, and what
    another version prints is not what the tests were written for.
    """
    return _found(tool, os.environ.get("PATH"))[0]


def why_no_llvm(*tools: str) -> str | None:
    """Reason that one of these tools cannot be used here, or None."""
    wrong = [found[1] for found in (_found(tool, os.environ.get("PATH")) for tool in tools) if found[0] is None]
    return f"needs LLVM {LLVM} (Debian, Ubuntu: apt install llvm-{LLVM}): {'; '.join(wrong)}" if wrong else None


def assembler() -> str | None:
    """Path of an ``llvm-mc`` of LLVM 22, or None."""
    return llvm_tool("llvm-mc")


def why_no_assembler() -> str | None:
    """Reason that instructions cannot be assembled here, or None."""
    return why_no_llvm("llvm-mc")


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


# --- vectors ------------------------------------------------------------------------------------------------------
F32_EDGES = [
    0x00000000,
    0x80000000,
    0x00000001,
    0x80000001,
    0x007FFFFF,
    0x807FFFFF,
    0x00800000,
    0x80800000,
    0x3F800000,
    0xBF800000,
    0x3F000000,
    0x40000000,
    0xC0200000,
    0x4B000000,
    0xCB000001,
    0x4F000000,
    0x4F7FFFFF,
    0xCF000000,
    0x7F7FFFFF,
    0xFF7FFFFF,
    0x7F800000,
    0xFF800000,
    0x7FC00000,
    0xFFC12345,
    0x7F800001,
    0x3F7FFFFF,
    0x33800000,
    0x38800000,
    0x477FF000,
    0x3EAAAAAB,
]
F64_EDGES = [
    0x0000000000000000,
    0x8000000000000000,
    0x0000000000000001,
    0x800FFFFFFFFFFFFF,
    0x0010000000000000,
    0x3FF0000000000000,
    0xBFF0000000000000,
    0x3FE0000000000000,
    0x4004000000000000,
    0x41DFFFFFFFC00000,
    0xC1E0000000000000,
    0x41F0000000000000,
    0x7FEFFFFFFFFFFFFF,
    0xFFEFFFFFFFFFFFFF,
    0x7FF0000000000000,
    0xFFF0000000000000,
    0x7FF8000000000000,
    0xFFF8000000001234,
    0x7FF0000000000001,
    0x3FD5555555555555,
    0x47EFFFFFE0000000,
    0x36A0000000000000,
    0x3810000000000000,
    0xC330000000000001,
]
F16_EDGES = [
    0x0000,
    0x8000,
    0x0001,
    0x8001,
    0x03FF,
    0x83FF,
    0x0400,
    0x8400,
    0x3C00,
    0xBC00,
    0x3800,
    0x4000,
    0xC100,
    0x6400,
    0xE401,
    0x7BFF,
    0xFBFF,
    0x7C00,
    0xFC00,
    0x7E00,
    0xFE12,
    0x7C01,
    0x3BFF,
    0x3555,
    0x2E66,
    0x5800,
]
INT_EDGES = [
    0,
    1,
    2,
    0xFFFFFFFF,
    0xFFFFFFFE,
    0x7FFFFFFF,
    0x80000000,
    0x80000001,
    0xFFFF,
    0x10000,
    0x8000,
    0x7FFF,
    0xFFFFFF,
    0x800000,
    0x7FFFFF,
    31,
    32,
    33,
    63,
    0x0F0F0F0F,
    0xAAAAAAAA,
    0xFF,
    0x80,
    0x00FF00FF,
]


def lane_values(kind: str, seed: int) -> np.ndarray:
    """64 values of a type, edges and random ones mixed: uint32 codes (uint64 for 64-bit types)."""
    rng = np.random.default_rng(seed * 1000 + sum(map(ord, kind)))
    if kind == "f32":
        spread = (rng.standard_normal(64) * 2.0 ** rng.integers(-30, 30, 64)).astype(np.float32).view(np.uint32)
        edges, any_bits = np.array(F32_EDGES, np.uint32), rng.integers(0, 2**32, 64, dtype=np.uint32)
    elif kind == "f16":
        spread = (
            (rng.standard_normal(64) * 2.0 ** rng.integers(-8, 8, 64))
            .astype(np.float16)
            .view(np.uint16)
            .astype(np.uint32)
        )
        edges, any_bits = np.array(F16_EDGES, np.uint32), rng.integers(0, 2**16, 64, dtype=np.uint32)
    elif kind in ("f64", "u64", "i64"):
        spread = (rng.standard_normal(64) * 2.0 ** rng.integers(-40, 40, 64)).view(np.uint64)
        edges, any_bits = np.array(F64_EDGES, np.uint64), rng.integers(0, 2**64, 64, dtype=np.uint64)
        if kind != "f64":
            small = np.array(INT_EDGES, np.uint64)
            edges = np.concatenate([edges, small, ~small])
            spread = any_bits >> rng.integers(0, 64, 64, dtype=np.uint64)
    else:
        any_bits = rng.integers(0, 2**32, 64, dtype=np.uint32)
        edges, spread = np.array(INT_EDGES, np.uint32), any_bits >> rng.integers(0, 32, 64, dtype=np.uint32)
    choice = rng.integers(0, 3, 64)
    return np.where(choice == 0, rng.choice(edges, 64), np.where(choice == 1, spread, any_bits)).astype(edges.dtype)


def put(v: dict[int, np.ndarray], row: int, values: np.ndarray) -> None:
    """Store lane values in a register, or in a pair if they are 64 bits wide."""
    if values.dtype == np.uint64:
        v[row], v[row + 1] = (
            (values & np.uint64(0xFFFFFFFF)).astype(np.uint32),
            (values >> np.uint64(32)).astype(np.uint32),
        )
    else:
        v[row] = values.astype(np.uint32)
