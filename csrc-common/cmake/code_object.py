# SPDX-License-Identifier: MIT
"""What an AMD code object says of its kernels: registers, LDS, spills, scratch. Needs nothing but Python.

Native builds run this file as it lies here; turbo_core.code_object loads it for the audit.

The facts are in an ELF note named "AMDGPU" of type 32 (NT_AMDGPU_METADATA), a MessagePack map; LLVM's document "User
Guide for AMDGPU Backend" describes both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NOTE_TYPE = 32
SHT_NOTE, SHT_DYNSYM = 7, 11
EM_AMDGPU = 224
MACHINES = {0x4C: "gfx942", 0x4F: "gfx950"}  # e_flags & 0xff

# Of both architectures: registers per lane and SIMD, the granule in which they are given out, most waves per SIMD,
# SIMDs per compute unit. LDS per compute unit in bytes. (Same numbers as turbo/arch.h.)
VGPRS, VGPR_GRANULE, MAX_WAVES, SIMDS = 512, 8, 8, 4
WAVE = 64
LDS_BYTES = {"gfx942": 64 * 1024, "gfx950": 160 * 1024}


@dataclass(frozen=True)
class KernelResources:
    """One kernel of one code object.

    Attributes:
        threads: most work-items that a work-group may have.
        vgpr, agpr, sgpr: registers of a lane; `agpr` are part of `vgpr`, which counts the unified file.
        lds, scratch, kernarg: bytes of a work-group, of a lane, of the arguments.
        occupancy: waves that a SIMD can hold at a time.
    """

    kernel: str
    arch: str
    threads: int
    vgpr: int
    agpr: int
    sgpr: int
    lds: int
    scratch: int
    vgpr_spills: int
    sgpr_spills: int
    kernarg: int
    dynamic_stack: bool
    occupancy: int

    def faults(self) -> list[str]:
        """What no kernel of a wheel may do."""
        found = []
        if self.vgpr_spills or self.sgpr_spills:
            found.append(f"spills {self.vgpr_spills} VGPRs and {self.sgpr_spills} SGPRs")
        if self.scratch or self.dynamic_stack:
            found.append(
                f"uses {self.scratch} bytes of scratch a lane" + (" and a dynamic stack" if self.dynamic_stack else "")
            )
        if self.lds > LDS_BYTES[self.arch]:
            found.append(f"uses {self.lds} bytes of LDS; {self.arch} has {LDS_BYTES[self.arch]}")
        return found

    def problems(self) -> list[str]:
        """The faults, each with the kernel's name."""
        return [f"{self.kernel} [{self.arch}] {fault}" for fault in self.faults()]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def occupancy(arch: str, registers: int, lds: int, threads: int) -> int:
    """Waves on each SIMD, in whole work-groups: limited by registers (one file for VGPRs and AGPRs), LDS, and 8.

    Source: CDNA3 and CDNA4 instruction set architecture guides, "Kernel state" chapters.
    """
    given = max(VGPR_GRANULE, -(-registers // VGPR_GRANULE) * VGPR_GRANULE)
    waves_per_cu = min(MAX_WAVES, VGPRS // given) * SIMDS
    waves_per_group = -(-threads // WAVE)
    groups = waves_per_cu // waves_per_group
    if lds:
        groups = min(groups, LDS_BYTES[arch] // lds)
    return groups * waves_per_group // SIMDS


# --- ELF --------------------------------------------------------------------------------------------------------------


class CodeObject:
    """An ELF file for AMDGPU, read as a whole: a path, or the file's content."""

    def __init__(self, source: Path | str | bytes) -> None:
        self.name = "the code object" if isinstance(source, bytes) else str(source)
        self.data = source if isinstance(source, bytes) else Path(source).read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", self.data, 18)[0] != EM_AMDGPU:
            raise ValueError(f"{self.name} is no 64-bit ELF file for AMDGPU: it starts with {self.data[:6]!r}")
        flags = struct.unpack_from("<I", self.data, 48)[0]
        self.arch = MACHINES.get(flags & 0xFF, f"machine 0x{flags & 0xFF:x}")
        self.abi_version = self.data[8]

    def _sections(self) -> list[tuple[int, int, int, int]]:
        """(type, offset, size, index of the linked section) of each section."""
        offset = struct.unpack_from("<Q", self.data, 40)[0]
        size, count = struct.unpack_from("<HH", self.data, 58)
        headers = [struct.unpack_from("<IIQQQQII", self.data, offset + i * size) for i in range(count)]
        return [(header[1], header[4], header[5], header[6]) for header in headers]

    def metadata(self) -> dict[str, Any]:
        for kind, offset, size, _ in self._sections():
            end = offset + size
            while kind == SHT_NOTE and offset + 12 <= end:
                name_size, desc_size, note_type = struct.unpack_from("<III", self.data, offset)
                name_at = offset + 12
                desc_at = name_at + (name_size + 3) // 4 * 4
                if note_type == NOTE_TYPE and self.data[name_at : name_at + name_size].rstrip(b"\0") == b"AMDGPU":
                    return unpack(self.data[desc_at : desc_at + desc_size])
                offset = desc_at + (desc_size + 3) // 4 * 4
        raise ValueError(f"{self.name} has no AMDGPU metadata note")

    def undefined_symbols(self) -> list[str]:
        """Names that a loader would have to find elsewhere; a code object that can be loaded has none."""
        sections = self._sections()
        names = []
        for kind, offset, size, link in sections:
            if kind != SHT_DYNSYM:
                continue
            for at in range(offset + 24, offset + size, 24):  # the first entry is empty by definition
                name, _, _, section = struct.unpack_from("<IBBH", self.data, at)
                if section == 0:
                    start = sections[link][1] + name
                    names.append(self.data[start : self.data.index(b"\0", start)].decode())
        return names

    def kernels(self) -> list[KernelResources]:
        if self.arch not in LDS_BYTES:
            raise ValueError(f"{self.name} is for {self.arch}; {' and '.join(LDS_BYTES)} are accepted")
        found = []
        for kernel in self.metadata()["amdhsa.kernels"]:
            vgpr, agpr = kernel[".vgpr_count"], kernel.get(".agpr_count", 0)
            lds, threads = kernel[".group_segment_fixed_size"], kernel[".max_flat_workgroup_size"]
            found.append(
                KernelResources(
                    kernel=kernel[".name"],
                    arch=self.arch,
                    threads=threads,
                    vgpr=vgpr,  # of the unified file: AGPRs included
                    agpr=agpr,
                    sgpr=kernel[".sgpr_count"],
                    lds=lds,
                    scratch=kernel[".private_segment_fixed_size"],
                    vgpr_spills=kernel.get(".vgpr_spill_count", 0),
                    sgpr_spills=kernel.get(".sgpr_spill_count", 0),
                    kernarg=kernel[".kernarg_segment_size"],
                    dynamic_stack=bool(kernel.get(".uses_dynamic_stack", False)),
                    occupancy=occupancy(self.arch, vgpr, lds, threads),
                )
            )
        return found


# --- MessagePack ------------------------------------------------------------------------------------------------------


def unpack(data: bytes) -> Any:
    """The value that `data` encodes; the types that compilers write (no floats, no extensions)."""
    value, _ = _value(data, 0)
    return value


def _number(data: bytes, at: int, form: str) -> tuple[int, int]:
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def _value(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag < 0x90:
        return _map(data, at, tag & 0x0F)
    if tag < 0xA0:
        return _array(data, at, tag & 0x0F)
    if tag < 0xC0:
        return _text(data, at, tag & 0x1F)
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    integers = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    if tag in integers:
        return _number(data, at, integers[tag])
    sized: dict[int, tuple[Callable[[bytes, int, int], tuple[Any, int]], str]]
    sized = {0xD9: (_text, ">B"), 0xDA: (_text, ">H"), 0xDB: (_text, ">I")}
    sized |= {0xDC: (_array, ">H"), 0xDD: (_array, ">I"), 0xDE: (_map, ">H"), 0xDF: (_map, ">I")}
    if tag in sized:
        read, form = sized[tag]
        count, at = _number(data, at, form)
        return read(data, at, count)
    raise ValueError(f"MessagePack type 0x{tag:02x} is not expected in AMDGPU metadata")


def _text(data: bytes, at: int, count: int) -> tuple[str, int]:
    return data[at : at + count].decode(), at + count


def _array(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(count):
        item, at = _value(data, at)
        items.append(item)
    return items, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    items = {}
    for _ in range(count):
        key, at = _value(data, at)
        items[key], at = _value(data, at)
    return items, at
