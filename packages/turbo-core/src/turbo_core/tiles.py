# SPDX-License-Identifier: MIT
"""What rows of all tile tables have in common, and which rows of a table a device takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = ["Tile", "rows_for"]

_Rows = TypeVar("_Rows")


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One row of a table: a launchable configuration and why it is there.

    Attributes:
        num_warps, num_stages: launch options of Triton.
        why: the reason or the measurement (device, date).
        options: launch options of this target only: waves_per_eu, matrix_instr_nonkdim and kpack exist on AMD alone.
    """

    num_warps: int
    num_stages: int = 1
    why: str
    options: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.why:
            raise ValueError(f"{self} says nothing of why it is there")

    def launch_options(self) -> dict[str, int]:
        """All launch options."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **dict(self.options)}


def rows_for(table: Mapping[str, _Rows], facts: DeviceFacts) -> _Rows:
    """The rows of the device's architecture, else of its vendor."""
    return table[facts.arch] if facts.arch in table else table[facts.vendor]
