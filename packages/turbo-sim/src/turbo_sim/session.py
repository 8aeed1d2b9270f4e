# SPDX-License-Identifier: MIT
"""`turbo_sim.use("gfx950")`: inside the block, CPU tensors are tensors of that device."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from turbo_sim import triton_driver
from turbo_sim.hip_library import HipLibrary, hip, library_path

__all__ = ["Session", "simulated", "use"]

ARCHS = ("gfx942", "gfx950")
CHECKS = ("bounds", "uninit", "wait", "race", "registers", "hazard")
_VARIABLE = "TURBO_HIP_LIBRARY"
_active: list[str] = []


def simulated() -> str | None:
    """The architecture that is being simulated in this process, or None."""
    return _active[-1] if _active else None


@dataclass
class Session:
    """What `use` hands out."""

    arch: str
    library: HipLibrary
    _start: dict[str, int]

    @property
    def instructions(self) -> int:
        """Wave-instructions executed in this session."""
        return self.library.counter("instructions") - self._start["instructions"]

    @property
    def launches(self) -> int:
        return self.library.counter("launches") - self._start["launches"]

    @property
    def findings(self) -> int:
        """Findings met (with findings="keep", launches succeed and this counts)."""
        return self.library.counter("findings") - self._start["findings"]

    def profiles(self) -> list[dict[str, Any]]:
        """Profiles of the launches since the last call, with costs=True. A model, not a measurement."""
        return json.loads(self.library.take_profiles())

    @contextmanager
    def memory(self, tensor: Any, name: str = "") -> Iterator[None]:
        """Announces a tensor that kernels reach through pointers in memory, for the bounds check of Triton launches."""
        storage = tensor.untyped_storage()
        self.library.announce(storage.data_ptr(), storage.nbytes(), name or str(tuple(tensor.shape)), next_launch=False)
        try:
            yield
        finally:
            self.library.withdraw(storage.data_ptr())


def _checks_text(checks: bool | Iterable[str]) -> str:
    if isinstance(checks, bool):
        return "all" if checks else "none"
    names = list(checks)
    for name in names:
        if name not in CHECKS:
            raise ValueError(f"checks: {name!r} is not one of {', '.join(CHECKS)}")
    return ",".join(names) or "none"


def _forget_hip_in_wheels() -> None:
    """Native wheels cache the HIP library and the architecture of device 0; those that are loaded look again."""
    for name, module in list(sys.modules.items()):
        if re.fullmatch(r"turbo_\w+\.pytorch\.kernels\.native", name) and callable(getattr(module, "reset", None)):
            module.reset()


@contextmanager
def _settings(library: HipLibrary, values: dict[str, str]) -> Iterator[None]:
    defaults = {
        "checks": "all",
        "threads": "0",
        "seed": "0",
        "max_steps": "0",
        "bounds": "known",
        "findings": "error",
        "record": "0",
        "arch": "gfx950",
    }
    before = {key: library.settings.get(key, defaults[key]) for key in values}
    for key, value in values.items():
        library.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            library.set(key, value)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def use(
    arch: str,
    *,
    checks: bool | Iterable[str] = True,
    costs: bool = False,
    findings: str = "error",
    bounds: str = "known",
    threads: int = 0,
    seed: int = 0,
    max_steps: int = 0,
    triton: bool | None = None,
) -> Iterator[Session]:
    """Simulate ``arch`` ("gfx942" or "gfx950") inside the block.

    Triton launches and wheels with HIP kernels run that architecture's machine code on CPU tensors, and turbo_core
    reports it for them. Process-wide, since autograd uses other threads.

    Args:
        checks: True for all, False for none, or names out of bounds, uninit, wait, race, registers, hazard.
        costs: count what a profile needs; `Session.profiles()` returns them.
        findings: "error": a launch with findings raises SimulationError; "keep": they are only counted and profiled.
        bounds: "known": a Triton kernel may touch its own arguments' memory, a HIP kernel torch's CPU tensors;
            "process": whatever the process has mapped, for kernels that follow pointers stored in memory. A HIP launch
            with an address in memory of unknown extent (a numpy array, a tensor older than the first `use`) is
            "process" too.
        threads: host threads, 0 for all. seed: not 0 interleaves waves at random, reproducibly.
        max_steps: stop a wave after that many instructions; 0: never.
        triton: None: use it if it can be; True: raise if it cannot; False: leave Triton alone.
    """
    if arch not in ARCHS:
        raise ValueError(f"arch={arch!r}: accepted are {', '.join(ARCHS)}")
    library = hip()
    values = {
        "arch": arch,
        "checks": _checks_text(checks),
        "threads": str(threads),
        "seed": str(seed),
        "max_steps": str(max_steps),
        "bounds": bounds,
        "findings": findings,
        "record": "1" if costs else "0",
    }
    with ExitStack() as stack:
        stack.enter_context(_settings(library, values))
        stack.enter_context(_environment(_VARIABLE, library_path()))
        if importlib.util.find_spec("torch") is not None:
            stack.enter_context(importlib.import_module("turbo_core.device").simulated_arch(arch))
        if triton is not False and importlib.util.find_spec("triton") is not None:
            reason = triton_driver.why_not()
            if reason is None:
                stack.enter_context(triton_driver.activate(arch))
            elif triton:
                raise RuntimeError(reason)
        elif triton:
            raise RuntimeError("triton is not installed")
        if "torch" in sys.modules:
            library.track_torch()
        _forget_hip_in_wheels()
        stack.callback(_forget_hip_in_wheels)
        _active.append(arch)
        stack.callback(_active.pop)
        start = {name: library.counter(name) for name in ("instructions", "launches", "findings")}
        yield Session(arch, library, start)
