# SPDX-License-Identifier: MIT
"""Native libraries (HIP kernels) of the wheels, and the sources that their builds share.

`NativeLibrary` is what stands between a wheel's extension ``<package>.pytorch._C``, which takes integers and has never
heard of torch, and its functions on tensors: may it run, on which device index and stream, what a status means.

A wheel with native code has a copy of the shared sources in its sdist. A third party's build finds them here:

    execute_process(COMMAND python -c "from turbo_core.native import csrc_common_dir; print(csrc_common_dir())" ...)
    include(${folder}/cmake/TurboKernels.cmake)
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from turbo_core.device import device_facts
from turbo_core.errors import BackendUnavailableError, UnsupportedError
from turbo_core.requirements import require_torch

if TYPE_CHECKING:
    import torch

__all__ = ["NativeLibrary", "address", "csrc_common_dir", "device_code", "float_code", "fp8_code", "no_device_code"]

ARCHS = ("gfx942", "gfx950")
LIBRARY_VARIABLE = "TURBO_HIP_LIBRARY"


# --- what a wheel was built for ---------------------------------------------------------------------------------------


def device_code(package: str) -> tuple[str, ...] | None:
    """The architectures that a wheel has code objects for; None when it was built without native parts at all.

    ``package`` is the import name, such as ``turbo_norm_act``. It is not imported.
    """
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module that was made by hand and lies nowhere
        return None
    folders = [Path(folder) / "lib" for folder in (spec.submodule_search_locations if spec else None) or ()]
    if not any((folder / "resources.json").is_file() for folder in folders):
        return None
    return tuple(sorted({path.name.split(".")[-2] for folder in folders for path in folder.glob("*.hsaco")}))


def no_device_code(package: str) -> str | None:
    """The reason, where a wheel was built with ``GPU_ARCHS=none``; None for any other."""
    if device_code(package) != ():
        return None
    wheel = package.replace("_", "-")
    return f"{wheel} was built without device code (GPU_ARCHS=none); build it with GPU_ARCHS={' or '.join(ARCHS)}"


# --- the library of a wheel -------------------------------------------------------------------------------------------


class NativeLibrary:
    """The extension of one wheel: loaded at first use, asked whether it can run, its statuses made errors.

    A CPU tensor is device memory only under a simulator: its architecture is active (`turbo_core.simulated_arch`) and
    its library is named by ``TURBO_HIP_LIBRARY``.
    """

    def __init__(self, package: str) -> None:
        """``package`` is the import name of the wheel, such as ``turbo_norm_act``."""
        self.package = package
        self._extension: ModuleType | None = None
        self._answers: dict[tuple[Any, ...], str | None] = {}
        self._simulator: tuple[str | None, str] | None = (
            None  # library and arch behind the CPU tensors at the last call
        )

    @property
    def extension(self) -> ModuleType:
        """The module ``_C``; ImportError where the wheel was installed without it."""
        if self._extension is None:
            self._extension = importlib.import_module(f"{self.package}.pytorch._C")
        return self._extension

    def reset(self) -> None:
        """Forget the HIP library and what is known of devices; a simulator calls it when it changes either."""
        self._answers.clear()
        if self._extension is not None:
            self._extension.reset()

    def why_not(self, device: torch.device) -> str | None:
        """Why the HIP kernels cannot run on tensors of ``device``; None when they can."""
        facts = device_facts(device)
        key = (device, facts.arch, os.environ.get(LIBRARY_VARIABLE) if device.type == "cpu" else None)
        if key in self._answers:
            return self._answers[key]
        reason, lasting = self._find_reason(device, facts.arch)
        if lasting:
            self._answers[key] = reason
        return reason

    def _find_reason(self, device: torch.device, arch: str) -> tuple[str | None, bool]:
        """The reason, and whether it will be the same next time (someone may still load a missing HIP library)."""
        if arch not in ARCHS:
            return f"the HIP kernels are for {' and '.join(ARCHS)}; {device} is {arch}", True
        if (reason := self._no_device_code()) is not None:
            return reason, True
        try:
            extension = self.extension
        except ImportError as error:
            wheel = self.package.replace("_", "-")
            return f"{wheel} was installed without its native library: {error}", True
        if device.type == "cpu" and not os.environ.get(LIBRARY_VARIABLE):
            return f"CPU tensors stand for {arch}, but no simulator is active ({LIBRARY_VARIABLE} is not set)", False
        index = self._index(device)
        if extension.check(index) != extension.OK:
            return extension.last_error(), False
        found = extension.device_arch(index)
        if found != arch:
            return f"the HIP library reports {found} for device {index}, torch {arch}", False
        return None, True

    def _no_device_code(self) -> str | None:
        loaded = self._extension is not None  # a build without device code has no extension
        return None if loaded else no_device_code(self.package)

    def _index(self, device: torch.device) -> int:
        """The HIP device index. Device 0 of a simulator is the CPU's memory; its architecture can change any time."""
        if device.type != "cpu":
            return require_torch().cuda.current_device() if device.index is None else device.index
        state = (os.environ.get(LIBRARY_VARIABLE), device_facts(device).arch)
        if state != self._simulator:
            self.extension.reset()
            self._simulator = state
        return 0

    def where(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Device index and stream for work on ``tensor``."""
        if tensor.device.type == "cpu":
            return self._index(tensor.device), 0
        return self._index(tensor.device), require_torch().cuda.current_stream(tensor.device).cuda_stream

    def check(self, status: int) -> None:
        """Raise what a status of the extension means.

        Raises:
            UnsupportedError: the library refused an argument.
            BackendUnavailableError: there is no HIP run time, or no code object for the device.
            RuntimeError: a HIP call failed.
        """
        if status == 0:
            return
        extension = self.extension
        text = extension.last_error()
        if status == extension.ERROR_ARGUMENT:
            raise UnsupportedError(text)
        if status in (extension.ERROR_NO_RUNTIME, extension.ERROR_NO_KERNEL):
            raise BackendUnavailableError(text)
        raise RuntimeError(text)


# --- tensors as the extensions take them ------------------------------------------------------------------------------

# turbo_dtype of turbo/abi.h
_FLOAT_CODES = {"float32": 0, "float16": 1, "bfloat16": 2}
_FP8_CODES = {"float8_e4m3fn": 3, "float8_e5m2": 4, "float8_e4m3fnuz": 5, "float8_e5m2fnuz": 6}


@functools.cache
def _codes(fp8: bool) -> dict[torch.dtype, int]:
    torch = require_torch()
    return {getattr(torch, name): code for name, code in (_FP8_CODES if fp8 else _FLOAT_CODES).items()}


def _code(name: str, dtype: torch.dtype, codes: dict[torch.dtype, int]) -> int:
    code = codes.get(dtype)
    if code is None:
        raise UnsupportedError(f"{name}={dtype}: accepted are {', '.join(str(known) for known in codes)}")
    return code


def float_code(name: str, dtype: torch.dtype) -> int:
    """The turbo_dtype of a float32, float16 or bfloat16; ``name`` is what an error calls it, such as ``x.dtype``."""
    return _code(name, dtype, _codes(False))


def fp8_code(name: str, dtype: torch.dtype) -> int:
    """The turbo_dtype of one of torch's four FP8 types."""
    return _code(name, dtype, _codes(True))


def address(tensor: torch.Tensor | None) -> int:
    """Where a tensor's first element lies; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


# --- shared sources ---------------------------------------------------------------------------------------------------


def csrc_common_dir() -> Path:
    """The folder with ``cmake/TurboKernels.cmake``, ``include/turbo`` and ``host/turbo``."""
    here = Path(__file__).resolve()
    candidates = [here.parent / "csrc_common"]  # an installed wheel
    if len(here.parents) > 4:
        candidates.append(here.parents[4] / "csrc-common")  # an editable install: the repository's own folder
    for folder in candidates:
        if (folder / "cmake" / "TurboKernels.cmake").is_file():
            return folder
    raise FileNotFoundError(
        f"turbo-core's shared native sources are missing; looked at {', '.join(str(folder) for folder in candidates)}"
    )
