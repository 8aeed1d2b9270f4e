# SPDX-License-Identifier: MIT
"""Backend TRITON of grouped products: a module of `turbo_grouped_gemm.triton` for each kind of call."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from turbo_grouped_gemm.calls import GroupedGemmCall, GroupedGemmFp8Call, GroupedWgradCall, GroupedWgradFp8Call

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = ["plan", "why_not"]

_MODULES = {
    GroupedGemmCall: "grouped_gemm",
    GroupedWgradCall: "grouped_wgrad",
    GroupedGemmFp8Call: "grouped_gemm_fp8",
    GroupedWgradFp8Call: "grouped_wgrad_fp8",
}
_imported: dict[type, ModuleType] = {}


def _module(call: Any) -> ModuleType:
    kind = type(call)
    module = _imported.get(kind)
    if module is None:
        module = _imported[kind] = importlib.import_module(f"turbo_grouped_gemm.triton.{_MODULES[kind]}")
    return module


def why_not(call: Any) -> str | None:
    """Why the kernels cannot take the call; None when they can."""
    answer: str | None = _module(call).why_not(call)
    return answer


def plan(call: Any, facts: DeviceFacts) -> Any:
    """The result and the launches that write it."""
    return _module(call).plan(call, facts)
