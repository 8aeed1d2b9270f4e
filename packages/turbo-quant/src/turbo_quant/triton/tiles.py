# SPDX-License-Identifier: MIT
"""Tile tables of the quantise kernels, and which formats a target casts to. Neither torch nor triton is needed.

All these kernels are bound by memory: a program should move 16 bytes a lane at a time with a few loads in flight.
Elements per lane = elements of the tile / (num_warps * wave size).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turbo_core import tiles

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = [
    "KMAJOR_BLOCKS",
    "MAX_BLOCK",
    "MAX_COLUMN",
    "MAX_GROUPED",
    "TILES",
    "Tile",
    "casts_natively",
    "choose",
    "whole_row",
]

ANY = 2**62
MAX_BLOCK = 128  # widest block of which a program holds a square
MAX_COLUMN = 256  # longest block of a column that a program holds whole
KMAJOR_BLOCKS = (16, 32, 64, 128)  # of K-major payloads
MAX_GROUPED = 1024  # likewise for groups, where there is no walk


@dataclass(frozen=True)
class Tile(tiles.Tile):
    """One row of a table.

    Attributes:
        up_to: longest block (of the kind's direction) that the row is for.
        rows, columns: of the tile; rows of 0: as many as make ``elements``.
        elements: of the tile, where rows is 0.
        stripes: of MX, into how many stripes of rows a block's 32 are cut; a lane holds one (mx_kernel.py).
        multiple_of: C and the block must be multiples of it. Elsewhere each element of a lane has a mask of its own, in
            two SGPRs. Of MX: C, and for a column copy R too; what needs more registers counts as no multiple. Of
            K-major payloads: R and C.
    """

    up_to: int
    rows: int
    columns: int
    elements: int = 0
    stripes: int = 4
    multiple_of: int = 1

    def launch_options(self) -> dict[str, int]:
        """No fused multiply-add: each step rounds once, so that all backends give the same bits. No pipelined loops."""
        return {"num_warps": self.num_warps, **dict(self.options), "enable_fp_fusion": False}


_MX_COLUMN_AMD = (
    Tile(ANY, 64, 128, num_warps=8, why="16 elements a lane, 8 of a column's block; no masks", multiple_of=128),
    Tile(ANY, 64, 64, num_warps=8, why="8 elements a lane, each with masks in SGPRs; 16 spill some", stripes=8),
)

_KMAJOR_AMD = (
    Tile(ANY, 128, 128, num_warps=4, why="16 bytes a store both ways; no masks", multiple_of=128),
    Tile(ANY, 128, 128, num_warps=8, why="32 elements a lane, masks of rows in SGPRs", multiple_of=16),
    Tile(ANY, 128, 128, num_warps=16, why="16 elements a lane, each with its mask in two SGPRs"),
)
_KMAJOR_CPU = (Tile(ANY, 128, 128, num_warps=1, why="interpreter: few, large numpy calls"),)

# kind -> architecture or vendor -> rows by block length. Kinds: row (blocks along contiguous rows, whole in registers),
# dual (both payloads of blocks, some rows at a time), square (columns, tiles), flat (a walk along contiguous memory),
# walk (over a matrix), kmajor, kmajor lines (of ROWWISE) and line amax (kmajor_kernel.py), dequantize; mx column serves
# both payloads, too.
# Numbers: GB/s, bf16 8192 x 8192 on an H200, 2026-11-30, where a copy moves 4240, or 3567 in another run
TILES: dict[str, dict[str, tuple[Tile, ...]]] = {
    "row": {
        "nvidia": (
            Tile(4096, 0, 2048, num_warps=4, why="4126; 1024 columns 4083, 8 warps 3783", elements=4096),
            Tile(8192, 0, 8192, num_warps=8, why="4132; 16 warps 3723", elements=8192),
            Tile(16384, 0, 16384, num_warps=16, why="32 elements a thread", elements=16384),
            Tile(32768, 0, 32768, num_warps=32, why="32 elements a thread", elements=32768),
        ),
        "amd": (
            Tile(4096, 0, 1024, num_warps=4, why="16 elements a lane: two 16-byte loads of bf16", elements=4096),
            Tile(8192, 0, 8192, num_warps=8, why="16 elements a lane", elements=8192),
            Tile(
                16384,
                0,
                16384,
                num_warps=16,
                why="16 elements a lane; a work-group has 16 waves at most",
                elements=16384,
            ),
        ),
        "cpu": (Tile(16384, 0, 1024, num_warps=1, why="interpreter: few, large numpy calls", elements=16384),),
    },
    "square": {
        "nvidia": (Tile(ANY, 128, 128, num_warps=8, why="tiles 3919; 4 warps 3745, 16 warps 3743"),),
        "amd": (
            Tile(ANY, 128, 128, num_warps=8, why="32 elements a lane", multiple_of=16),
            Tile(ANY, 128, 128, num_warps=16, why="16 elements a lane, each with its mask in two SGPRs"),
        ),
        "cpu": (Tile(ANY, 128, 128, num_warps=1, why="a block of 128 is the tile"),),
    },
    "dual": {
        "nvidia": (
            Tile(
                ANY, 32, 128, num_warps=2, why="3017 (copy 3567); 64 rows, 4 warps 3122, 168 registers", multiple_of=128
            ),
            Tile(ANY, 8, 128, num_warps=4, why="8 elements a thread, each with a mask: 64 spill"),
        ),
        "amd": (
            Tile(ANY, 32, 128, num_warps=4, why="16 elements a lane", multiple_of=128),
            Tile(ANY, 8, 128, num_warps=4, why="4 elements a lane, each with masks in SGPRs: 8 spill some"),
        ),
        "cpu": (Tile(ANY, 64, 128, num_warps=1, why="interpreter: two steps of a block of 128"),),
    },
    "flat": {
        "nvidia": (Tile(ANY, 1, 8192, num_warps=8, why="4085; 4096 elements 3979-3999, 16384 3925"),),
        "amd": (Tile(ANY, 1, 8192, num_warps=8, why="16 elements a lane"),),
        "cpu": (Tile(ANY, 1, 4096, num_warps=1, why="interpreter: walks of several tiles at small sizes"),),
    },
    "walk": {
        "nvidia": (
            Tile(ANY, 64, 64, num_warps=4, why="3486 (copy 3567); 32 x 128 3380, 128 x 64 3213, 64 x 128 2982"),
        ),
        "amd": (
            Tile(
                ANY, 64, 128, num_warps=8, why="16 elements a lane; rows, columns of 128 bytes and more", multiple_of=16
            ),
            Tile(ANY, 64, 128, num_warps=16, why="8 elements a lane, each with its mask in two SGPRs"),
        ),
        "cpu": (Tile(ANY, 64, 128, num_warps=1, why="interpreter: walks of several tiles at small sizes"),),
    },
    "kmajor": {
        "nvidia": (Tile(ANY, 128, 128, num_warps=8, why="64 elements a thread, columns of 128 bytes"),),
        "amd": _KMAJOR_AMD,
        "cpu": _KMAJOR_CPU,
    },
    "kmajor lines": {
        "nvidia": (
            Tile(ANY, 128, 128, num_warps=4, why="rows and columns of 14336 x 4096: 223 us with maxima; 8 warps 267"),
        ),
        "amd": _KMAJOR_AMD,
        "cpu": _KMAJOR_CPU,
    },
    "line amax": {
        "nvidia": (
            Tile(
                ANY,
                8,
                512,
                num_warps=4,
                num_stages=3,
                why="14336 x 4096 with payloads: 193 us; 32 rows 214, 1 stage 263",
            ),
        ),
        "amd": (
            Tile(ANY, 32, 512, num_warps=8, why="32 elements a lane: four 16-byte loads in flight", multiple_of=16),
            Tile(ANY, 32, 512, num_warps=16, why="16 elements a lane, each with its mask in two SGPRs"),
        ),
        "cpu": (Tile(ANY, 16, 64, num_warps=1, why="interpreter: several chunks at small sizes"),),
    },
    "dequantize": {
        "nvidia": (Tile(ANY, 16, 256, num_warps=8, why="3956; others 3888-3953"),),
        "amd": (
            Tile(ANY, 32, 256, num_warps=8, why="16 elements a lane", multiple_of=16),
            Tile(ANY, 16, 256, num_warps=8, why="8 elements a lane, each with its mask in two SGPRs: 16 spill some"),
        ),
        "cpu": (Tile(ANY, 32, 256, num_warps=1, why="interpreter: few, large numpy calls"),),
    },
    # columns divide 128, so that no tile passes the padding; rows are a multiple of 32
    "mx row": {
        "nvidia": (
            Tile(
                ANY, 64, 128, num_warps=4, why="MXFP8 3988, MXFP4 3420 (copy 3567); 2 warps 3922, 2985", multiple_of=128
            ),
            Tile(ANY, 64, 64, num_warps=4, why="32 elements a thread: rotated, 64 spill", stripes=8),
        ),
        "amd": (
            Tile(ANY, 64, 128, num_warps=8, why="16 elements a lane", multiple_of=128),
            Tile(ANY, 64, 64, num_warps=8, why="8 elements a lane, each with masks in SGPRs", stripes=8),
        ),
        "cpu": (Tile(ANY, 128, 128, num_warps=1, why="interpreter: few, large numpy calls"),),
    },
    "mx column": {
        "nvidia": (
            Tile(ANY, 128, 64, num_warps=4, why="3090 (copy 3567); 64 x 128, 2 warps 3080", stripes=8, multiple_of=128),
            Tile(ANY, 64, 64, num_warps=4, why="32 elements a thread: rotated or transposed, 64 spill", stripes=8),
        ),
        "amd": _MX_COLUMN_AMD,
        "cpu": (Tile(ANY, 128, 128, num_warps=1, why="interpreter: few, large numpy calls"),),
    },
    "mx column e2m1": {
        "nvidia": (
            Tile(
                ANY,
                64,
                128,
                num_warps=4,
                why="2081 (copy 3567); 128 x 64, 8 stripes 2009; 128 x 128 1420",
                multiple_of=128,
            ),
            Tile(ANY, 64, 64, num_warps=4, why="32 elements a thread: rotated or transposed, 64 spill", stripes=8),
        ),
        "amd": _MX_COLUMN_AMD,
        "cpu": (Tile(ANY, 128, 128, num_warps=1, why="interpreter: few, large numpy calls"),),
    },
    "mx dequantize": {
        "nvidia": (Tile(ANY, 32, 128, num_warps=4, why="3891 for MXFP8, 3560 for MXFP4; 64 x 128 3912 and 3358"),),
        "amd": (Tile(ANY, 64, 128, num_warps=8, why="16 elements a lane"),),
        "cpu": (Tile(ANY, 64, 128, num_warps=1, why="interpreter: few, large numpy calls"),),
    },
}

# Formats whose cast from float32 rounds to nearest even in hardware. OCP types on gfx942 and all others take the cast
# by float addition of rounding.py, as does the interpreter.
_NATIVE_CASTS = {
    "gfx942": ("float8_e4m3fnuz", "float8_e5m2fnuz"),
    "gfx950": ("float8_e4m3fn", "float8_e5m2"),
    "nvidia": ("float8_e4m3fn", "float8_e5m2"),  # from sm_89 on
}


def casts_natively(facts: DeviceFacts, dtype_name: str) -> bool:
    """Whether the device's own casts between float32 and an FP8 type (``float8_e4m3fn``) are those of the formula."""
    if facts.vendor == "nvidia" and int(facts.arch[3:]) < 89:
        return False
    return dtype_name in _NATIVE_CASTS.get(facts.arch, _NATIVE_CASTS.get(facts.vendor, ()))


def choose(kind: str, facts: DeviceFacts, length: int = 0, multiple: int = 0) -> Tile:
    """The device's tile for blocks of that length; ``multiple``: a common divisor of what `Tile.multiple_of` names."""
    return next(
        tile for tile in tiles.rows_for(TILES[kind], facts) if length <= tile.up_to and multiple % tile.multiple_of == 0
    )


def whole_row(facts: DeviceFacts) -> int:
    """The longest block of a row that a program holds in registers."""
    return tiles.rows_for(TILES["row"], facts)[-1].up_to
