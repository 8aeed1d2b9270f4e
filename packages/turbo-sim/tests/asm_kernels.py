# SPDX-License-Identifier: MIT
"""Kernels in assembly for tests: assembled by llvm-mc, run as whole launches with memory, LDS and several waves."""

from __future__ import annotations

import re
import subprocess

import numpy as np

from turbo_sim.testing import assembler, native


def assemble_kernel(text: str, arch: str) -> bytes:
    """Machine code of assembly with labels: the .text section of the object that llvm-mc writes."""
    run = subprocess.run(
        [assembler(), "-triple=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-show-encoding", "-filetype=obj", "-o", "-"],
        input=text.encode(),
        capture_output=True,
    )
    if run.returncode:
        raise ValueError(run.stderr.decode())
    data = run.stdout
    offset = int.from_bytes(data[0x28:0x30], "little")
    count, names = (int.from_bytes(data[k : k + 2], "little") for k in (0x3C, 0x3E))

    def header(k: int) -> list[int]:
        at = offset + k * 64
        return [int.from_bytes(data[at + first : at + last], "little") for first, last in ((0, 4), (24, 32), (32, 40))]

    strings = header(names)[1]
    for k in range(count):
        name, start, size = header(k)
        if re.match(rb"\.text\0", data[strings + name :]):
            return data[start : start + size]
    raise ValueError("no .text")


def launch(
    text: str,
    *args,
    arch: str = "gfx950",
    grid=(1, 1, 1),
    block=(64, 1, 1),
    lds: int = 0,
    scratch: int = 0,
    vgprs: int = 64,
    agprs: int = 64,
    bounds: bool = True,
    **options,
):
    """Runs `text` and returns the report. Arguments, at s[0:1], are numpy arrays (their address) or integers (8 bytes);
    work-group ids are s2, s3, s4, work-item ids are packed in v0."""
    code = native().CodeObject.from_text(assemble_kernel(text, arch), arch, lds, scratch, vgprs, agprs)
    kernarg, memory = b"", []
    for k, a in enumerate(args):
        if isinstance(a, np.ndarray):
            memory.append((a.ctypes.data, a.nbytes, f"arg{k}"))
            a = a.ctypes.data
        kernarg += int(a).to_bytes(8, "little")
    if not memory and bounds:
        memory = [(1 << 46, 1, "nothing")]
    return native().launch(code, "kernel", grid, block, kernarg, memory=memory if bounds else [], **options)


def checks_of(report) -> list[str]:
    return [f.check for f in report.findings]
