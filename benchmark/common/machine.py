# SPDX-License-Identifier: MIT
"""Where a benchmark runs: platform, device name, and how much memory its caches hold."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

MIB = 1 << 20
# torch reports the 4 MiB L2 of one die on AMD; the memory-side cache behind it holds this much on gfx942 and gfx950.
AMD_INFINITY_CACHE = 256 * MIB
CPU_CACHE = 32 * MIB


@dataclass(frozen=True)
class Machine:
    """The device under test.

    Attributes:
        device: as torch names it.
        platform: ``ROCm 7.0``, ``CUDA 13.0`` or ``CPU``, as written in results.
        name: of the GPU, or of the CPU's architecture.
        cache_bytes: the largest cache between the arithmetic and memory.
    """

    device: torch.device
    platform: str
    name: str
    cache_bytes: int


def find_machine(device: str | None = None) -> Machine:
    """The machine behind ``device``; None means the first GPU, else the CPU."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type == "cpu":
        return Machine(where, "CPU", platform.machine(), CPU_CACHE)
    properties = torch.cuda.get_device_properties(where)
    if torch.version.hip is not None:
        return Machine(where, f"ROCm {torch.version.hip}", properties.name, AMD_INFINITY_CACHE)
    cache = int(getattr(properties, "L2_cache_size", 64 * MIB))
    return Machine(where, f"CUDA {torch.version.cuda}", properties.name, cache)
