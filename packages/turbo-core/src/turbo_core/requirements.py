# SPDX-License-Identifier: MIT
"""torch and triton are the user's own builds: found and version-checked at first use, never installed by a wheel."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from types import ModuleType
from typing import TYPE_CHECKING

from turbo_core import interpreter

if TYPE_CHECKING:
    import torch

__all__ = ["require_torch", "require_triton", "why_no_triton"]

# oldest release each wheel is built and tested against
MINIMUM = {"torch": (2, 6), "triton": (3, 4)}
_INSTALL_LINE = {
    "torch": "pip install 'turbo-core[torch]', or on AMD GPUs first the ROCm build of torch from pytorch.org",
    "triton": "pip install 'turbo-core[triton]' (a ROCm build of torch brings its own)",
}


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(n) for n in numbers)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])


@functools.cache
def _why_no(name: str) -> str | None:
    """Why module ``name`` cannot be used in this process; None when it can."""
    if importlib.util.find_spec(name) is None:
        return f"{name} is not installed: {_INSTALL_LINE[name]}"
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a broken install fails in many ways; the reason goes to the user
        return f"{name} is installed but its import failed: {type(error).__name__}: {error}"
    version = str(getattr(module, "__version__", "0.0"))
    if _release(version) < MINIMUM[name]:
        return f"{name} {version} is too old: {_dotted(MINIMUM[name])} or newer is needed: {_INSTALL_LINE[name]}"
    return None


@functools.cache
def _require(name: str) -> ModuleType:
    reason = _why_no(name)
    if reason is not None:
        raise ImportError(reason)
    return importlib.import_module(name)


def require_torch() -> ModuleType:
    """The torch module; ImportError with the line to type when it is missing or older than 2.6."""
    return _require("torch")


def require_triton() -> ModuleType:
    """The triton module; ImportError with the line to type when it is missing or older than 3.4."""
    return _require("triton")


def why_no_triton(device: torch.device) -> str | None:
    """Why Triton kernels cannot run on tensors of ``device``; None when they can.

    A CPU tensor needs Triton's interpreter (``TRITON_INTERPRET=1`` set before triton is imported) or a simulated
    architecture (`turbo_core.simulated_arch`). Where the interpreter runs the kernels, on a GPU too, its arithmetic is
    mended the first time that this is asked (`turbo_core.interpreter`).
    """
    if device.type == "cuda":
        return _why_no("triton") or _why_not_interpreted()
    if device.type == "cpu":
        from turbo_core.device import simulated_arch_name

        wanted = interpreter.requested()
        if not wanted and simulated_arch_name() is None:
            return f"the tensors are on cpu, where Triton kernels run only with {interpreter.VARIABLE}=1"
        reason = _why_no("triton") or _why_not_interpreted()
        if reason is None and wanted and not interpreter.is_in_use():
            return f"{interpreter.VARIABLE} was set after triton was imported: set it before the process starts"
        return reason
    return f"Triton kernels do not run on {device.type} tensors"


@functools.cache
def _why_not_interpreted() -> str | None:
    """What speaks against the interpreter where kernels run in it; None where they are compiled."""
    return interpreter.why_not() if interpreter.is_in_use() else None
