# SPDX-License-Identifier: MIT
"""What can be chosen: backends, precision buckets, and a choice of the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from turbo_core.errors import UnsupportedError

__all__ = ["NOT_BUILT", "BackendChoice", "BackendType", "PrecisionType"]


class BackendType(Enum):
    """Who computes an op. ``TORCH`` is the reference in plain PyTorch and runs on any device.

    Those of `NOT_BUILT` are names that settings may hold; no op has them yet, and each call says so.
    """

    CK = 1
    HIPBLASLT = 2
    AITER = 3
    TRITON = 4
    DEEP_EP = 5
    TURBO = 6
    FLYDSL = 7
    HIPKITTENS = 8
    TORCH = 9
    MORI = 10

    __hash__ = object.__hash__  # Enum's own is a Python function, and every choice looks members up

    @classmethod
    def parse(cls, word: BackendType | str, where: str = "backend") -> BackendType:
        """The member named by ``word`` in any case; ``where`` is what the error calls it."""
        if isinstance(word, cls):
            return word
        name = str(word).strip().upper()
        if name not in cls.__members__:
            raise UnsupportedError(f"{where}: {str(word)!r} is not a backend; {cls._accepted()}")
        return cls[name]

    @classmethod
    def _accepted(cls) -> str:
        return f"accepted are {', '.join(backend.name for backend in cls if backend not in NOT_BUILT)}"


NOT_BUILT: Mapping[BackendType, str] = MappingProxyType(
    {
        BackendType.FLYDSL: "no op of this version has kernels written in FlyDSL",
        BackendType.HIPKITTENS: "no op of this version has HipKittens kernels",
        BackendType.MORI: "no op of this version communicates by MORI",
    }
)
"""Backends that have a name only, and why they cannot take any call."""


class PrecisionType(Enum):
    """Buckets for which a backend can be chosen separately; all 16- and 32-bit types share one."""

    FP4 = "fp4"
    FP8 = "fp8"
    BF16_FP16_FP32 = "bf16_fp16_fp32"

    __hash__ = object.__hash__  # as above


@dataclass(frozen=True, eq=False)
class BackendChoice:
    """A user's choice for one op and precision: a backend, or auto-tuning among all that can take the call.

    A choice that names a backend equals that backend, as ``get_gemm_backend(precision) == BackendType.TRITON`` asks.
    """

    backend: BackendType | None = None
    auto_tune: bool = False

    def __post_init__(self) -> None:
        if self.backend is not None and self.auto_tune:
            raise UnsupportedError(
                f"backend={self.backend.name} with auto_tune=True: name a backend or ask for auto-tuning, not both"
            )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BackendType):
            return self.backend is other
        if not isinstance(other, BackendChoice):
            return NotImplemented
        return self.backend is other.backend and self.auto_tune == other.auto_tune

    def __hash__(self) -> int:
        return hash(self.auto_tune if self.backend is None else self.backend)
