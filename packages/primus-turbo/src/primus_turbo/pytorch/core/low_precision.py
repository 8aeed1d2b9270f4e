# SPDX-License-Identifier: MIT
"""FP8, FP4 and MX types and the configs of the ops that quantise."""

from typing import Any

from turbo_core import low_precision as _low_precision
from turbo_core.low_precision import (
    BLOCK_SIZE,
    MX_BLOCK_SIZE,
    MX_PADDING,
    Float4QuantConfig,
    Float8QuantConfig,
    Format,
    ScaleDtype,
    ScalingGranularity,
    ScalingRecipe,
    ScalingStrategy,
    check_fp8_ocp_support,
    check_fp8_support,
    check_mxfp4_support,
    check_mxfp8_support,
    fp8_dtype,
    fp8_max,
    is_fp4_dtype,
    is_fp8_dtype,
)

__all__ = [
    "BLOCK_SIZE",
    "MX_BLOCK_SIZE",
    "MX_PADDING",
    "Float4QuantConfig",
    "Float8QuantConfig",
    "Format",
    "ScaleDtype",
    "ScalingGranularity",
    "ScalingRecipe",
    "ScalingStrategy",
    "check_fp8_ocp_support",
    "check_fp8_support",
    "check_mxfp4_support",
    "check_mxfp8_support",
    "float4_e2m1fn_x2",  # noqa: F822
    "float8_e4m3",  # noqa: F822
    "float8_e5m2",  # noqa: F822
    "fp8_dtype",
    "fp8_max",
    "is_fp4_dtype",
    "is_fp8_dtype",
]


def __getattr__(name: str) -> Any:
    if name in __all__:  # the dtypes, looked up afresh at each use: they depend on the current device
        return getattr(_low_precision, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
