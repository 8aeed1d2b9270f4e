# SPDX-License-Identifier: MIT
"""Arguments that the functions of this folder share."""

from __future__ import annotations

from turbo_core import BackendType, UnsupportedError
from turbo_core.low_precision import ScalingGranularity

__all__ = ["check_backend", "granularity_of"]

_NUMBERS = dict(enumerate(ScalingGranularity, 1))  # how code that passes enumerations as numbers counts them


def granularity_of(op: str, granularity: ScalingGranularity | str | int) -> ScalingGranularity:
    """A granularity, its value or its number: 1 TENSORWISE, 2 ROWWISE, 3 BLOCKWISE, 4 MX_BLOCKWISE."""
    if isinstance(granularity, ScalingGranularity):
        return granularity
    for number, member in _NUMBERS.items():
        if granularity == member.value or (granularity == number and not isinstance(granularity, bool)):
            return member
    accepted = ", ".join(f"{number} or {member.value!r}" for number, member in _NUMBERS.items())
    raise UnsupportedError(f"{op}: granularity={granularity!r}; a ScalingGranularity, {accepted} are accepted")


def check_backend(op: str, backend: BackendType | int | None) -> None:
    """That a caller's default names a backend. The user's settings and the op's own default, measured, decide."""
    known = {member.value for member in BackendType}
    if backend is None or isinstance(backend, BackendType) or (backend in known and not isinstance(backend, bool)):
        return
    accepted = ", ".join(f"{member.value} ({member.name})" for member in BackendType)
    raise UnsupportedError(f"{op}: default_backend={backend!r}; a BackendType, None or {accepted} are accepted")
