# SPDX-License-Identifier: MIT
"""Tile tables of the fused expert MLP's Triton kernels. Neither torch nor triton is needed to read them.

Rows are chosen as those of `grouped_tiles`. block_n counts the columns of a program's sums: in "gated" half of them are
the gate's and half up's, in "dgated" all are columns of out. subtile: slices in which the gate is applied and stored.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from turbo_gemm.developer import Tile, tile_cost
from turbo_grouped_gemm.triton.grouped_tiles import rows_for

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = ["MLP_TABLES", "choose_mlp_tile", "columns_of"]

_MFMA16 = (("matrix_instr_nonkdim", 16),)
_Table = dict[tuple[str, int], tuple[Tile, ...]]

# fmt: off
_OTHERS: _Table = {
    ("amd", 2): (Tile(64, 64, 32, num_warps=4, num_stages=2, why="any wave32 or wave64 part"),),
    ("amd", 4): (Tile(64, 64, 16, num_warps=4, num_stages=2, why="any wave32 or wave64 part"),),
    ("sm_90", 2): (
        Tile(128, 128, 64, num_warps=8, num_stages=3, why="the plain product's second row", measured=0.69),
        Tile(64, 64, 64, num_warps=4, num_stages=3, why="few rows a group", measured=0.25),
        Tile(16, 64, 64, num_warps=4, num_stages=3, why="hardly any rows", measured=0.08),
    ),
    ("sm_90", 4): (
        Tile(64, 64, 16, num_warps=4, num_stages=2, why="two epilogues in registers", measured=0.57),
        Tile(16, 64, 16, num_warps=4, num_stages=2, why="hardly any rows", measured=0.2),
    ),
    ("nvidia", 2): (
        Tile(128, 128, 32, num_warps=8, num_stages=3, why="fits 64 KiB of shared memory", measured=1.0),
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
_GATED16 = (
    Tile(256, 128, 64, num_warps=8, num_stages=2, why="two sums of 256x64; 164 to 212 of 256 registers",
         needs="regular", subtile=2, options=_MFMA16),
    Tile(128, 128, 64, num_warps=8, num_stages=2, why="about 128 rows a group", needs="regular", options=_MFMA16),
    Tile(64, 64, 64, num_warps=4, num_stages=2, why="few rows a group", needs="regular", options=_MFMA16),
    Tile(64, 64, 32, num_warps=4, num_stages=2, why="no form spills", options=_MFMA16),
    Tile(16, 64, 32, num_warps=4, num_stages=2, why="hardly any rows", options=_MFMA16),
)
_GATED32 = (
    Tile(64, 64, 16, num_warps=4, num_stages=2, why="no form spills", options=_MFMA16),
    Tile(16, 64, 32, num_warps=4, num_stages=2, why="hardly any rows", options=_MFMA16),
)
_DGATED16 = (
    Tile(256, 128, 64, num_warps=8, num_stages=2, why="184 of 256 registers; in halves of the columns 150 spilled",
         needs="regular", subtile=8, options=_MFMA16),
    Tile(128, 128, 64, num_warps=8, num_stages=2, why="about 128 rows a group; in one piece 126 registers spilled",
         needs="regular", subtile=4, options=_MFMA16),
    Tile(64, 64, 64, num_warps=4, num_stages=2, why="few rows a group", needs="regular", subtile=2, options=_MFMA16),
    Tile(32, 64, 32, num_warps=4, num_stages=2, why="no form spills; of 64 rows scalar registers did", subtile=8,
         options=_MFMA16),
    Tile(16, 64, 32, num_warps=4, num_stages=2, why="hardly any rows", subtile=4, options=_MFMA16),
)
_DGATED32 = (
    Tile(32, 64, 16, num_warps=4, num_stages=2, why="no form spills; of 64 rows scalar registers did", subtile=8,
         options=_MFMA16),
    Tile(16, 64, 16, num_warps=4, num_stages=2, why="hardly any rows; in steps of 32 scalar registers spilled",
         subtile=4, options=_MFMA16),
)
# fmt: on


def _table(of_16_bits: tuple[Tile, ...], of_32_bits: tuple[Tile, ...]) -> _Table:
    rows: _Table = {}
    for arch in ("gfx942", "gfx950"):
        rows[arch, 2], rows[arch, 4] = of_16_bits, of_32_bits
    return {**_OTHERS, **rows}


MLP_TABLES = {"gated": _table(_GATED16, _GATED32), "dgated": _table(_DGATED16, _DGATED32)}


def columns_of(kind: str, tile: Tile) -> int:
    """Columns of out that a program computes."""
    return tile.block_n // 2 if kind == "gated" else tile.block_n


@lru_cache(maxsize=4096)
def choose_mlp_tile(
    kind: str, G: int, average: int, F: int, K: int, facts: DeviceFacts, operand_bytes: int, out_bytes: int,
    regular: bool,
) -> Tile:  # fmt: skip
    """The row with the least cost; K is the contraction. See `grouped_tiles.choose_gemm_tile`."""
    rows = rows_for(MLP_TABLES[kind], facts, operand_bytes, out_bytes)
    regular = regular and F % 16 == 0 and K % 16 == 0

    def cost(tile: Tile) -> float:
        rows_in_tiles = G * -(-average // tile.block_m) * tile.block_m
        columns = F * tile.block_n // columns_of(kind, tile)
        return tile_cost(tile, rows_in_tiles, columns, K, facts, operand_bytes)

    return min((t for t in rows if t.needs == "any" or (regular and columns_of(kind, t) <= F)), key=cost)
