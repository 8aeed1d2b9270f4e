# SPDX-License-Identifier: MIT
"""Whole code objects (ELF with descriptor and metadata) from assembly: llvm-mc assembles, Triton's or zig's lld
links.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from turbo_sim.testing import assembler


def _source(text: str, arch: str, name: str, args: tuple[tuple[int, int, str], ...], lds: int, vgprs: int) -> str:
    size = max((offset + n for offset, n, _ in args), default=0)
    rows = "\n".join(f"      - {{.offset: {o}, .size: {n}, .value_kind: {kind}}}" for o, n, kind in args)
    return f"""
.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
{text}
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr {vgprs}
  .amdhsa_next_free_sgpr 32
  .amdhsa_accum_offset {(vgprs + 3) // 4 * 4}
  .amdhsa_group_segment_fixed_size {lds}
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: {size}
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: 0
    .kernarg_segment_align: 8
    .wavefront_size: 64
    .sgpr_count: 32
    .vgpr_count: {vgprs}
    .max_flat_workgroup_size: 1024
    .args:
{rows}
...
.end_amdgpu_metadata
"""


@functools.cache
def _zig() -> list[str] | None:
    if shutil.which("ld.lld-22"):
        return ["ld.lld-22"]
    return [sys.executable, "-m", "ziglang", "ld.lld"] if importlib.util.find_spec("ziglang") else None


def why_no_linker() -> str | None:
    """Reason that code objects cannot be made here, or None."""
    if importlib.util.find_spec("triton") or _zig():
        return None
    return "no lld for AMDGPU (triton, ziglang or Debian's lld-22 brings one)"


def _link(source: str, target: str) -> None:
    if importlib.util.find_spec("triton"):
        from triton._C.libtriton import amd

        amd.link_hsaco(source, target)
        return
    subprocess.run([*(_zig() or []), "-shared", source, "-o", target], check=True)


@functools.cache
def code_object(
    text: str, arch: str, name: str, args: tuple[tuple[int, int, str], ...], lds: int = 0, vgprs: int = 64
) -> bytes:
    """A loadable code object with one kernel. args: (offset, size, value_kind)."""
    with tempfile.TemporaryDirectory() as folder:
        obj, out = Path(folder) / "k.o", Path(folder) / "k.hsaco"
        command = [assembler(), "-triple=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-filetype=obj", "-o", str(obj)]
        run = subprocess.run(command, input=_source(text, arch, name, args, lds, vgprs), capture_output=True, text=True)
        if run.returncode:
            raise ValueError(run.stderr)
        _link(str(obj), str(out))
        return out.read_bytes()
