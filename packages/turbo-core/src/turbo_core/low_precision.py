# SPDX-License-Identifier: MIT
"""Low-precision types and quantisation configs.

FP8 is the OCP type everywhere except on gfx942, whose matrix units take the FNUZ types. The type is resolved for a
device when it is asked for, never at import: ``float8_e4m3`` and ``float8_e5m2`` are looked up afresh for the current
device at each use; `fp8_dtype` does it for the device of a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from turbo_core.device import device_facts
from turbo_core.errors import UnsupportedError
from turbo_core.requirements import require_torch

if TYPE_CHECKING:
    import torch

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
    "fp8_amax_floor",
    "fp8_dtype",
    "fp8_max",
    "is_fp4_dtype",
    "is_fp8_dtype",
    "memory_dtype",
    "config_or_default",
]

MX_BLOCK_SIZE = 32  # elements that share an E8M0 scale (OCP Microscaling Formats v1.0)
MX_PADDING = 128  # MX payloads are padded to this along the contraction, the K of one scaled MFMA
BLOCK_SIZE = 128  # default tile edge of BLOCKWISE scaling

_FP8_MAX = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0, "float8_e5m2fnuz": 57344.0}
_PER_DEVICE_NAMES = ("float8_e4m3", "float8_e5m2", "float4_e2m1fn_x2")


class Format(Enum):
    """Storage format; HYBRID is E4M3 forward and E5M2 for the gradient of the output."""

    E4M3 = "e4m3"
    E5M2 = "e5m2"
    E2M1_X2 = "e2m1_x2"
    HYBRID = "hybrid"


class ScaleDtype(Enum):
    """Type of the scales: float32, or a power of two in a byte."""

    FP32 = "fp32"
    E8M0 = "e8m0"


class ScalingGranularity(Enum):
    """How much of a tensor shares a scale."""

    TENSORWISE = "tensorwise"
    ROWWISE = "rowwise"
    BLOCKWISE = "blockwise"
    MX_BLOCKWISE = "mx_blockwise"


class ScalingStrategy(Enum):
    """DYNAMIC: scales come from the tensor at hand."""

    DYNAMIC = "dynamic"


class ScalingRecipe(NamedTuple):
    """Options of one quantisation: 2-D blocks, stochastic rounding, Hadamard rotation, shuffled scales and payload."""

    use_2d_block: bool = False
    use_sr: bool = False
    use_rht: bool = False
    shuffle_scale: bool = False
    shuffle_out: bool = False


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UnsupportedError(message)


@dataclass
class Float8QuantConfig:
    """How FP8 ops quantise.

    Raises:
        UnsupportedError: BLOCKWISE without a positive ``block_size``; MX_BLOCKWISE with a block other than 32 or
            scales other than E8M0; a 4-bit format.
    """

    format: Format = Format.E4M3
    granularity: ScalingGranularity = ScalingGranularity.TENSORWISE
    strategy: ScalingStrategy = ScalingStrategy.DYNAMIC
    scale_dtype: ScaleDtype = ScaleDtype.FP32
    block_size: int | None = None

    def __post_init__(self) -> None:
        name = "Float8QuantConfig"
        _require(self.format is not Format.E2M1_X2, f"{name}: format={self.format} is not an FP8 format")
        if self.granularity is ScalingGranularity.BLOCKWISE:
            valid = isinstance(self.block_size, int) and self.block_size > 0
            _require(valid, f"{name}: block_size={self.block_size!r} must be a positive number for BLOCKWISE")
        if self.granularity is ScalingGranularity.MX_BLOCKWISE:
            _check_mx(name, self.block_size, self.scale_dtype)


@dataclass
class Float4QuantConfig:
    """How FP4 ops quantise: MXFP4, blocks of 32 that share an E8M0 scale.

    Raises:
        UnsupportedError: any other granularity, format, block size or scale type.
    """

    format: Format = Format.E2M1_X2
    granularity: ScalingGranularity = ScalingGranularity.MX_BLOCKWISE
    strategy: ScalingStrategy = ScalingStrategy.DYNAMIC
    scale_dtype: ScaleDtype = ScaleDtype.E8M0
    block_size: int = MX_BLOCK_SIZE
    use_gradient_sr: bool = False
    use_preshuffle: bool = False

    def __post_init__(self) -> None:
        name = "Float4QuantConfig"
        _require(self.format is Format.E2M1_X2, f"{name}: format={self.format} must be E2M1_X2")
        mx = self.granularity is ScalingGranularity.MX_BLOCKWISE
        _require(mx, f"{name}: granularity={self.granularity} must be MX_BLOCKWISE")
        _check_mx(name, self.block_size, self.scale_dtype)


_Config = TypeVar("_Config", Float8QuantConfig, Float4QuantConfig)


def config_or_default(op: str, config: _Config | None, kind: type[_Config]) -> _Config:
    """``config``, which must be a ``kind``, or the default one in place of None; ``op`` is for the message."""
    if config is None:
        return kind()
    if not isinstance(config, kind):
        raise UnsupportedError(f"{op}: config is a {type(config).__name__}; a {kind.__name__} or None is accepted")
    return config


def _check_mx(name: str, block_size: int | None, scale_dtype: ScaleDtype) -> None:
    _require(block_size == MX_BLOCK_SIZE, f"{name}: block_size={block_size!r} must be {MX_BLOCK_SIZE} for MX_BLOCKWISE")
    _require(scale_dtype is ScaleDtype.E8M0, f"{name}: scale_dtype={scale_dtype} must be E8M0 for MX_BLOCKWISE")


def fp8_dtype(format: Format, device: torch.device | str | None = None, *, is_forward: bool = True) -> torch.dtype:
    """The torch dtype of an FP8 ``format`` on ``device`` (None: the current one).

    HYBRID is E4M3 when ``is_forward``, E5M2 for the gradient of the output.
    """
    torch = require_torch()
    _require(format is not Format.E2M1_X2, f"fp8_dtype: format={format} is not an FP8 format")
    e4m3 = format is Format.E4M3 or (format is Format.HYBRID and is_forward)
    if device_facts(device).fp8_fnuz:
        return torch.float8_e4m3fnuz if e4m3 else torch.float8_e5m2fnuz
    return torch.float8_e4m3fn if e4m3 else torch.float8_e5m2


def fp8_max(dtype: torch.dtype) -> float:
    """The largest finite value of an FP8 dtype."""
    name = str(dtype).removeprefix("torch.")
    _require(name in _FP8_MAX, f"fp8_max: dtype={dtype} is not an FP8 type; accepted are {', '.join(_FP8_MAX)}")
    return _FP8_MAX[name]


def fp8_amax_floor(dtype: torch.dtype) -> float:
    """The least amax for which float32 scales of an FP8 dtype are made; a block of less, or of zeros, has this one's.

    Its scale is 2^125 and scale_inv 2^-125: neither they nor a rounding step on the way to them is a subnormal.
    """
    return fp8_max(dtype) * 2.0**-125


def is_fp8_dtype(dtype: torch.dtype) -> bool:
    """Whether ``dtype`` is one of torch's four FP8 types."""
    return str(dtype).removeprefix("torch.") in _FP8_MAX


