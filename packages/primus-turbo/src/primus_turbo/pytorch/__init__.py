# SPDX-License-Identifier: MIT
"""The PyTorch front end: `turbo.ops`, `turbo.modules`, `turbo.core` and the low-precision dtypes."""

from typing import Any

from primus_turbo.pytorch import core, modules, ops
from turbo_core import low_precision

__all__ = ["core", "float4_e2m1fn_x2", "float8_e4m3", "float8_e5m2", "modules", "ops"]

_DTYPES = ("float8_e4m3", "float8_e5m2", "float4_e2m1fn_x2")


def __getattr__(name: str) -> Any:
    if name in _DTYPES:  # looked up afresh at each use: the type depends on the current device
        return getattr(low_precision, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
