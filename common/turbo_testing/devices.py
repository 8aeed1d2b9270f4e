# SPDX-License-Identifier: MIT
"""What the test process runs on: count, pin and describe devices.

Counting must not create a context on any device: the controller of an xdist run counts, and each of its workers then
narrows the visible devices to one before torch initialises. Everything here works without torch (count is 0).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import MutableMapping

COUNT_VARIABLE = "TURBO_TESTING_GPU_COUNT"
"""Set by the controller, read by its workers, so that a worker counts nothing."""

ARCH_VARIABLE = "TURBO_TEST_ARCH"
"""The architecture that CPU tensors stand for in this run (`nox -s test-gfx950` without the card), for the header."""


def _torch():  # type: ignore[no-untyped-def]
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch


def gpu_count(environ: MutableMapping[str, str] = os.environ) -> int:
    """Number of GPUs that this run may use; an xdist worker takes its controller's answer."""
    inherited = environ.get(COUNT_VARIABLE)
    if inherited is not None and "PYTEST_XDIST_WORKER" in environ:
        return int(inherited)
    torch = _torch()
    return 0 if torch is None else torch.cuda.device_count()


def pin_worker(environ: MutableMapping[str, str], worker: str, count: int, rocm: bool) -> str | None:
    """Gives xdist worker `gwN` the GPU N % count; returns the entry it chose, None when there is nothing to choose.

    A list of visible devices that the caller set is narrowed, never widened: the worker takes the N-th entry of it.
    HIP reads HIP_VISIBLE_DEVICES and, where that is unset, CUDA_VISIBLE_DEVICES; when the caller used the second one
    both are set, so that they cannot disagree. ROCR_VISIBLE_DEVICES filters below HIP and is left alone.
    """
    if count < 1 or not worker.startswith("gw"):
        return None
    names = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if rocm else ("CUDA_VISIBLE_DEVICES",)
    given = next((environ[name] for name in names if environ.get(name)), None)
    entries = [entry.strip() for entry in given.split(",")] if given else [str(i) for i in range(count)]
    entries = entries[:count]
    chosen = entries[int(worker[2:]) % len(entries)]
    for position, name in enumerate(names):
        if position == 0 or name in environ:
            environ[name] = chosen
    return chosen


def is_rocm() -> bool:
    """True when the installed torch is a ROCm build."""
    torch = _torch()
    return torch is not None and torch.version.hip is not None


def arch_of(properties) -> str:  # type: ignore[no-untyped-def]
    """`gfx950` or `sm_90` from torch's device properties."""
    torch = _torch()
    if torch is not None and torch.version.hip is not None:
        return properties.gcnArchName.split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def version_of(distribution: str) -> str:
    """Version of an installed distribution, `none` when absent; asks the metadata, imports nothing."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def describe(count: int, initialise: bool) -> str:
    """One line: device, arch, torch and triton version, interpreter on or off.

    `initialise=False` is for an xdist controller: it knows the count but touches no device.
    """
    from turbo_testing import interpreter

    if count == 0:
        arch = os.environ.get(ARCH_VARIABLE)
        device = f"CPU standing for {arch}" if arch else "CPU"
    elif initialise:
        torch = _torch()
        properties = torch.cuda.get_device_properties(0)
        device = f"{count} x {properties.name}, arch {arch_of(properties)}"
    else:
        device = f"{count} GPU(s), one per worker"
    triton = version_of("triton")
    if triton == "none":
        triton = version_of("pytorch-triton-rocm")
    state = "on" if interpreter.requested() else "off"
    return f"turbo: {device}; torch {version_of('torch')}; triton {triton}; interpreter {state}"
