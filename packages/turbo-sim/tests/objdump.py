# SPDX-License-Identifier: MIT
"""llvm-objdump as the oracle of our disassembly."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest

from turbo_sim.testing import llvm_tool, native, why_no_llvm

REASON = why_no_llvm("llvm-mc", "llvm-objdump")
needs_llvm = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def text_section(data: bytes) -> tuple[int, bytes]:
    """(address, bytes) of .text of an ELF file."""
    offset = struct.unpack_from("<Q", data, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + k * size) for k in range(count)]
    for s in sections:
        start = sections[names][4] + s[0]
        if data[start : data.index(b"\0", start)] == b".text":
            return s[3], data[s[4] : s[4] + s[5]]
    raise ValueError("no .text section")


def differences(path: Path, arch: str) -> tuple[int, list[str]]:
    """Instructions compared, and those whose text differs from llvm-objdump's."""
    address, code = text_section(path.read_bytes())
    ours = {offset: text for offset, _, text in native().disassemble(code, arch)}
    command = [llvm_tool("llvm-objdump"), "-d", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    count, bad = 0, []
    for line in run.stdout.splitlines():
        m = re.match(r"\t(.*?)\s*// ([0-9A-F]+): ([0-9A-F]+)", line)
        if not m:
            continue
        want = m.group(1)
        if want.startswith(("s_branch", "s_cbranch")):  # objdump shows a label where it knows one
            want = f"{want.split()[0]} {int(m.group(3), 16) & 0xFFFF}"
        got = ours.get(int(m.group(2), 16) - address)
        count += 1
        if got != want:
            bad.append(f"{m.group(2)}: {got!r}, objdump says {want!r}")
    return count, bad
