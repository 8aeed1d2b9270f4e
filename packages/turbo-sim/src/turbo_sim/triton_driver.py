# SPDX-License-Identifier: MIT
"""Triton driver that launches AMD code objects on the simulator, with CPU tensors as device tensors.

Triton compiles for the simulated architecture as it would on the card; the launch goes through Triton's own driver.c
into the simulator's libamdhip64.so. Each architecture is a device number of its own (942, 950), because Triton keeps
compiled kernels per device: switching within a process is safe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from turbo_sim.errors import SimulationError
from turbo_sim.hip_library import hip, library_path

__all__ = ["SimulatorDriver", "activate", "interpreting", "why_not"]

DEVICES = {"gfx942": 942, "gfx950": 950}
_INTERPRETER = "TRITON_INTERPRET"


def interpreting() -> bool:
    """Whether Triton's interpreter is asked for."""
    return os.environ.get(_INTERPRETER, "0").lower() in ("1", "true", "on", "yes", "y")


def why_not() -> str | None:
    """Reason that Triton kernels cannot run on the simulator in this process, or None."""
    if interpreting():
        return (
            f"{_INTERPRETER} is set: @triton.jit makes interpreted functions at import, which never reach a driver. "
            f"Run simulator code in a process without it (pytest: {_INTERPRETER}=0 pytest ...)"
        )
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"triton cannot be imported: {error}"
    return None


class _Event:
    """Stands for a device event. Elapsed "milliseconds" are millions of wave-instructions: for ranking, not a time."""

    def __init__(self, **_: Any) -> None:
        self.count = 0

    def record(self, *_: Any) -> None:
        self.count = hip().counter("instructions")

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: _Event) -> float:
        return (end.count - self.count) * 1e-6


class _DeviceInterface:
    """What Triton asks of `torch.cuda`."""

    Event = _Event

    def __init__(self, device: int) -> None:
        self._device = device

    def synchronize(self, *_: Any) -> None:
        pass

    def current_device(self) -> int:
        return self._device

    def set_device(self, *_: Any) -> None:
        pass

    def default_stream(self, *_: Any) -> int:
        return 0

    def stream(self, *_: Any) -> Any:
        return nullcontext()


def _count_based_bench(
    kernel_call: Callable[[], Any], *, quantiles: Sequence[float] | None = None, return_mode: str = "mean", **_: Any
) -> Any:
    """Replaces do_bench: one run, its wave-instructions in millions. The same on every run and machine."""
    before = hip().counter("instructions")
    kernel_call()
    value = (hip().counter("instructions") - before) * 1e-6
    if quantiles is not None:
        return [value] * len(quantiles) if len(quantiles) > 1 else value
    return [value] if return_mode == "all" else value


def _announce(args: Any, names: Iterator[int]) -> None:
    """Tells the library what memory a launch's tensors cover: whole storages, as strides may go anywhere in them."""
    for arg in args:
        if isinstance(arg, (tuple, list)):
            _announce(arg, names)
            continue
        tensor = (
            getattr(arg, "base", arg) if not hasattr(arg, "untyped_storage") else arg
        )  # a tensor descriptor has a base
        tensor = getattr(tensor, "base", tensor) if not hasattr(tensor, "untyped_storage") else tensor  # reinterpreted
        number = next(names)
        if hasattr(tensor, "untyped_storage"):
            storage = tensor.untyped_storage()
            name = f"argument {number}: {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
            hip().announce(storage.data_ptr(), storage.nbytes(), name, next_launch=True)


def _make_launcher(base: type) -> type:
    class SimulatorLauncher(base):  # type: ignore[misc, valid-type]
        def __call__(self, gridX: int, gridY: int, gridZ: int, *rest: Any) -> None:
            library = hip()
            args = rest[6:]  # stream, function, kernel metadata, launch metadata, two hooks
            _announce(args, iter(range(len(args) + 1000)))
            try:
                super().__call__(gridX, gridY, gridZ, *rest)
            except (RuntimeError, SystemError) as error:
                # driver.c calls the exit hook with the error set, which Python wraps; and it cuts the text at 1024
                # characters.
                if any("Triton Error [HIP]" in str(e) for e in (error, error.__cause__)):
                    raise SimulationError(library.last_text()) from None
                raise
            finally:
                library.withdraw_next()

    return SimulatorLauncher


def _make_driver() -> type:
    from triton import knobs

    knobs.amd.libhip_path = library_path()
    from triton.backends.amd import driver as amd

    class Driver(amd.HIPDriver):  # type: ignore[misc]
        """`HIPDriver` without torch.cuda."""

        def __init__(self, arch: str) -> None:  # HIPDriver's own binds torch.cuda
            self.arch = arch
            self.device = DEVICES[arch]
            self.utils = amd.HIPUtils()
            self.launcher_cls = _make_launcher(amd.HIPLauncher)

        @staticmethod
        def is_active() -> bool:
            return True

        def get_current_device(self) -> int:
            return self.device

        def set_current_device(self, device: int) -> None:
            if device != self.device:
                raise ValueError(f"device {device}: the simulated device is {self.device}")

        def get_current_stream(self, device: int | None = None) -> int:
            return 0

        def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
            return (9, 4) if self.arch == "gfx942" else (9, 5)

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cpu")

        def get_device_interface(self) -> Any:
            return _DeviceInterface(self.device)

        def get_benchmarker(self) -> Any:
            return _count_based_bench

        def get_empty_cache_for_benchmark(self) -> Any:
            import torch

            return torch.empty(1, dtype=torch.int32)

        def clear_cache(self, cache: Any) -> None:
            pass

        def allocate_default_profile_scratch(self, size: int, alignment: int, stream: Any) -> Any:
            import torch

            return torch.zeros(size, dtype=torch.int8)

    return Driver


_drivers: dict[str, Any] = {}


def SimulatorDriver(arch: str) -> Any:
    """The driver of an architecture, one per process."""
    if arch not in _drivers:
        _drivers[arch] = _make_driver()(arch)
    return _drivers[arch]


@contextmanager
def activate(arch: str) -> Iterator[None]:
    """Makes the simulator Triton's active driver inside the block."""
    reason = why_not()
    if reason is not None:
        raise RuntimeError(reason)
    from triton.runtime import driver

    before = driver._active
    driver.set_active(SimulatorDriver(arch))
    try:
        yield
    finally:
        driver._active = before
