# SPDX-License-Identifier: MIT
"""Tile table of the Triton FP8 and MX GEMMs; the model that picks a row is that of `gemm_tiles`.

Kinds: "fp8" (scales in the epilogue), "fp8 1d1d" (a second set of accumulators in the inner loop), "mxfp8", "mxfp4".
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from turbo_gemm.triton.gemm_tiles import Tile, is_launchable, lds_bytes, table_target, tile_cost

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = ["FP8_TABLE", "MAX_K_OF_14_BITS", "choose_fp8_tile", "fp8_lds_bytes", "table_rows"]

# sm_90 keeps 14 bits of a sum of FP8 products and cuts off the rest, every 32 of k. Products of one sign suffer most:
# K / 32 steps lose half of 2**-13 of the sum so far, so 2**-15 K / 32 of the final sum in all, 1.6 % (36 dB) here. Of
# random signs 57 dB were measured at K = 4096 and 51 dB at 14336. Quantisation to FP8 itself leaves 25 to 32 dB.
MAX_K_OF_14_BITS = 16384

_MFMA16 = (("matrix_instr_nonkdim", 16),)

# AMD: no such device here. As in `gemm_tiles`, rows are the largest that the audit (triton 3.9) passes.
# fmt: off
FP8_TABLE: dict[tuple[str, str], tuple[Tile, ...]] = {
    # Measured: H200, 2026-11-30, torch 2.11, triton 3.6; `measured` is the rate at 4096^3 over the first row's. "fp8":
    # 1375 TFLOP/s; 128x256x128 in 3 stages 1350, one program a tile within the noise; 256x128x128 1307; 128x256x64
    # 1284; 128x128x128 with 8 warps 1083. The rows with `promote` are for K beyond MAX_K_OF_14_BITS.
    ("sm_90", "fp8"): (
        Tile(128, 256, 128, num_warps=8, num_stages=4,
             why="two warp groups of 64x256; 4 stages and half of C in 225 KiB", loads="descriptor",
             flatten=True, subtile=2, measured=1.0),
        Tile(128, 256, 128, num_warps=8, num_stages=3,
             why="the same where C is float32", loads="descriptor", flatten=True, subtile=2, measured=0.98),
        Tile(128, 128, 128, num_warps=4, num_stages=3,
             why="half the tile, two programs a unit", loads="descriptor", flatten=True, subtile=2,
             per_unit=2, measured=0.97),
        Tile(64, 128, 128, num_warps=4, num_stages=4, why="small C", loads="descriptor", flatten=True, measured=0.62),
        Tile(64, 64, 128, num_warps=4, num_stages=4, why="smallest C", loads="descriptor", flatten=True, measured=0.38),
        Tile(128, 128, 128, num_warps=4, num_stages=3,
             why="252 registers; 128x256 and 64x128 were 15 % slower, 256x128 3 %", loads="descriptor",
             flatten=True, subtile=2, per_unit=2, promote=128, measured=0.79),
        Tile(64, 128, 128, num_warps=4, num_stages=3,
             why="small C", loads="descriptor", flatten=True, subtile=2, per_unit=2, promote=128,
             measured=0.69),
    ),
    # TFLOP/s at 4096^3 and at 8192x4096x14336, where cuBLASLt did 1261 and 1328. The row with `promote` above, whose
    # loop is this one without scales, did 1073: one half's additions wait for its products.
    ("sm_90", "fp8 1d2d"): (
        Tile(128, 128, 128, num_warps=4, num_stages=3,
             why="1037, 1064; 8 warps in one piece 856, 781; scales loaded in their own step 944, 922",
             loads="descriptor", subtile=2, per_unit=0, halves=2, measured=1.0),
        Tile(64, 128, 128, num_warps=4, num_stages=3,
             why="897, 839: bound by what the L2 cache delivers", loads="descriptor", subtile=2, per_unit=2,
             measured=0.82),
        Tile(64, 64, 128, num_warps=4, num_stages=4, why="smallest C", loads="descriptor", measured=0.44),
    ),
    # cuBLASLt 1012 and 997
    ("sm_90", "fp8 1d1d"): (
        Tile(128, 128, 128, num_warps=4, num_stages=3,
             why="834, 751; 24 bytes a thread spilled; with 8 warps in one piece 626, 573",
             loads="descriptor", subtile=2, per_unit=2, halves=2, measured=1.0),
        Tile(64, 128, 128, num_warps=4, num_stages=3,
             why="765, 722", loads="descriptor", subtile=2, per_unit=2, measured=0.92),
        Tile(64, 64, 128, num_warps=4, num_stages=4, why="smallest C", loads="descriptor", measured=0.55),
        Tile(64, 128, 64, num_warps=4, num_stages=4,
             why="block size 64", loads="descriptor", subtile=2, per_unit=2, measured=0.8),
        Tile(64, 128, 32, num_warps=4, num_stages=4,
             why="block size 32", loads="descriptor", subtile=2, per_unit=2, measured=0.5),
        Tile(64, 64, 32, num_warps=4, num_stages=3, why="other block sizes, in steps of 32", measured=0.1),
    ),
    ("sm_90", "mxfp8"): (Tile(128, 128, 128, num_warps=8, num_stages=3,
                              why="widened to 16 bits: 255 registers, none spilled", measured=1.0),),
    ("sm_90", "mxfp4"): (Tile(128, 128, 128, num_warps=8, num_stages=3,
                              why="widened to 16 bits: 229 registers", measured=1.0),),
    ("nvidia", "fp8"): (Tile(64, 64, 64, num_warps=4, num_stages=2, why="fits 48 KiB", measured=1.0),),
    ("nvidia", "fp8 1d1d"): (Tile(64, 64, 32, num_warps=4, num_stages=2, why="fits 48 KiB", measured=1.0),),
    ("nvidia", "mxfp8"): (Tile(64, 64, 128, num_warps=4, num_stages=2, why="fits 48 KiB", measured=1.0),),
    ("nvidia", "mxfp4"): (Tile(64, 64, 128, num_warps=4, num_stages=2, why="fits 48 KiB", measured=1.0),),
    ("gfx950", "fp8"): (
        Tile(256, 256, 64, num_warps=8, num_stages=3,
             why="97 KiB of LDS; 256x256x128 spilled 11, edges 80", needs="whole", subtile=2,
             options=_MFMA16),
        Tile(256, 128, 128, num_warps=8, num_stages=2,
             why="99 KiB of LDS; edges with bias and accumulation spilled 6", needs="whole",
             options=_MFMA16),
        Tile(128, 128, 128, num_warps=8, num_stages=2, why="edges fit", options=_MFMA16),
        Tile(64, 64, 128, num_warps=4, num_stages=2, why="small C", options=_MFMA16),
        Tile(16, 64, 128, num_warps=4, num_stages=2, why="skinny C", options=_MFMA16),
    ),
    ("gfx950", "fp8 1d1d"): (
        Tile(128, 128, 128, num_warps=8, num_stages=2,
             why="64 accumulators and 64 of the step; 256x128 spilled 5 to 47", options=_MFMA16),
        Tile(64, 64, 128, num_warps=4, num_stages=2, why="small C", options=_MFMA16),
        Tile(16, 64, 128, num_warps=4, num_stages=2, why="skinny C", options=_MFMA16),
        Tile(64, 64, 64, num_warps=4, num_stages=2,
             why="block size 64; 128x128 ran out of scalar registers at edges", options=_MFMA16),
        Tile(64, 64, 32, num_warps=4, num_stages=2, why="block size 32, and any other in steps of 32", options=_MFMA16),
    ),
    ("gfx942", "fp8"): (
        Tile(256, 256, 64, num_warps=8, num_stages=2,
             why="32 KiB of LDS; 256x256x128 spilled 16, edges 36", needs="whole", subtile=2,
             options=_MFMA16),
        Tile(256, 128, 128, num_warps=8, num_stages=2,
             why="48 KiB of LDS; C in one piece spilled 28 when accumulating", needs="whole",
             subtile=2, options=_MFMA16),
        Tile(128, 128, 128, num_warps=8, num_stages=2, why="edges fit", options=_MFMA16),
        Tile(64, 64, 128, num_warps=4, num_stages=2, why="small C", options=_MFMA16),
        Tile(16, 64, 128, num_warps=4, num_stages=2, why="skinny C", options=_MFMA16),
    ),
    ("gfx942", "fp8 1d1d"): (
        Tile(128, 128, 128, num_warps=8, num_stages=2,
             why="64 accumulators and 64 of the step; 256x128 spilled 11 and more", options=_MFMA16),
        Tile(64, 64, 128, num_warps=4, num_stages=2, why="small C", options=_MFMA16),
        Tile(16, 64, 128, num_warps=4, num_stages=2, why="skinny C", options=_MFMA16),
        Tile(64, 64, 64, num_warps=4, num_stages=2,
             why="block size 64; 128x128 ran out of scalar registers at edges", options=_MFMA16),
        Tile(64, 64, 32, num_warps=4, num_stages=2, why="block size 32, and any other in steps of 32", options=_MFMA16),
    ),
    ("gfx950", "mxfp8"): (
        Tile(256, 128, 128, num_warps=8, num_stages=2,
             why="102 KiB of LDS; 256x256 spilled 20 to 280", options=_MFMA16),
        Tile(128, 128, 128, num_warps=8, num_stages=2, why="half of that", options=_MFMA16),
        Tile(64, 64, 128, num_warps=4, num_stages=2, why="small C", options=_MFMA16),
    ),
    ("gfx950", "mxfp4"): (
        Tile(256, 256, 128, num_warps=8, num_stages=2,
             why="70 KiB of LDS; edges spilled 23", needs="whole", subtile=2, options=_MFMA16),
        Tile(256, 128, 128, num_warps=8, num_stages=2,
             why="half of that; ran out of scalar registers at edges", needs="whole", options=_MFMA16),
        Tile(128, 128, 128, num_warps=8, num_stages=2, why="edges fit", options=_MFMA16),
        Tile(64, 64, 128, num_warps=4, num_stages=2, why="small C", options=_MFMA16),
    ),
    ("gfx942", "mxfp8"): (Tile(64, 64, 128, num_warps=4, num_stages=2,
                               why="widened to 16 bits; 128x128 spilled 4 to 9", options=_MFMA16),),
    ("gfx942", "mxfp4"): (Tile(64, 64, 128, num_warps=4, num_stages=2,
                               why="the same; 128x128 ran out of scalar registers", options=_MFMA16),),
    ("amd", "fp8"): (Tile(64, 64, 64, num_warps=4, num_stages=2, why="any wave32 or wave64 part"),),
    ("amd", "fp8 1d1d"): (Tile(64, 64, 32, num_warps=4, num_stages=2, why="any wave32 or wave64 part"),),
    ("amd", "mxfp8"): (Tile(64, 64, 128, num_warps=4, num_stages=2, why="any wave32 or wave64 part"),),
    ("amd", "mxfp4"): (Tile(64, 64, 128, num_warps=4, num_stages=2, why="any wave32 or wave64 part"),),
    ("cpu", "fp8"): (
        Tile(128, 128, 128, num_warps=4, num_stages=1, why="interpreter: few, large numpy calls", measured=1.0),
        Tile(32, 64, 64, num_warps=4, num_stages=1, why="interpreter, small C", measured=0.5),
    ),
    ("cpu", "fp8 1d1d"): (
        Tile(128, 128, 128, num_warps=4, num_stages=1, why="interpreter: few, large numpy calls", measured=1.0),
        Tile(32, 64, 32, num_warps=4, num_stages=1, why="interpreter, small C and other block sizes", measured=0.5),
    ),
    ("cpu", "mxfp8"): (Tile(64, 64, 128, num_warps=4, num_stages=1, why="interpreter", measured=1.0),),
    ("cpu", "mxfp4"): (Tile(64, 64, 128, num_warps=4, num_stages=1, why="interpreter", measured=1.0),),
}
# fmt: on


def table_rows(target: str, kind: str) -> tuple[Tile, ...]:
    """The rows of a kind; targets without rows of their own for "fp8 1d2d" take those for "fp8 1d1d"."""
    return FP8_TABLE.get((target, kind)) or FP8_TABLE[target, "fp8 1d1d"]


def fp8_lds_bytes(tile: Tile, target: str, kind: str, out_bytes: int) -> int:
    """Upper estimate of local memory: `lds_bytes`, scales of MX, and C's way through it where the loop needs less."""
    loop = lds_bytes(tile, target, 1, out_bytes)
    scales = loop // 32 if kind.startswith("mx") else 0
    return max(loop + scales, min(tile.block_m * tile.block_n, 4096) * 4)


@lru_cache(maxsize=4096)
def choose_fp8_tile(
    M: int,
    N: int,
    K: int,
    kind: str,
    block_size: int,
    facts: DeviceFacts,
    *,
    out_bytes: int = 2,
    regular: bool = True,
) -> Tile:
    """The row with the least cost; the earlier one on a tie.

    block_size: of blockwise scales. Rows whose step along K divides it, or else the last one, block after block.
    regular: see Tile.
    """
    target = table_target(facts)
    limit = facts.lds_bytes if facts.vendor != "cpu" else 2**62
    rows = [tile for tile in table_rows(target, kind) if fp8_lds_bytes(tile, target, kind, out_bytes) <= limit]
    if block_size:
        rows = [tile for tile in rows if block_size % tile.block_k == 0] or rows[-1:]
    elif any(tile.promote for tile in rows):
        rows = [tile for tile in rows if bool(tile.promote) == (K > MAX_K_OF_14_BITS)]
    return min(
        (tile for tile in rows if is_launchable(tile, M, N, K, regular)),
        key=lambda tile: tile_cost(tile, M, N, K, facts, 1),
    )
