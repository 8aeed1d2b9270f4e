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
        whole: the row is in registers, as one tile or (norm forward) several. False: blocks of ``elements`` columns.
        per_unit: programs launched for each compute unit (norm backward; the others launch one a tile).
        prefetch: tiles in flight, the one that is worked on included (norm backward).
        early: weights are loaded before the moments are known (norm forward, one tile).
        stream: data leaves L1 to the weights, and is marked as not to be read again (norm forward).
        itemsize: largest element, in bytes, that the tile is for.
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
    early: bool = False
    stream: bool = False
    itemsize: int = 8
    multiple_of: int = 1


# (pass, target) -> rows by width. A pass may name the op, "forward layernorm"; "forward" is for those not named.
NORM_TILES: dict[tuple[str, str], tuple[Tile, ...]] = {
    # GB/s on an H200, bf16, 2026-11-30, where a copy moves 4200-4236, of trial kernels with the forward's loops, each
    # held against float64. What was tried beside a row is in its `why`.
    ("forward rmsnorm", "nvidia"): (
        Tile(1024, 1024, 2, "4035 at D=1024; 2048 elements, 4 warps: 3985", early=True, stream=True),
        Tile(4096, 4096, 8, "3957 at D=4096; weights late 3846; 4 warps 3885, 16 warps 3485", early=True, stream=True),
        Tile(16384, 4096, 16, "4171 at D=8192, 4106 at D=16384; in one tile 4049 and 4064", whole=False),
        Tile(32768, 8192, 32, "4062 at D=32768; 16 warps 3827, in one tile 3756", whole=False),
        Tile(
            65536,
            16384,
            32,
            "4110 at D=65536; walked 3852, in one tile 2718 (spills); rests spill",
            stream=True,
            itemsize=2,
            multiple_of=16384,
        ),
        Tile(ANY, 32768, 32, "3852 at D=65536; blocks of 16384: 3501, of 8192: 3332", whole=False),
    ),
    ("forward rmsnorm_residual", "nvidia"): (
        Tile(1024, 2048, 4, "4137 at D=1024; weights late 4101", early=True, stream=True),
        Tile(4096, 4096, 8, "4002 at D=4096; 4 warps, weights early: 4003"),
        Tile(8192, 8192, 16, "4115 at D=8192; weights late, 8 warps: 4072", early=True, stream=True),
        Tile(16384, 16384, 16, "4079 at D=16384; walked: 4052"),
        Tile(32768, 32768, 32, "4116 at D=32768; walked: 4060"),
        Tile(ANY, 16384, 32, "4062 at D=65536; blocks of 32768: 3897, of 8192: 3688", whole=False),
    ),
    ("forward layernorm", "nvidia"): (
        Tile(1024, 2048, 4, "3948 at D=1024; weights late 3907", early=True, stream=True),
        Tile(4096, 4096, 4, "3920 at D=4096; weights late, 8 warps: 3830", early=True, stream=True),
        Tile(8192, 8192, 8, "4014 at D=8192; weights early 3799, 16 warps 2957"),
        Tile(16384, 16384, 16, "3844 at D=16384; walked: 3155"),
        Tile(32768, 32768, 32, "3191 at D=32768; walked: 3005"),
        Tile(65536, 16384, 32, "3608 at D=65536; walked 3201; rests spill", stream=True, itemsize=2, multiple_of=16384),
        Tile(ANY, 32768, 32, "3201 at D=65536", whole=False),
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
    # Likewise. A third tile in flight is what counts: with two, the copies of the next begin when this one is done.
    ("backward", "nvidia"): (
        Tile(1024, 2048, 2, "3903 at D=1024; 4 warps 3837, 4096 elements 3681", per_unit=2, prefetch=4),
        Tile(8192, 8192, 16, "3886 at D=4096, 4059 at D=8192; prefetch 2: 2790, none: 3114", prefetch=3),
        Tile(16384, 16384, 16, "3179 at D=16384; 32 warps 2899, prefetch 2: 2809", prefetch=3),
        Tile(ANY, 4096, 8, "2542 at D=65536: c1, c2 first, then blocks of columns", whole=False, per_unit=4),
    ),
    # gfx942, gfx950 (compiled, not measured): the next row waits in registers, not in LDS
    ("backward", "amd"): (
        Tile(1024, 4096, 4, "x, dy and the sum of dgamma in registers", per_unit=4, prefetch=2, multiple_of=16),
        Tile(4096, 4096, 4, "16 elements of each a lane", per_unit=4, prefetch=2, multiple_of=16),
        Tile(8192, 8192, 8, "16 elements of each a lane", per_unit=2, prefetch=2, multiple_of=16),
        Tile(16384, 16384, 16, "16 elements of each a lane of 128 registers", multiple_of=16),
        Tile(1024, 1024, 4, "4 elements of each a lane, each with its mask in two SGPRs", per_unit=4),
        Tile(4096, 4096, 8, "8 elements of each a lane, each with its mask in two SGPRs", per_unit=2),
        Tile(8192, 8192, 16, "8 elements of each a lane, each with its mask in two SGPRs"),
        Tile(ANY, 4096, 4, "c1, c2 first, then blocks of columns", whole=False, per_unit=4),
    ),
    ("backward", "cpu"): (
        Tile(16384, 32768, 1, "interpreter: few, large numpy calls", per_unit=3),
        Tile(ANY, 16384, 1, "interpreter: c1, c2 first, then blocks of columns", whole=False, per_unit=3),
    ),
}

# pass -> target -> rows by width
ACTIVATION_TILES: dict[tuple[str, str], tuple[Tile, ...]] = {
    # GB/s on an H200, bf16, 2026-11-30, where a copy moves 4227-4234. Programs that are neighbours in the grid take
    # neighbouring columns: where they took neighbouring rows, 4163 and 4121 at H = 14336.
    ("forward", "nvidia"): (
        Tile(2048, 2048, 8, "4203 at H=2048; 1024 elements, 4 warps: 4189, 4096, 8 warps: 4183", whole=False),
        Tile(ANY, 1024, 4, "4358 at H=14336; 4096, 8 warps: 4352, 2048, 8 warps: 4314", whole=False),
    ),
    ("forward", "amd"): (
        Tile(ANY, 2048, 4, "8 elements of gate and of up a lane: one 16-byte load each", whole=False, multiple_of=16),
        Tile(ANY, 1024, 4, "4 elements of each a lane, each with its mask in two SGPRs", whole=False),
    ),
    ("forward", "cpu"): (Tile(ANY, 32768, 1, "interpreter: few, large numpy calls", whole=False),),
    ("backward", "nvidia"): (
        Tile(ANY, 1024, 8, "4232 at H=2048, 4336 at H=14336; 2048 elements: 4197 and 4295", whole=False),
    ),
    ("backward", "amd"): (
        Tile(ANY, 2048, 4, "8 elements of each a lane: one 16-byte load each", whole=False, multiple_of=16),
        Tile(ANY, 1024, 4, "4 elements of each a lane, each with its mask in two SGPRs", whole=False),
    ),
    ("backward", "cpu"): (Tile(ANY, 32768, 1, "interpreter: few, large numpy calls", whole=False),),
}

# target -> (rows, columns, num_warps) of the tile that adds up partial sums
COLUMN_SUM_TILES: dict[str, tuple[int, int, int]] = {
    "nvidia": (64, 32, 4),  # 128-byte rows, and D / 32 programs to fill the device
    "amd": (64, 32, 4),  # likewise; 8 elements a lane
    "cpu": (8, 1024, 1),  # interpreter: few, large numpy calls
}


def choose_tile(
    table: dict[tuple[str, str], tuple[Tile, ...]],
    which: str,
    width: int,
    strides: tuple[int, ...],
    facts: DeviceFacts,
    itemsize: int = 1,
) -> Tile:
    """The device's row of ``table`` for rows of ``width`` elements of ``itemsize`` bytes, ``strides`` apart."""
    alignment = math.gcd(width, *strides)
    keys = [(name, target) for target in (facts.arch, facts.vendor) for name in (which, which.split()[0])]
    rows = next(table[key] for key in keys if key in table)
    return next(
        tile for tile in rows if width <= tile.up_to and itemsize <= tile.itemsize and alignment % tile.multiple_of == 0
    )
