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

GEMM_TABLE: dict[tuple[str, str], tuple[Tile, ...]] = {}
WGRAD_TABLE: dict[tuple[str, str], tuple[Tile, ...]] = {}


def table_rows(table: dict[tuple[str, str], tuple[Tile, ...]], target: str, kind: str) -> tuple[Tile, ...]:
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
