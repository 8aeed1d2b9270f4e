# SPDX-License-Identifier: MIT
"""The tiles of `scale_rows`. Neither torch nor triton is needed to read them.

Both kernels are bound by memory: a tile is wide enough that each lane moves 16 bytes at a time, and small enough that
several programs share a compute unit. A tile has as many rows as fit beside its columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from turbo_core.device import DeviceFacts
from turbo_core.launch import power_of_two
from turbo_core.tiles import Tile, rows_for

__all__ = ["RowTile", "choose_tile"]


@dataclass(frozen=True, kw_only=True)
class RowTile(Tile):
    """One row of the table.

    Attributes:
        up_to: the widest D that it is for.
        elements: rows of the tile times its columns, a power of two.
    """

    up_to: int = 2**62
    elements: int

    def shape(self, D: int) -> tuple[int, int]:
        """Rows and columns of the tile."""
        columns = min(self.elements, power_of_two(D))
        return self.elements // columns, columns


# by architecture, else by vendor; the first row whose up_to is not below D is taken
TILES: dict[str, tuple[RowTile, ...]] = {
    "amd": (
        RowTile(up_to=512, elements=2048, num_warps=4, why="8 elements a lane: one 16-byte load of bfloat16"),
        RowTile(elements=4096, num_warps=4, why="16 elements a lane: two 16-byte loads under way"),
    ),
    "nvidia": (RowTile(elements=4096, num_warps=4, why="32 elements a lane: four 16-byte loads under way"),),
    "cpu": (RowTile(elements=16384, num_warps=1, why="interpreter: few, large numpy calls"),),
}


def choose_tile(D: int, facts: DeviceFacts) -> RowTile:
    """The tile for rows of D elements."""
    return next(tile for tile in rows_for(TILES, facts) if tile.up_to >= D)
