# SPDX-License-Identifier: MIT
"""Tile tables of the grouped FP8 and MX kernels. Neither torch nor triton is needed to read them.

Kinds are those of turbo-gemm's table: "fp8" (scales in the epilogue), "fp8 1d1d", "fp8 1d2d" (a second set of
accumulators in the inner loop), "mxfp8", "mxfp4". Targets without rows of their own here take the dense ones.

The model is turbo-gemm's, of the tiles of all groups: the host knows how many rows there are, not whose they are, so it
reckons with groups of equal length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from turbo_gemm.developer import FP8_TABLE, MAX_K_OF_14_BITS, Tile, fp8_lds_bytes, table_target, tile_cost

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = ["GEMM_TABLE", "WGRAD_TABLE", "choose_tile", "table_rows"]

_MFMA16 = (("matrix_instr_nonkdim", 16),)
_Table = dict[tuple[str, str], tuple[Tile, ...]]


def _amd(*rows: tuple[int, int, int, str, str]) -> tuple[Tile, ...]:
    """block_m, block_n, subtile, needs, why; 128 along K, for which gfx950 has its fastest instructions alone."""
    return tuple(
        Tile(m, n, 128, num_warps=8 if m * n >= 128 * 128 else 4, num_stages=2, why=why, subtile=subtile, needs=needs,
             options=_MFMA16)
        for m, n, subtile, needs, why in rows
    )  # fmt: skip


# fmt: off
_FEW_ROWS = ((64, 64, 1, "any", "few rows a group, or narrow C"), (16, 64, 1, "any", "hardly any rows"))
_SQUARE = (128, 128, 1, "any", "about 128 rows a group, or fewer idle units")
_SMALL_C = (64, 64, 1, "regular", "small C; element-wise loads of the old C ran out of scalar registers")
# AMD: no such device here. Rows are the largest that the audit (triton 3.9) passes.
GEMM_TABLE: _Table = {
    ("gfx950", "fp8"): _amd(
        (256, 128, 1, "any", "99 KiB of LDS, 217 of 256 registers; 256x256 spilled 26 to 50"),
        (128, 256, 1, "any", "the same for about 128 rows a group"), _SQUARE, *_FEW_ROWS),
    ("gfx942", "fp8"): _amd(
        (256, 128, 1, "any", "48 KiB of LDS, 240 of 256 registers; 256x256 spilled 74 to 94"),
        (128, 256, 1, "any", "the same for about 128 rows a group"), _SQUARE, *_FEW_ROWS),
    ("gfx950", "fp8 1d2d"): _amd(
        (256, 128, 2, "regular", "64 accumulators and 64 of the step; an unaligned float32 C spilled 5"), _SQUARE,
        *_FEW_ROWS),
    ("gfx942", "fp8 1d2d"): _amd(
        (256, 128, 2, "regular", "64 accumulators and 64 of the step, 256 registers"), _SQUARE, *_FEW_ROWS),
    ("gfx950", "mxfp8"): _amd((256, 128, 1, "any", "102 KiB of LDS, 214 of 256 registers"), _SQUARE, *_FEW_ROWS),
    ("gfx950", "mxfp4"): _amd(
        (256, 128, 1, "any", "53 KiB of LDS; 256x256 spilled 13 at edges with a float32 C"), _SQUARE, *_FEW_ROWS),
    ("gfx942", "mxfp8"): _amd((64, 64, 1, "any", "widened to 16 bits; 128x64 spilled 13 scalar registers")),
    ("gfx942", "mxfp4"): _amd((64, 64, 1, "any", "the same")),
    # Those of turbo-gemm's table, `measured` on the dense product (H200, 2026-11-30); ptxas spills in none. Rows of
    # pointers are for rows of A that are named: their figures are a guess from turbo-gemm's 16-bit ones.
    ("sm_90", "fp8"): (
        Tile(128, 256, 128, num_warps=8, num_stages=4, why="two warp groups of 64x256", loads="descriptor", subtile=2,
             measured=1.0),
        Tile(128, 256, 128, num_warps=8, num_stages=3, why="the same where C is float32", loads="descriptor",
             subtile=2, measured=0.98),
        Tile(128, 128, 128, num_warps=4, num_stages=3, why="two programs a unit", loads="descriptor", subtile=2,
             per_unit=2, measured=0.97),
        Tile(64, 128, 128, num_warps=4, num_stages=4, why="about 64 rows a group", loads="descriptor", measured=0.62),
        Tile(64, 64, 128, num_warps=4, num_stages=4, why="narrow C", loads="descriptor", measured=0.38),
        Tile(128, 128, 128, num_warps=4, num_stages=3, why="long K", loads="descriptor", subtile=2, per_unit=2,
             promote=128, measured=0.79),
        Tile(64, 128, 128, num_warps=4, num_stages=3, why="long K, about 64 rows a group", loads="descriptor",
             subtile=2, per_unit=2, promote=128, measured=0.69),
        Tile(128, 128, 128, num_warps=8, num_stages=3, why="named rows; 128x256 spilled 2", subtile=2, measured=0.6),
        Tile(64, 64, 128, num_warps=4, num_stages=3, why="named rows, few a group", measured=0.25),
        Tile(128, 128, 128, num_warps=8, num_stages=3, why="named rows, long K", subtile=2, promote=128, measured=0.5),
    ),
    ("sm_90", "fp8 1d2d"): (
        Tile(128, 128, 128, num_warps=4, num_stages=3, why="245 registers; two programs a unit", loads="descriptor",
             subtile=2, per_unit=2, halves=2, measured=1.0),
        Tile(64, 128, 128, num_warps=4, num_stages=3, why="about 64 rows a group", loads="descriptor", subtile=2,
             per_unit=2, measured=0.82),
        Tile(64, 64, 128, num_warps=4, num_stages=4, why="narrow C", loads="descriptor", measured=0.44),
        Tile(128, 128, 128, num_warps=8, num_stages=3, why="named rows", subtile=2, measured=0.6),
        Tile(64, 64, 128, num_warps=4, num_stages=3, why="named rows, few a group", measured=0.25),
    ),
}
WGRAD_TABLE: _Table = {
    ("gfx950", "fp8"): _amd(
        (256, 128, 1, "regular", "99 KiB of LDS; 256x256 spilled 10 to 32"), _SQUARE, _SMALL_C),
    ("gfx942", "fp8"): _amd(
        (256, 128, 2, "whole", "48 KiB of LDS; edges ran out of scalar registers, 256x256 spilled 30"), _SQUARE,
        _SMALL_C),
    ("gfx950", "fp8 1d1d"): _amd(_SQUARE, _SMALL_C),
    ("gfx942", "fp8 1d1d"): _amd(_SQUARE, _SMALL_C),
    ("gfx950", "mxfp8"): _amd((256, 128, 1, "regular", "102 KiB of LDS"), _SQUARE, _SMALL_C),
    ("gfx950", "mxfp4"): _amd((256, 128, 1, "regular", "53 KiB of LDS"), _SQUARE, _SMALL_C),
    ("gfx942", "mxfp8"): _amd((64, 64, 1, "any", "widened to 16 bits")),
    ("gfx942", "mxfp4"): _amd((64, 64, 1, "any", "the same")),
}
# fmt: on


def table_rows(table: _Table, target: str, kind: str) -> tuple[Tile, ...]:
    """The rows of a kind; "fp8 1d2d" without rows of its own takes those of "fp8 1d1d"."""
    for known in (table, FP8_TABLE):
        for name in (kind, kind.replace("1d2d", "1d1d")):
            if (target, name) in known:
                return known[target, name]
    raise KeyError((target, kind))


@lru_cache(maxsize=4096)
def choose_tile(
    wgrad: bool,
    G: int,
    M: int,
    N: int,
    K: int,
    kind: str,
    facts: DeviceFacts,
    out_bytes: int,
    regular: bool,
    loads: str = "descriptor",
) -> Tile:
    """The row with the least cost; the earlier one on a tie.

    M, N, K: of one group's product C [M,N].
    regular: see `Tile.needs`; "whole" speaks of M and N of a wgrad, and no launch of the others is whole.
    loads: "pointer" where no descriptor fits; else rows of either.
    """
    target = table_target(facts)
    limit = facts.lds_bytes if facts.vendor != "cpu" else 2**62
    rows = [
        tile
        for tile in table_rows(WGRAD_TABLE if wgrad else GEMM_TABLE, target, kind)
        if fp8_lds_bytes(tile, target, kind, out_bytes) <= limit
    ]
    rows = [tile for tile in rows if tile.loads == loads] or [tile for tile in rows if tile.loads == "pointer"]
    if any(tile.promote for tile in rows):
        rows = [tile for tile in rows if bool(tile.promote) == (K > MAX_K_OF_14_BITS)]

    def launchable(tile: Tile) -> bool:
        whole = wgrad and M % tile.block_m == 0 and N % tile.block_n == 0
        return tile.needs == "any" or (regular and (tile.needs == "regular" or whole))

    def cost(tile: Tile) -> float:
        rows_of_all = G * -(-M // tile.block_m) * tile.block_m
        return tile_cost(tile, rows_of_all, N, K, facts, 1)

    return min(filter(launchable, rows), key=cost)