def memory_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type to allocate memory of ``dtype`` with, and to copy it: uint8 for floats of one byte.

    Under deterministic algorithms torch fills new memory, and it does not know how for FP4.
    """
    return require_torch().uint8 if dtype.itemsize == 1 and dtype.is_floating_point else dtype


def is_fp4_dtype(dtype: torch.dtype) -> bool:
    """Whether ``dtype`` is torch's packed FP4 type (two values a byte)."""
    return str(dtype) == "torch.float4_e2m1fn_x2"


def check_fp8_support(device: torch.device | str | None = None) -> tuple[bool, str]:
    """Whether the device's matrix units take FP8, and if not, why."""
    facts = device_facts(device)
    if facts.arch in ("gfx942", "gfx950") or (facts.vendor == "nvidia" and int(facts.arch[3:]) >= 89):
        return True, ""
    return False, f"{facts.name} ({facts.arch}) has no FP8 matrix units; gfx942 or gfx950 is needed"


def check_fp8_ocp_support(device: torch.device | str | None = None) -> tuple[bool, str]:
    """Whether the device's matrix units take the OCP FP8 types, and if not, why."""
    supported, reason = check_fp8_support(device)
    facts = device_facts(device)
    if supported and facts.fp8_fnuz:
        return False, f"{facts.name} ({facts.arch}) takes the FNUZ FP8 types, not the OCP ones; gfx950 is needed"
    return supported, reason


def check_mxfp8_support(device: torch.device | str | None = None) -> tuple[bool, str]:
    """Whether the device has scaled matrix instructions for MXFP8, and if not, why."""
    return _check_mx_support("MXFP8", device)


def check_mxfp4_support(device: torch.device | str | None = None) -> tuple[bool, str]:
    """Whether the device has scaled matrix instructions for MXFP4, and if not, why."""
    return _check_mx_support("MXFP4", device)


def _check_mx_support(what: str, device: torch.device | str | None) -> tuple[bool, str]:
    facts = device_facts(device)
    if facts.arch == "gfx950":
        return True, ""
    return False, f"{facts.name} ({facts.arch}) has no {what} matrix instructions; gfx950 is needed"


def __getattr__(name: str) -> Any:
    if name == "float8_e4m3":
        return fp8_dtype(Format.E4M3)
    if name == "float8_e5m2":
        return fp8_dtype(Format.E5M2)
    if name == "float4_e2m1fn_x2":  # None where this torch has no such type yet
        return getattr(require_torch(), name, None)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PER_DEVICE_NAMES})
