# SPDX-License-Identifier: MIT
"""Facts of a device that kernels and backends choose by: architecture, compute units, LDS, FP8 encoding.

Hardware constants live here and nowhere else in Python. Facts are kept per device, so a process that drives several
kinds of GPU gets the right ones for each tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from turbo_core.errors import UnsupportedError
from turbo_core.requirements import require_torch

if TYPE_CHECKING:
    import torch

__all__ = ["DeviceFacts", "arch_facts", "device_facts", "simulated_arch", "simulated_arch_name"]


@dataclass(frozen=True)
class DeviceFacts:
    """What is known of one device.

    Attributes:
        arch: ``gfx942``, ``gfx950``, another gfx name, ``sm_90`` (NVIDIA, for development) or ``cpu``.
        vendor: ``amd``, ``nvidia`` or ``cpu``.
        name: marketing name as the run time reports it.
        compute_units: compute units (AMD) or multiprocessors (NVIDIA); 1 on a CPU.
        xcds: accelerator dies that each have an L2 of their own; work-groups are dealt to them round-robin.
        wave_size: lanes of a wave.
        lds_bytes: local memory that one work-group may use.
        fp8_fnuz: True where the matrix units take the FNUZ FP8 types (gfx942), False where they take the OCP types.
    """

    arch: str
    vendor: str
    name: str
    compute_units: int
    xcds: int
    wave_size: int
    lds_bytes: int
    fp8_fnuz: bool


# The full-size part of each architecture: MI300X and MI325X (gfx942), MI350X and MI355X (gfx950).
# Source: AMD CDNA3 and CDNA4 architecture white papers.
_NOMINAL = {
    "gfx942": DeviceFacts("gfx942", "amd", "AMD Instinct MI300X", 304, 8, 64, 64 * 1024, True),
    "gfx950": DeviceFacts("gfx950", "amd", "AMD Instinct MI355X", 256, 8, 64, 160 * 1024, False),
}
# Compute units of one XCD; parts with fewer XCDs (MI300A) are told by their total.
_UNITS_PER_XCD = {"gfx942": 38, "gfx950": 32}
_CPU = DeviceFacts("cpu", "cpu", "CPU", 1, 1, 1, 0, False)

_facts: dict[torch.device, DeviceFacts] = {}
_simulated: list[str] = []


def arch_facts(arch: str) -> DeviceFacts:
    """Nominal facts of ``gfx942`` or ``gfx950``, for compiling ahead of time without such a device."""
    if arch not in _NOMINAL:
        raise UnsupportedError(f"arch={arch!r}: accepted are {', '.join(sorted(_NOMINAL))}")
    return _NOMINAL[arch]


def device_facts(device: torch.device | str | int | None = None) -> DeviceFacts:
    """Facts of ``device``; of the current CUDA/HIP device, else the CPU, when it is None."""
    where: Any = device  # only a device with its index, or the CPU, is ever a key
    known = _facts.get(where)
    return _find(where) if known is None else known


def _find(where: torch.device | str | int | None) -> DeviceFacts:
    """Facts of a device that is not in the table yet, or was given in another form."""
    torch = require_torch()
    if where is None:
        where = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(where)
    if device in _facts:
        return _facts[device]
    if device.type == "cpu":
        found = _NOMINAL[_simulated[-1]] if _simulated else _CPU
    elif device.type != "cuda":
        raise UnsupportedError(
            f"device={str(device)!r}: accepted are cpu and cuda (AMD GPUs are cuda devices in torch)"
        )
    elif device.index is None:
        return device_facts(torch.device("cuda", torch.cuda.current_device()))
    else:
        found = _read(device)
    _facts[device] = found
    return found


def _read(device: torch.device) -> DeviceFacts:
    torch = require_torch()
    properties = torch.cuda.get_device_properties(device)
    units = properties.multi_processor_count
    if torch.version.hip is None:
        arch = f"sm_{properties.major}{properties.minor}"
        lds = getattr(properties, "shared_memory_per_block_optin", 48 * 1024)
        return DeviceFacts(arch, "nvidia", properties.name, units, 1, 32, lds, False)
    arch = properties.gcnArchName.split(":")[0]
    if arch in _NOMINAL:
        xcds = max(1, units // _UNITS_PER_XCD[arch])
        return replace(_NOMINAL[arch], name=properties.name, compute_units=units, xcds=xcds)
    wave = getattr(properties, "warp_size", 64)
    return DeviceFacts(arch, "amd", properties.name, units, 1, wave, 64 * 1024, False)


def simulated_arch_name() -> str | None:
    """The architecture that CPU tensors stand for at the moment, None when they are plain CPU tensors."""
    return _simulated[-1] if _simulated else None


@contextmanager
def simulated_arch(arch: str) -> Iterator[DeviceFacts]:
    """CPU tensors report ``arch`` (``gfx942`` or ``gfx950``) inside the block.

    A simulator that executes that architecture's code on CPU memory switches this on; tests use it to see the choices
    made for an architecture. It is process-wide, since gradients are computed on other threads.
    """
    facts = arch_facts(arch)
    _simulated.append(arch)
    _forget_cpu()
    try:
        yield facts
    finally:
        _simulated.pop()
        _forget_cpu()


def _forget_cpu() -> None:
    for device in [known for known in _facts if known.type == "cpu"]:
        del _facts[device]
