# SPDX-License-Identifier: MIT
"""What can be chosen: backends, precision buckets, and a choice of the two."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from turbo_core.errors import UnsupportedError

__all__ = ["BackendChoice", "BackendType", "PrecisionType"]


class BackendType(Enum):
    """Who computes an op. ``TORCH`` is the reference in plain PyTorch and runs on any device."""

    CK = 1
    HIPBLASLT = 2
    AITER = 3
    TRITON = 4
    DEEP_EP = 5
    TURBO = 6
    TORCH = 9

    __hash__ = object.__hash__  # Enum's own is a Python function, and every choice looks members up

    @classmethod
    def parse(cls, word: BackendType | str, where: str = "backend") -> BackendType:
        """The member named by ``word`` in any case; ``where`` is what the error calls it."""
        if isinstance(word, cls):
            return word
        name = str(word).strip().upper()
        if name == "FLYDSL":
            raise UnsupportedError(f"{where}: FLYDSL is on the roadmap and not available yet; {cls._accepted()}")
        if name not in cls.__members__:
            raise UnsupportedError(f"{where}: {str(word)!r} is not a backend; {cls._accepted()}")
        return cls[name]

    @classmethod
    def _accepted(cls) -> str:
        return f"accepted are {', '.join(cls.__members__)}"


class PrecisionType(Enum):
    """Buckets for which a backend can be chosen separately; all 16- and 32-bit types share one."""

    FP4 = "fp4"
    FP8 = "fp8"
    BF16_FP16_FP32 = "bf16_fp16_fp32"

    __hash__ = object.__hash__  # as above


@dataclass(frozen=True)
class BackendChoice:
    """A user's choice for one op and precision: a backend, or auto-tuning among all that can take the call."""

    backend: BackendType | None = None
    auto_tune: bool = False

    def __post_init__(self) -> None:
        if self.backend is not None and self.auto_tune:
            raise UnsupportedError(
                f"backend={self.backend.name} with auto_tune=True: name a backend or ask for auto-tuning, not both"
            )
