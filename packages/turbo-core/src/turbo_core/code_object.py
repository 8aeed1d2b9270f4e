# SPDX-License-Identifier: MIT
"""Reads what a gfx942/gfx950 code object says of its kernels: registers, spills, scratch, LDS.

A code object is an ELF file; its ``AMDGPU`` note holds a MessagePack map (LLVM's AMDGPU usage guide, "Code Object V3
and above metadata"). Only the standard library is needed, so the audit runs wherever the wheels do.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from turbo_core.errors import UnsupportedError

__all__ = ["KernelResources", "kernel_resources"]

_SHT_NOTE = 7
_NT_AMDGPU_METADATA = 32
_ARCH_OF_MACHINE = {0x4C: "gfx942", 0x4F: "gfx950"}  # e_flags & 0xff


@dataclass(frozen=True)
class KernelResources:
    """What one kernel uses. VGPRs are the total of vector and accumulation registers of a lane.

    Attributes:
        name: symbol of the kernel.
        arch: architecture that the code object is for.
        vgprs, agprs, sgprs: registers; ``agprs`` are part of ``vgprs``.
        vgpr_spills, sgpr_spills: registers that did not fit.
        lds: bytes of LDS fixed at compile time.
        scratch: bytes of private memory a lane.
        max_work_group: most work-items a work-group may have.
    """

    name: str
    arch: str
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds: int
    scratch: int
    max_work_group: int


def kernel_resources(code_object: bytes) -> list[KernelResources]:
    """The resources of every kernel in an ELF code object.

    Raises:
        UnsupportedError: it is not an ELF code object for gfx942 or gfx950, or it has no kernel metadata.
    """
    if code_object[:5] != b"\x7fELF\x02":
        raise UnsupportedError(f"code object: starts with {code_object[:5]!r}; a 64-bit ELF file is accepted")
    machine = struct.unpack_from("<I", code_object, 0x30)[0] & 0xFF
    if machine not in _ARCH_OF_MACHINE:
        raise UnsupportedError(f"code object: e_flags name machine {machine:#x}; gfx942 and gfx950 are accepted")
    metadata = _read_msgpack(_metadata_note(code_object))
    return [_resources(kernel, _ARCH_OF_MACHINE[machine]) for kernel in metadata["amdhsa.kernels"]]


def _resources(kernel: dict[str, Any], arch: str) -> KernelResources:
    return KernelResources(
        name=kernel[".name"],
        arch=arch,
        vgprs=kernel[".vgpr_count"],
        agprs=kernel.get(".agpr_count", 0),
        sgprs=kernel[".sgpr_count"],
        vgpr_spills=kernel[".vgpr_spill_count"],
        sgpr_spills=kernel[".sgpr_spill_count"],
        lds=kernel[".group_segment_fixed_size"],
        scratch=kernel[".private_segment_fixed_size"],
        max_work_group=kernel[".max_flat_workgroup_size"],
    )


def _metadata_note(elf: bytes) -> bytes:
    """The descriptor of the AMDGPU metadata note."""
    section_offset = struct.unpack_from("<Q", elf, 0x28)[0]
    entry_size, count = struct.unpack_from("<HH", elf, 0x3A)
    for index in range(count):
        header = section_offset + index * entry_size
        if struct.unpack_from("<I", elf, header + 4)[0] != _SHT_NOTE:
            continue
        position, size = struct.unpack_from("<QQ", elf, header + 0x18)
        end = position + size
        while position < end:
            name_size, descriptor_size, kind = struct.unpack_from("<III", elf, position)
            name = elf[position + 12 : position + 12 + name_size]
            descriptor = position + 12 + -(-name_size // 4) * 4
            if kind == _NT_AMDGPU_METADATA and name.rstrip(b"\0") == b"AMDGPU":
                return elf[descriptor : descriptor + descriptor_size]
            position = descriptor + -(-descriptor_size // 4) * 4
    raise UnsupportedError("code object: has no AMDGPU metadata note")


# --- MessagePack, the part that the notes use: maps, arrays, text, integers, booleans, nil ------------------------

_FIXED = {
    0xCC: "B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: "b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
    0xCA: ">f", 0xCB: ">d",
}  # fmt: skip
_LENGTHS = {0xD9: "B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def _read_msgpack(data: bytes) -> Any:
    value, _ = _read_value(data, 0)
    return value


def _read_value(data: bytes, at: int) -> tuple[Any, int]:
    """The value that starts at byte ``at``, and where the next one starts."""
    tag, at = data[at], at + 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag in _FIXED:
        return struct.unpack_from(_FIXED[tag], data, at)[0], at + struct.calcsize(_FIXED[tag])
    if tag in _LENGTHS:
        length = struct.unpack_from(_LENGTHS[tag], data, at)[0]
        at += struct.calcsize(_LENGTHS[tag])
        kind = "text" if tag <= 0xDB else "array" if tag <= 0xDD else "map"
    elif tag < 0xA0:
        kind, length = ("map" if tag < 0x90 else "array"), tag & 0xF
    elif tag < 0xC0:
        kind, length = "text", tag & 0x1F
    else:
        raise UnsupportedError(f"code object: MessagePack tag {tag:#x} in its metadata is not known")
    if kind == "text":
        return data[at : at + length].decode("utf-8"), at + length
    items = []
    for _ in range(length * (2 if kind == "map" else 1)):
        item, at = _read_value(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2])) if kind == "map" else items), at
