# SPDX-License-Identifier: MIT
"""Tile tables of the norm and activation kernels. Neither torch nor triton is needed to read them.

All these kernels are bound by memory: a tile must be wide enough that each lane moves 16 bytes at a time with a few
loads in flight, and small enough to stay in registers. Elements per lane = rows * block / (num_warps * wave size).
The first row of a target's list whose ``up_to`` is not below the width, and whose ``multiple_of`` holds, is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = ["ACTIVATION_TILES", "COLUMN_SUM_TILES", "NORM_TILES", "Tile", "choose_tile"]

ANY = 2**62


@dataclass(frozen=True)
class Tile:
    """One row of a table.

    Attributes:
        up_to: widest row (D, or H of an activation) that the tile is for.
        elements: rows of a tile times columns; a tile is as many rows as fit, at least one.
        num_warps: waves of a program.
        why: reason or measurement (device, date).
        whole: the tile spans the row. False: blocks of ``elements`` columns.
        per_unit: programs launched for each compute unit (norm backward; the others launch one a tile).
        prefetch: rows in flight while one is worked on (norm backward).
        multiple_of: D (or H) and all row strides must be multiples of it. Rows that do not begin on 16 bytes are read
            an element at a time and pass through LDS on their way to another register layout: wide tiles would spill.
    """

    up_to: int
    elements: int
    num_warps: int
    why: str
    whole: bool = True
    per_unit: int = 1
    prefetch: int = 1
    multiple_of: int = 1


# (pass, target) -> rows by width
NORM_TILES: dict[tuple[str, str], tuple[Tile, ...]] = {
    ("forward", "nvidia"): (
        Tile(1024, 4096, 4, "32 elements a thread"),
        Tile(4096, 4096, 8, "16 elements a thread"),
        Tile(8192, 8192, 8, "32 elements a thread"),
        Tile(16384, 16384, 16, "32 elements a thread"),
        Tile(32768, 32768, 32, "32 elements a thread"),
        Tile(ANY, 16384, 16, "walks the row twice, the second time from L2", whole=False),
    ),
    ("forward", "amd"): (
        Tile(1024, 4096, 4, "16 elements a lane: two 16-byte loads of bf16"),
        Tile(4096, 4096, 4, "16 elements a lane"),
        Tile(8192, 8192, 8, "16 elements a lane"),
        Tile(16384, 16384, 16, "16 elements a lane; 16 waves are the most a work-group has", multiple_of=16),
        Tile(32768, 32768, 16, "32 elements a lane of 128 registers", multiple_of=16),
        Tile(ANY, 16384, 16, "walks the row twice, the second time from cache", whole=False, multiple_of=16),
        Tile(ANY, 8192, 8, "likewise; the tile passes through 32 KiB of LDS", whole=False),
    ),
    ("forward", "cpu"): (
        Tile(16384, 32768, 1, "interpreter: few, large numpy calls"),
        Tile(ANY, 16384, 1, "interpreter: the walk of wide rows is run too", whole=False),
    ),
    ("backward", "nvidia"): (
        Tile(1024, 4096, 4, "x, dy and the sum of dgamma in registers", per_unit=4, prefetch=2),
        Tile(4096, 4096, 8, "16 elements of each a thread", per_unit=2, prefetch=3),
        Tile(8192, 8192, 8, "32 elements of each a thread", per_unit=1, prefetch=3),
        Tile(16384, 16384, 16, "32 elements of each a thread", per_unit=1, prefetch=2),
        Tile(ANY, 4096, 8, "c1, c2 first, then blocks of columns", whole=False, per_unit=4, prefetch=2),
    ),
    ("backward", "amd"): (
        Tile(1024, 4096, 4, "x, dy and the sum of dgamma in registers", per_unit=2),
        Tile(4096, 4096, 4, "16 elements of each a lane", per_unit=2),
        Tile(8192, 8192, 8, "16 elements of each a lane", per_unit=1),
        Tile(16384, 16384, 16, "16 elements of each a lane of 128 registers", per_unit=1, multiple_of=16),
        Tile(ANY, 4096, 4, "c1, c2 first, then blocks of columns", whole=False, per_unit=2),
    ),
    ("backward", "cpu"): (
        Tile(16384, 32768, 1, "interpreter: few, large numpy calls", per_unit=3),
        Tile(ANY, 16384, 1, "interpreter: c1, c2 first, then blocks of columns", whole=False, per_unit=3),
    ),
}

# pass -> target -> rows by width
ACTIVATION_TILES: dict[tuple[str, str], tuple[Tile, ...]] = {
    ("forward", "nvidia"): (Tile(ANY, 2048, 4, "16 elements of gate and of up a thread", whole=False),),
    ("forward", "amd"): (
        Tile(ANY, 2048, 4, "8 elements of gate and of up a lane: one 16-byte load each", whole=False),
    ),
    ("forward", "cpu"): (Tile(ANY, 32768, 1, "interpreter: few, large numpy calls", whole=False),),
    ("backward", "nvidia"): (Tile(ANY, 2048, 4, "16 elements of each a thread", whole=False),),
    ("backward", "amd"): (Tile(ANY, 2048, 4, "8 elements of each a lane: one 16-byte load each", whole=False),),
    ("backward", "cpu"): (Tile(ANY, 32768, 1, "interpreter: few, large numpy calls", whole=False),),
}

# target -> (rows, columns, num_warps) of the tile that adds up partial sums
COLUMN_SUM_TILES: dict[str, tuple[int, int, int]] = {
    "nvidia": (64, 32, 4),  # 128-byte rows, and D / 32 programs to fill the device
    "amd": (64, 32, 4),  # likewise; 8 elements a lane
    "cpu": (8, 1024, 1),  # interpreter: few, large numpy calls
}


def choose_tile(
    table: dict[tuple[str, str], tuple[Tile, ...]], which: str, width: int, strides: tuple[int, ...], facts: DeviceFacts
) -> Tile:
    """The device's row of ``table`` for rows of ``width`` elements that lie ``strides`` apart."""
    alignment = math.gcd(width, *strides)
    rows = table.get((which, facts.arch)) or table[which, facts.vendor]
    return next(tile for tile in rows if width <= tile.up_to and alignment % tile.multiple_of == 0)
