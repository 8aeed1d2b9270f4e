# SPDX-License-Identifier: MIT
"""Reads what a gfx942/gfx950 code object says of its kernels: registers, spills, scratch, LDS.

The reader is csrc-common/cmake/code_object.py, which the builds of native wheels run by itself; turbo-core ships it as
data and loads it here. Only the standard library is needed, so the audit runs wherever the wheels do.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from turbo_core.errors import UnsupportedError
from turbo_core.native import csrc_common_dir

__all__ = ["CodeObject", "KernelResources", "kernel_resources", "occupancy"]


def _load() -> ModuleType:
    path = csrc_common_dir() / "cmake" / "code_object.py"
    spec = importlib.util.spec_from_file_location("turbo_core._code_object", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:  # mypy finds the file by its folder
    from code_object import CodeObject, KernelResources, occupancy
else:
    _reader = _load()
    CodeObject, KernelResources, occupancy = _reader.CodeObject, _reader.KernelResources, _reader.occupancy


def kernel_resources(code_object: bytes) -> list[KernelResources]:
    """The resources of every kernel in an ELF code object.

    Raises:
        UnsupportedError: it is not an ELF code object for gfx942 or gfx950, or it has no kernel metadata.
    """
    try:
        return CodeObject(code_object).kernels()
    except ValueError as refused:
        raise UnsupportedError(f"code object: {refused}") from None
