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

from turbo_core import tiles
from turbo_core.tiles import rows_for

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = ["ACTIVATION_TILES", "COLUMN_SUM_TILES", "NORM_TILES", "ColumnTile", "Tile", "choose_tile"]

ANY = 2**62


@dataclass(frozen=True)
class Tile(tiles.Tile):
    """One row of a table.

    Attributes:
        up_to: widest row (D, or H of an activation) that the tile is for.
        elements: rows of a tile times columns; a tile is as many rows as fit, at least one.
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
    whole: bool = True
    per_unit: int = 1
    prefetch: int = 1
    early: bool = False
    stream: bool = False
    itemsize: int = 8
    multiple_of: int = 1


@dataclass(frozen=True)
class ColumnTile(tiles.Tile):
    """``rows`` x ``columns`` of the partial sums that are added up."""

    rows: int
    columns: int


# --- norms ------------------------------------------------------------------------------------------------------------

# GB/s on an H200, bf16, 2026-11-30, where a copy moves 4200-4236, of trial kernels with the forward's loops, each held
# against float64. What was tried beside a row is in its `why`.
_NVIDIA_RMSNORM = (
    Tile(1024, 1024, num_warps=2, early=True, stream=True, why="4035 at D=1024; 2048 elements, 4 warps: 3985"),
    Tile(4096, 4096, num_warps=8, early=True, stream=True,
         why="3957 at D=4096; weights late 3846; 4 warps 3885, 16 warps 3485"),
    Tile(16384, 4096, num_warps=16, whole=False, why="4171 at D=8192, 4106 at D=16384; in one tile 4049 and 4064"),
    Tile(32768, 8192, num_warps=32, whole=False, why="4062 at D=32768; 16 warps 3827, in one tile 3756"),
    Tile(65536, 16384, num_warps=32, stream=True, itemsize=2, multiple_of=16384,
         why="4110 at D=65536; walked 3852, in one tile 2718 (spills); remainders spill"),
    Tile(ANY, 32768, num_warps=32, whole=False, why="3852 at D=65536; blocks of 16384: 3501, of 8192: 3332"),
)  # fmt: skip
_NVIDIA_RMSNORM_RESIDUAL = (
    Tile(1024, 2048, num_warps=4, early=True, stream=True, why="4137 at D=1024; weights late 4101"),
    Tile(4096, 4096, num_warps=8, why="4002 at D=4096; 4 warps, weights early: 4003"),
    Tile(8192, 8192, num_warps=16, early=True, stream=True, why="4115 at D=8192; weights late, 8 warps: 4072"),
    Tile(16384, 16384, num_warps=16, why="4079 at D=16384; walked: 4052"),
    Tile(32768, 32768, num_warps=32, why="4116 at D=32768; walked: 4060"),
    Tile(ANY, 16384, num_warps=32, whole=False, why="4062 at D=65536; blocks of 32768: 3897, of 8192: 3688"),
)
_NVIDIA_LAYERNORM = (
    Tile(1024, 2048, num_warps=4, early=True, stream=True, why="3948 at D=1024; weights late 3907"),
    Tile(4096, 4096, num_warps=4, early=True, stream=True, why="3920 at D=4096; weights late, 8 warps: 3830"),
    Tile(8192, 8192, num_warps=8, why="4014 at D=8192; weights early 3799, 16 warps 2957"),
    Tile(16384, 16384, num_warps=16, why="3844 at D=16384; walked: 3155"),
    Tile(32768, 32768, num_warps=32, why="3191 at D=32768; walked: 3005"),
    Tile(65536, 16384, num_warps=32, stream=True, itemsize=2, multiple_of=16384,
         why="3608 at D=65536; walked 3201; remainders spill"),
    Tile(ANY, 32768, num_warps=32, whole=False, why="3201 at D=65536"),
)  # fmt: skip
# Likewise. A third tile in flight is what counts: with two, the copies of the next begin when this one is done.
_NVIDIA_BACKWARD = (
    Tile(1024, 2048, num_warps=2, per_unit=2, prefetch=4, why="3903 at D=1024; 4 warps 3837, 4096 elements 3681"),
    Tile(8192, 8192, num_warps=16, prefetch=3, why="3886 at D=4096, 4059 at D=8192; prefetch 2: 2790, none: 3114"),
    Tile(16384, 16384, num_warps=16, prefetch=3, why="3179 at D=16384; 32 warps 2899, prefetch 2: 2809"),
    Tile(ANY, 4096, num_warps=8, whole=False, per_unit=4,
         why="2542 at D=65536: c1, c2 first, then blocks of columns"),
)  # fmt: skip
# gfx942, gfx950: compiled, not measured
_AMD_FORWARD = (
    Tile(1024, 4096, num_warps=4, why="16 elements a lane: two 16-byte loads of bf16"),
    Tile(4096, 4096, num_warps=4, why="16 elements a lane"),
    Tile(8192, 8192, num_warps=8, why="16 elements a lane"),
    Tile(16384, 16384, num_warps=16, multiple_of=16, why="16 elements a lane; 16 waves are the most a work-group has"),
    Tile(32768, 32768, num_warps=16, multiple_of=16, why="32 elements a lane of 128 registers"),
    Tile(ANY, 16384, num_warps=16, whole=False, multiple_of=16, why="walks the row twice, the second time from cache"),
    Tile(ANY, 8192, num_warps=8, whole=False, why="likewise; the tile passes through 32 KiB of LDS"),
)
# the next row waits in registers, not in LDS
_AMD_BACKWARD = (
    Tile(1024, 4096, num_warps=4, per_unit=4, prefetch=2, multiple_of=16,
         why="x, dy and the sum of dgamma in registers"),
    Tile(4096, 4096, num_warps=4, per_unit=4, prefetch=2, multiple_of=16, why="16 elements of each a lane"),
    Tile(8192, 8192, num_warps=8, per_unit=2, prefetch=2, multiple_of=16, why="16 elements of each a lane"),
    Tile(16384, 16384, num_warps=16, multiple_of=16, why="16 elements of each a lane of 128 registers"),
    Tile(1024, 1024, num_warps=4, per_unit=4, why="4 elements of each a lane, each with its mask in two SGPRs"),
    Tile(4096, 4096, num_warps=8, per_unit=2, why="8 elements of each a lane, each with its mask in two SGPRs"),
    Tile(8192, 8192, num_warps=16, why="8 elements of each a lane, each with its mask in two SGPRs"),
    Tile(ANY, 4096, num_warps=4, whole=False, per_unit=4, why="c1, c2 first, then blocks of columns"),
)  # fmt: skip
_CPU_FORWARD = (
    Tile(16384, 32768, num_warps=1, why="interpreter: few, large numpy calls"),
    Tile(ANY, 16384, num_warps=1, whole=False, why="interpreter: the walk of wide rows is run too"),
)
_CPU_BACKWARD = (
    Tile(16384, 32768, num_warps=1, per_unit=3, why="interpreter: few, large numpy calls"),
    Tile(ANY, 16384, num_warps=1, whole=False, per_unit=3, why="interpreter: c1, c2 first, then blocks of columns"),
)

# pass -> architecture or vendor -> rows by width
NORM_TILES: dict[str, dict[str, tuple[Tile, ...]]] = {
    "forward rmsnorm": {"nvidia": _NVIDIA_RMSNORM, "amd": _AMD_FORWARD, "cpu": _CPU_FORWARD},
    "forward rmsnorm_residual": {"nvidia": _NVIDIA_RMSNORM_RESIDUAL, "amd": _AMD_FORWARD, "cpu": _CPU_FORWARD},
    "forward layernorm": {"nvidia": _NVIDIA_LAYERNORM, "amd": _AMD_FORWARD, "cpu": _CPU_FORWARD},
    "backward": {"nvidia": _NVIDIA_BACKWARD, "amd": _AMD_BACKWARD, "cpu": _CPU_BACKWARD},
}

# architecture or vendor -> the tile that adds up partial sums
COLUMN_SUM_TILES: dict[str, ColumnTile] = {
    "nvidia": ColumnTile(64, 32, num_warps=4, why="128-byte rows, and D / 32 programs to fill the device"),
    "amd": ColumnTile(64, 32, num_warps=4, why="likewise; 8 elements a lane"),
    "cpu": ColumnTile(8, 1024, num_warps=1, why="interpreter: few, large numpy calls"),
}

# --- gated activations ------------------------------------------------------------------------------------------------

_AMD_ACTIVATION = (
    Tile(ANY, 2048, num_warps=4, multiple_of=16, why="8 elements of each tensor a lane: one 16-byte load each"),
    Tile(ANY, 1024, num_warps=4, why="4 elements of each a lane, each with its mask in two SGPRs"),
)
_CPU_ACTIVATION = (Tile(ANY, 32768, num_warps=1, why="interpreter: few, large numpy calls"),)

ACTIVATION_TILES: dict[str, dict[str, tuple[Tile, ...]]] = {
    # GB/s on an H200, bf16, 2026-11-30, where a copy moves 4227-4234. Programs that are neighbours in the grid take
    # neighbouring columns: where they took neighbouring rows, 4163 and 4121 at H = 14336.
    "forward": {
        "nvidia": (
            Tile(2048, 2048, num_warps=8, why="4203 at H=2048; 1024 elements, 4 warps: 4189, 4096, 8 warps: 4183"),
            Tile(ANY, 1024, num_warps=4, why="4358 at H=14336; 4096, 8 warps: 4352, 2048, 8 warps: 4314"),
        ),
        "amd": _AMD_ACTIVATION,
        "cpu": _CPU_ACTIVATION,
    },
    "backward": {
        "nvidia": (Tile(ANY, 1024, num_warps=8, why="4232 at H=2048, 4336 at H=14336; 2048 elements: 4197 and 4295"),),
        "amd": _AMD_ACTIVATION,
        "cpu": _CPU_ACTIVATION,
    },
}


def choose_tile(
    rows: dict[str, tuple[Tile, ...]], width: int, strides: tuple[int, ...], facts: DeviceFacts, itemsize: int = 1
) -> Tile:
    """The device's row of a pass for rows of ``width`` elements of ``itemsize`` bytes, ``strides`` apart."""
    alignment = math.gcd(width, *strides)
    for tile in rows_for(rows, facts):
        if width <= tile.up_to and itemsize <= tile.itemsize and alignment % tile.multiple_of == 0:
            return tile
    raise LookupError(f"no tile for rows of {width} elements")
