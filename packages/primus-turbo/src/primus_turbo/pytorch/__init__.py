# SPDX-License-Identifier: MIT
"""The PyTorch front end: `turbo.ops`, `turbo.modules`, `turbo.core`, `turbo.dist` and the low-precision dtypes."""

from typing import Any

from primus_turbo.planned import no_attribute
from primus_turbo.pytorch import core, dist, kernels, modules, ops
from primus_turbo.pytorch.kernels import raw_ops
from turbo_core import low_precision

__all__ = ["core", "dist", "float4_e2m1fn_x2", "float8_e4m3", "float8_e5m2", "kernels", "modules", "ops"]

_DTYPES = ("float8_e4m3", "float8_e5m2", "float4_e2m1fn_x2")

raw_ops.register()


def __getattr__(name: str) -> Any:
    if name in _DTYPES:  # looked up afresh at each use: the type depends on the current device
        return getattr(low_precision, name)
    raise no_attribute(__name__, name)
