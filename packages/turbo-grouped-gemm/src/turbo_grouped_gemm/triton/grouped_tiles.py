# SPDX-License-Identifier: MIT
"""Tile tables of the grouped Triton kernels, and the choice of a row. Neither torch nor triton is needed to read them.

A row is chosen by turbo-gemm's model (`turbo_gemm.developer.tile_cost`) from what the host knows of the groups: how
many there are and how many rows on average. The average is rounded up to a power of two and cut off at MOST_ROWS, so
another batch mostly takes the same row, and all totals together take no more compilations than the table has rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from turbo_core.launch import power_of_two
from turbo_gemm.developer import Tile, lds_bytes, table_target, tile_cost

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = ["GEMM_TABLE", "WGRAD_TABLE", "average_rows", "choose_gemm_tile", "choose_wgrad_tile"]

MOST_ROWS = 1024  # a multiple of every tile: more rows a group change no choice

_MFMA16 = (("matrix_instr_nonkdim", 16),)
_Table = dict[tuple[str, int], tuple[Tile, ...]]

# (target, bytes of an operand as the matrix unit sees it) -> rows, the preferred first. Tile.needs: "regular" is
# aligned tensors of unit stride, and dimensions of B (of C for its gradient) that are multiples of 16 and, columns of
# C, at least a tile; how many rows a group has does not matter. subtile: parts in which a tile is added to C.
# fmt: off
_OTHERS: _Table = {
    ("amd", 2): (Tile(64, 64, 32, num_warps=4, num_stages=2, why="any wave32 or wave64 part"),),
    ("amd", 4): (Tile(64, 64, 16, num_warps=4, num_stages=2, why="any wave32 or wave64 part"),),
    # `measured` as in turbo-gemm's table, whose rows for pointers these are: H200, 2026-11-30.
    ("sm_90", 2): (
        Tile(128, 256, 64, num_warps=8, num_stages=3, why="turbo-gemm's largest of pointers", subtile=2, measured=0.88),
        Tile(128, 128, 64, num_warps=8, num_stages=3, why="narrow C", measured=0.69),
        Tile(64, 64, 64, num_warps=4, num_stages=3, why="few rows a group", measured=0.25),
        Tile(16, 64, 64, num_warps=4, num_stages=3, why="hardly any rows", measured=0.08),
    ),
    ("sm_90", 4): (
        Tile(128, 128, 16, num_warps=8, num_stages=2, why="turbo-gemm's largest", measured=1.0),
        Tile(64, 64, 16, num_warps=4, num_stages=2, why="few rows a group", measured=0.57),
        Tile(16, 64, 16, num_warps=4, num_stages=2, why="hardly any rows", measured=0.2),
    ),
    ("nvidia", 2): (
        Tile(128, 128, 32, num_warps=4, num_stages=3, why="fits 64 KiB of shared memory", measured=1.0),
        Tile(64, 64, 32, num_warps=4, num_stages=2, why="few rows a group; fits 48 KiB", measured=0.6),
    ),
    ("nvidia", 4): (Tile(64, 64, 16, num_warps=4, num_stages=2, why="fits 48 KiB", measured=1.0),),
    ("cpu", 2): (
        Tile(128, 128, 64, num_warps=4, num_stages=1, why="interpreter: few, large numpy calls", measured=1.0),
        Tile(32, 64, 32, num_warps=4, num_stages=1, why="interpreter, few rows a group", measured=0.5),
    ),
    ("cpu", 4): (
        Tile(128, 128, 64, num_warps=4, num_stages=1, why="interpreter: few, large numpy calls", measured=1.0),
        Tile(32, 64, 32, num_warps=4, num_stages=1, why="interpreter, few rows a group", measured=0.5),
    ),
}
# AMD: no such device here. Rows are the largest that the audit (triton 3.9) passes.
GEMM_TABLE: _Table = {
    **_OTHERS,
    ("gfx950", 2): (
        Tile(256, 256, 32, num_warps=8, num_stages=3,
             why="99 KiB of LDS, 230 to 245 of 256 registers; at 256x256x64, 2 stages, 23 and more spilled",
             needs="regular", options=_MFMA16),
        Tile(256, 128, 64, num_warps=8, num_stages=2, why="narrow C, or fewer idle units", needs="regular",
             options=_MFMA16),
        Tile(128, 128, 64, num_warps=8, num_stages=2, why="about 128 rows a group; element-wise loads of unaligned "
             "tensors ran out of scalar registers", needs="regular", options=_MFMA16),
        Tile(64, 64, 64, num_warps=4, num_stages=2, why="few rows a group", needs="regular", options=_MFMA16),
        Tile(128, 128, 32, num_warps=8, num_stages=2, why="no form spills", options=_MFMA16),
        Tile(64, 64, 32, num_warps=4, num_stages=2, why="few rows a group", options=_MFMA16),
        Tile(16, 64, 32, num_warps=4, num_stages=2, why="hardly any rows", options=_MFMA16),
    ),
    ("gfx950", 4): (
        Tile(128, 128, 16, num_warps=8, num_stages=2, why="turbo-gemm's largest", options=_MFMA16),
        Tile(64, 64, 16, num_warps=4, num_stages=2, why="few rows a group", options=_MFMA16),
        Tile(16, 64, 32, num_warps=4, num_stages=2, why="hardly any rows", options=_MFMA16),
    ),
    ("gfx942", 2): (
        Tile(256, 256, 32, num_warps=8, num_stages=2,
             why="32 KiB of LDS, 240 to 253 of 256 registers; at 256x256x64 11 and more spilled", needs="regular",
             options=_MFMA16),
        Tile(256, 128, 64, num_warps=8, num_stages=2, why="narrow C, or fewer idle units", needs="regular",
             options=_MFMA16),
        Tile(128, 128, 64, num_warps=8, num_stages=2, why="about 128 rows a group", needs="regular", options=_MFMA16),
        Tile(64, 64, 64, num_warps=4, num_stages=2, why="few rows a group", needs="regular", options=_MFMA16),
        Tile(128, 128, 32, num_warps=8, num_stages=2, why="no form spills", options=_MFMA16),
        Tile(64, 64, 32, num_warps=4, num_stages=2, why="few rows a group", options=_MFMA16),
        Tile(16, 64, 32, num_warps=4, num_stages=2, why="hardly any rows", options=_MFMA16),
    ),
    ("gfx942", 4): (
        Tile(128, 128, 16, num_warps=8, num_stages=2,
             why="at 128x128x32 and 64x64x32 odd sizes ran out of scalar registers", options=_MFMA16),
        Tile(64, 64, 16, num_warps=4, num_stages=2, why="few rows a group", options=_MFMA16),
        Tile(16, 64, 32, num_warps=4, num_stages=2, why="hardly any rows", options=_MFMA16),
    ),
}
WGRAD_TABLE: _Table = {
    **_OTHERS,
    ("gfx950", 2): (
        Tile(256, 256, 32, num_warps=8, num_stages=3,
             why="99 KiB of LDS; added to a float32 C in halves 39 registers spilled, in quarters none",
             needs="regular", subtile=4, options=_MFMA16),
        Tile(256, 128, 64, num_warps=8, num_stages=2, why="narrow C, or fewer idle units", needs="regular", subtile=2,
             options=_MFMA16),
        Tile(128, 128, 64, num_warps=8, num_stages=2, why="small C; in one piece 11 scalar registers spilled",
             needs="regular", subtile=2, options=_MFMA16),
        Tile(64, 64, 64, num_warps=4, num_stages=2, why="smaller C", needs="regular", options=_MFMA16),
        Tile(128, 128, 32, num_warps=8, num_stages=2, why="no form spills", subtile=4, options=_MFMA16),
        Tile(64, 64, 32, num_warps=4, num_stages=2, why="small C", subtile=2, options=_MFMA16),
    ),
    ("gfx950", 4): (
        Tile(128, 128, 16, num_warps=8, num_stages=2,
             why="odd sizes, added to C in one piece, ran out of scalar registers", subtile=4, options=_MFMA16),
        Tile(64, 64, 16, num_warps=4, num_stages=2, why="small C", subtile=2, options=_MFMA16),
    ),
    ("gfx942", 2): (
        Tile(256, 256, 32, num_warps=8, num_stages=2, why="32 KiB of LDS; added to a float32 C in quarters",
             needs="regular", subtile=4, options=_MFMA16),
        Tile(256, 128, 64, num_warps=8, num_stages=2, why="narrow C, or fewer idle units", needs="regular", subtile=2,
             options=_MFMA16),
        Tile(128, 128, 64, num_warps=8, num_stages=2, why="small C", needs="regular", subtile=2,
             options=_MFMA16),
        Tile(64, 64, 64, num_warps=4, num_stages=2, why="smaller C", needs="regular", options=_MFMA16),
        Tile(128, 128, 32, num_warps=8, num_stages=2, why="no form spills", subtile=4, options=_MFMA16),
        Tile(64, 64, 32, num_warps=4, num_stages=2, why="small C", subtile=2, options=_MFMA16),
    ),
    ("gfx942", 4): (
        Tile(128, 128, 16, num_warps=8, num_stages=2,
             why="odd sizes, added to C in one piece, ran out of scalar registers", subtile=4, options=_MFMA16),
        Tile(64, 64, 16, num_warps=4, num_stages=2,
             why="small C; at 64x64x32 odd sizes ran out of scalar registers", subtile=2, options=_MFMA16),
    ),
}
# fmt: on


def average_rows(G: int, S: int) -> int:
    """What is told of S rows in G groups, for the choice of a row alone."""
    return min(MOST_ROWS, power_of_two(-(-S // max(G, 1))))


def rows_for(table: _Table, facts: DeviceFacts, operand_bytes: int, out_bytes: int) -> list[Tile]:
    """The device's rows that fit its LDS."""
    target = table_target(facts)
    limit = facts.lds_bytes if facts.vendor != "cpu" else 2**62
    return [t for t in table[target, operand_bytes] if lds_bytes(t, target, operand_bytes, out_bytes) <= limit]


@lru_cache(maxsize=4096)
def choose_gemm_tile(
    G: int, average: int, N: int, K: int, facts: DeviceFacts, operand_bytes: int, out_bytes: int, regular: bool
) -> Tile:
    """The row with the least cost for G groups of `average_rows`; regular: the tensors are, see Tile.needs."""
    regular = regular and N % 16 == 0 and K % 16 == 0

    def cost(tile: Tile) -> float:
        return tile_cost(tile, G * _whole(average, tile.block_m), N, K, facts, operand_bytes)

    rows = rows_for(GEMM_TABLE, facts, operand_bytes, out_bytes)
    return min((t for t in rows if t.needs == "any" or (regular and t.block_n <= N)), key=cost)


@lru_cache(maxsize=4096)
def choose_wgrad_tile(
    G: int, average: int, X: int, Y: int, facts: DeviceFacts, operand_bytes: int, out_bytes: int, regular: bool
) -> Tile:
    """Likewise for C [G, X, Y]."""
    regular = regular and X % 16 == 0 and Y % 16 == 0

    def cost(tile: Tile) -> float:
        return tile_cost(tile, G * _whole(X, tile.block_m), Y, average, facts, operand_bytes)

    rows = rows_for(WGRAD_TABLE, facts, operand_bytes, out_bytes)
    return min((t for t in rows if t.needs == "any" or (regular and t.block_m <= X and t.block_n <= Y)), key=cost)


def _whole(size: int, block: int) -> int:
    """The size in whole blocks."""
    return -(-size // block) * block
