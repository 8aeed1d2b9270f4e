# SPDX-License-Identifier: MIT
"""Tile table of the Triton GEMM and the model that picks a row. Neither torch nor triton is needed to read it.

The model is arithmetic, not a tuning run, so every rank and every run makes the same choice:

    units = ceil(ceil(M / block_m) * ceil(N / block_n) / compute_units)       tiles the busiest compute unit computes
    cost  = units * block_m * block_n * (ceil(K / block_k) * block_k + OVERHEAD_K) / efficiency

`units * block_m * block_n` is wave quantisation: 132 tiles on 132 units cost one tile's time, 133 cost two.
`efficiency` is how close one tile's inner loop comes to the matrix units' rate (1.0 = the best tile of the target):
measured where we have the device, else from the target's bandwidth figures (`arithmetic_efficiency`). OVERHEAD_K is
what filling the pipeline and writing the tile costs, in units of K. Rows that do not fit the device's LDS are dropped
first. Ties go to the earlier row. `explain_tile` prints the whole reckoning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from turbo_core import tiles

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = [
    "OVERHEAD_K",
    "Tile",
    "choose_tile",
    "explain_tile",
    "group_rows",
    "lds_bytes",
    "programs_for",
    "rows_for",
    "table_target",
    "is_launchable",
    "tile_cost",
]

OVERHEAD_K = 192


@dataclass(frozen=True)
class Tile(tiles.Tile):
    """One row of the table.

    Attributes:
        block_m, block_n, block_k: tile of C, and the step along K.
        loads: "descriptor" (TMA) or "pointer".
        flatten: fuse the tile loop with the k loop.
        subtile: column slices in which a tile of C is stored.
        per_unit: programs launched for each compute unit; 0: one for each tile of C.
        promote: FP8 on sm_90: float32 accumulation every so many of K; 0: the matrix unit's own 14-bit sum.
        halves: FP8 with scales by blocks: parts of the tile that are summed one after the other (see that kernel).
        needs: which launches the row takes, where the audit found that others spill. "any": all; "regular": 16-byte
            aligned tensors and strides, A and B not both stored transposed; "whole": that, and no edges (M, N and K are
            multiples of the tile).
        measured: efficiency seen on a device; None: from arithmetic.
    """

    block_m: int
    block_n: int
    block_k: int
    loads: str = "pointer"
    flatten: bool = False
    subtile: int = 1
    per_unit: int = 1
    promote: int = 0
    halves: int = 1
    needs: str = "any"
    measured: float | None = None

    @property
    def name(self) -> str:
        kind = "d" if self.loads == "descriptor" else "p"
        return f"{self.block_m}x{self.block_n}x{self.block_k}_w{self.num_warps}_s{self.num_stages}_{kind}{self.subtile}"


_MFMA16 = (("matrix_instr_nonkdim", 16),)

# (target, bytes of an operand as the matrix unit sees it) -> rows, the preferred first.
# fmt: off
TABLE: dict[tuple[str, int], tuple[Tile, ...]] = {
    # Measured: H200, 2026-11-30, torch 2.11, triton 3.6, bf16. `measured` is the rate at 4096^3 over the first row's.
    # First row against its neighbours, geometric mean over cuBLAS at 12 shapes x 3 layouts: 1.002; 4 stages with C in
    # halves 0.991; loops not fused 0.990; one tile a program 0.986. 256x128x64 was 3 % slower, 128x256x128 in 2 stages
    # 25 %, 128x128x64 with two programs a unit 3 %; rows of a group 16 against 8: 1 % faster, as `group_rows` has it.
    ("sm_90", 2): (
        Tile(128, 256, 64, num_warps=8, num_stages=3,
             why="two warp groups of 64x256, 3 stages and C beside them in 227 KiB", loads="descriptor",
             flatten=True, measured=1.0),
        Tile(128, 256, 64, num_warps=8, num_stages=3,
             why="the same where C is float32: stored in halves", loads="descriptor",
             flatten=True, subtile=2, measured=0.98),
        Tile(128, 128, 64, num_warps=4, num_stages=4,
             why="half the tile, for fewer idle units", loads="descriptor", flatten=True, measured=0.89),
        Tile(64, 128, 64, num_warps=4, num_stages=4, why="small C", loads="descriptor", flatten=True, measured=0.57),
        Tile(64, 64, 64, num_warps=4, num_stages=4, why="smallest C", loads="descriptor", flatten=True, measured=0.35),
        Tile(128, 256, 64, num_warps=8, num_stages=3, why="tensors that no descriptor takes", subtile=2, measured=0.88),
        Tile(128, 128, 64, num_warps=8, num_stages=3, why="the same, smaller C", measured=0.69),
        Tile(128, 64, 64, num_warps=4, num_stages=3, why="the same, small C", measured=0.40),
        Tile(64, 64, 64, num_warps=4, num_stages=3, why="the same, smallest C", measured=0.25),
        Tile(16, 64, 64, num_warps=4, num_stages=3, why="the same, skinny C", measured=0.08),
    ),
    # The same, float32 at 2048^3, all layouts: 128x64x16 was slower than 128x128x16, 64x64x32 than 64x64x16.
    ("sm_90", 4): (
        Tile(128, 128, 16, num_warps=8, num_stages=2,
             why="float32 runs on the FMA units: 64 accumulators a thread", measured=1.0),
        Tile(64, 64, 16, num_warps=4, num_stages=2, why="small C", measured=0.57),
        Tile(16, 64, 16, num_warps=4, num_stages=2, why="skinny C", measured=0.2),
    ),
    ("nvidia", 2): (
        Tile(128, 128, 32, num_warps=4, num_stages=3, why="fits 64 KiB of shared memory", measured=1.0),
        Tile(64, 64, 32, num_warps=4, num_stages=2, why="small C; fits 48 KiB", measured=0.6),
    ),
    ("nvidia", 4): (Tile(64, 64, 16, num_warps=4, num_stages=2, why="fits 48 KiB", measured=1.0),),
    # AMD: no such device here. Rows are the largest that the audit (triton 3.9) passes: 256x256 holds 128 accumulators
    # a lane of the 256 registers that 8 warps leave it, so there is no room for the masks and addresses of edges.
    # matrix_instr_nonkdim=16: 32 spilled 27 and more at 256x256. kpack=2 (gfx942): spilled 9 to 15 at 256x256x32.
    ("gfx950", 2): (
        Tile(256, 256, 32, num_warps=8, num_stages=3,
             why="99 KiB of LDS; at 256x256x64, 2 stages, 16 to 25 registers spilled; C in one piece "
             "spilled when accumulating", needs="whole", subtile=2, options=_MFMA16),
        Tile(256, 128, 64, num_warps=8, num_stages=2,
             why="half the tile, 99 KiB of LDS; edges spilled 30", needs="whole", options=_MFMA16),
        Tile(128, 128, 64, num_warps=8, num_stages=2,
             why="edges fit; element-wise loads of unaligned tensors ran out of scalar registers",
             needs="regular", options=_MFMA16),
        Tile(64, 64, 64, num_warps=4, num_stages=2, why="small C", needs="regular", options=_MFMA16),
        Tile(128, 128, 32, num_warps=8, num_stages=2, why="no form spills", options=_MFMA16),
        Tile(64, 64, 32, num_warps=4, num_stages=2, why="small C", options=_MFMA16),
        Tile(16, 64, 32, num_warps=4, num_stages=2, why="skinny C", options=_MFMA16),
    ),
    ("gfx950", 4): (
        Tile(128, 128, 16, num_warps=8, num_stages=2,
             why="no form spills; at 128x128x32 edges of M and N ran out of scalar registers",
             options=_MFMA16),
        Tile(64, 64, 16, num_warps=4, num_stages=2, why="small C; at 64x64x32 likewise", options=_MFMA16),
        Tile(16, 64, 32, num_warps=4, num_stages=2, why="skinny C", options=_MFMA16),
    ),
    ("gfx942", 2): (
        Tile(256, 256, 32, num_warps=8, num_stages=2,
             why="32 KiB of LDS; at 256x256x64 (64 KiB) up to 8 registers spilled", needs="whole",
             subtile=2, options=_MFMA16),
        Tile(256, 128, 64, num_warps=8, num_stages=2,
             why="half the tile, 48 KiB of LDS; edges spilled 28", needs="whole", options=_MFMA16),
        Tile(128, 128, 64, num_warps=8, num_stages=2,
             why="edges fit; C in one piece spilled 2 scalar registers when accumulating",
             needs="regular", subtile=2, options=_MFMA16),
        Tile(64, 64, 64, num_warps=4, num_stages=2, why="small C", needs="regular", options=_MFMA16),
        Tile(128, 128, 32, num_warps=8, num_stages=2, why="no form spills", options=_MFMA16),
        Tile(64, 64, 32, num_warps=4, num_stages=2, why="small C", options=_MFMA16),
        Tile(16, 64, 32, num_warps=4, num_stages=2, why="skinny C", options=_MFMA16),
    ),
    ("gfx942", 4): (
        Tile(128, 128, 32, num_warps=8, num_stages=2, why="no form spills", options=_MFMA16),
        Tile(64, 64, 32, num_warps=4, num_stages=2, why="small C", options=_MFMA16),
        Tile(16, 64, 32, num_warps=4, num_stages=2, why="skinny C", options=_MFMA16),
    ),
    ("amd", 2): (Tile(64, 64, 32, num_warps=4, num_stages=2, why="any wave32 or wave64 part"),),
    ("amd", 4): (Tile(64, 64, 16, num_warps=4, num_stages=2, why="any wave32 or wave64 part"),),
    ("cpu", 2): (
        Tile(128, 128, 64, num_warps=4, num_stages=1, why="interpreter: few, large numpy calls", measured=1.0),
        Tile(32, 64, 32, num_warps=4, num_stages=1, why="interpreter, small C", measured=0.5),
    ),
    ("cpu", 4): (
        Tile(128, 128, 64, num_warps=4, num_stages=1, why="interpreter: few, large numpy calls", measured=1.0),
        Tile(32, 64, 32, num_warps=4, num_stages=1, why="interpreter, small C", measured=0.5),
    ),
}
# fmt: on

# Per compute unit and clock: multiply-adds of the matrix units by bytes of an operand, bytes from L2, bytes from LDS.
# Source: CDNA3 and CDNA4 white papers (peak rate / units / clock; 64-byte L1 line a clock; LDS reads doubled in CDNA4).
_RATES: dict[str, tuple[dict[int, int], int, int]] = {
    "gfx942": ({1: 2048, 2: 1024, 4: 128}, 64, 128),
    "gfx950": ({1: 4096, 2: 2048, 4: 128}, 64, 256),
    "amd": ({1: 512, 2: 512, 4: 128}, 64, 128),
}


def table_target(facts: DeviceFacts) -> str:
    """The architecture where it has rows of its own, else the vendor."""
    return facts.arch if (facts.arch, 2) in TABLE else facts.vendor


def table_key(facts: DeviceFacts, operand_bytes: int) -> tuple[str, int]:
    """Key of the device's rows."""
    return table_target(facts), operand_bytes


def arithmetic_efficiency(tile: Tile, target: str, operand_bytes: int) -> float:
    """Share of the matrix rate that the tile's data movement allows, for one step of K on one compute unit.

    Matrix clocks: block_m * block_n / rate. L2 clocks: (block_m + block_n) operands once. LDS clocks: the
    warps form a grid of wm x wn, and each reads its own rows and columns, so A is read wn times and B wm times. The
    three overlap, but not wholly: the root of the sum of squares stands for that. (On the H200 it gives 0.88 for half
    the tile against the whole, measured 0.89.)
    """
    rates, l2, lds = _RATES[target]
    matrix = tile.block_m * tile.block_n / rates[operand_bytes]
    from_l2 = (tile.block_m + tile.block_n) * operand_bytes / l2
    wm = wn = 1
    while wm * wn < tile.num_warps:
        if tile.block_m // wm >= tile.block_n // wn:
            wm *= 2
        else:
            wn *= 2
    from_lds = (tile.block_m * wn + tile.block_n * wm) * operand_bytes / lds
    return matrix / math.hypot(matrix, from_l2, from_lds)


def efficiency(tile: Tile, target: str, operand_bytes: int) -> float:
    """Share of the target's best rate that the tile's inner loop reaches: as measured, else from arithmetic."""
    return tile.measured if tile.measured is not None else arithmetic_efficiency(tile, target, operand_bytes)


def lds_bytes(tile: Tile, target: str, operand_bytes: int, out_bytes: int) -> int:
    """Upper estimate of the local memory of a launch; the audit holds it against the compiler's own figure.

    NVIDIA and gfx950 copy straight into one buffer a stage; older AMD parts hold one stage in registers. On NVIDIA the
    store of C is staged beside the loop's buffers.
    """
    stage = (tile.block_m + tile.block_n) * tile.block_k * operand_bytes
    if target in ("gfx942", "amd"):
        loop = max(1, tile.num_stages - 1) * stage
    elif target == "gfx950":
        loop = tile.num_stages * stage * 17 // 16  # rows are padded against bank conflicts
    else:
        loop = tile.num_stages * stage
    if target in _RATES:
        return loop  # MFMA results are stored from registers, or converted in pieces within the loop's buffers
    return loop + tile.block_m * tile.block_n // tile.subtile * out_bytes + 1024


def group_rows(tile: Tile, facts: DeviceFacts) -> int:
    """Rows of tiles that are walked together: those that make the patch of C which one L2 serves nearest to a square.

    The compute units behind one L2 (all of them, or one XCD's) work on g rows and units / g columns of tiles at a time.
    That patch reads g * block_m rows of A and units / g * block_n columns of B: least when the two are equal, so
    g = sqrt(units * block_n / block_m), rounded to a power of two.
    """
    units = facts.compute_units / facts.xcds
    return 2 ** max(0, round(math.log2(units * tile.block_n / tile.block_m) / 2))


def rows_for(facts: DeviceFacts, operand_bytes: int, *, loads: str, out_bytes: int = 2) -> list[Tile]:
    """Rows of the table that the device can launch. "descriptor" prefers descriptor rows, and has pointer rows too
    where the target has no others."""
    key = table_key(facts, operand_bytes)
    limit = facts.lds_bytes if facts.vendor != "cpu" else 2**62
    fitting = [t for t in TABLE[key] if lds_bytes(t, key[0], operand_bytes, out_bytes) <= limit]
    wanted = [t for t in fitting if t.loads == loads]
    return wanted or [t for t in fitting if t.loads == "pointer"]


def tile_cost(tile: Tile, M: int, N: int, K: int, facts: DeviceFacts, operand_bytes: int) -> float:
    """The model of the module's docstring, in multiply-adds of one compute unit at full rate."""
    tiles = -(-M // tile.block_m) * -(-N // tile.block_n)
    units = -(-tiles // facts.compute_units)
    depth = -(-K // tile.block_k) * tile.block_k + OVERHEAD_K
    target = table_key(facts, operand_bytes)[0]
    return units * tile.block_m * tile.block_n * depth / efficiency(tile, target, operand_bytes)


def programs_for(tile: Tile, M: int, N: int, facts: DeviceFacts) -> int:
    """Size of the grid."""
    tiles = -(-M // tile.block_m) * -(-N // tile.block_n)
    return min(tiles, facts.compute_units * tile.per_unit) if tile.per_unit else tiles


def is_launchable(tile: Tile, M: int, N: int, K: int, regular: bool) -> bool:
    """Whether the row may be launched for this call: see Tile.needs."""
    whole = M % tile.block_m == 0 and N % tile.block_n == 0 and K % tile.block_k == 0
    return tile.needs == "any" or (regular and (tile.needs == "regular" or whole))


@lru_cache(maxsize=4096)
def choose_tile(
    M: int,
    N: int,
    K: int,
    facts: DeviceFacts,
    operand_bytes: int = 2,
    *,
    loads: str = "pointer",
    out_bytes: int = 2,
    regular: bool = True,
) -> Tile:
    """The row with the least cost; the earlier one on a tie. For `regular` see Tile.needs."""
    rows = rows_for(facts, operand_bytes, loads=loads, out_bytes=out_bytes)
    rows = [tile for tile in rows if is_launchable(tile, M, N, K, regular)]
    return min(rows, key=lambda tile: tile_cost(tile, M, N, K, facts, operand_bytes))


def explain_tile(
    M: int,
    N: int,
    K: int,
    facts: DeviceFacts,
    operand_bytes: int = 2,
    *,
    loads: str = "pointer",
    out_bytes: int = 2,
    regular: bool = True,
) -> str:
    """The choice for C[M, N] = A[M, K] B[K, N] as text: one line a row that fits, the chosen one marked."""
    rows = rows_for(facts, operand_bytes, loads=loads, out_bytes=out_bytes)
    chosen = choose_tile(M, N, K, facts, operand_bytes, loads=loads, out_bytes=out_bytes, regular=regular)
    target = table_key(facts, operand_bytes)[0]
    best = tile_cost(chosen, M, N, K, facts, operand_bytes)
    lines = [
        f"M={M} N={N} K={K}, {operand_bytes}-byte operands, {loads} loads, on {facts.arch} "
        f"({facts.compute_units} units, {facts.lds_bytes} bytes of LDS):"
    ]
    for tile in rows:
        tiles = -(-M // tile.block_m) * -(-N // tile.block_n)
        rounds = -(-tiles // facts.compute_units)
        cost = tile_cost(tile, M, N, K, facts, operand_bytes)
        source = "measured" if tile.measured is not None else "arithmetic"
        lines.append(
            f"{'->' if tile is chosen else '  '} {tile.name:24s} {tiles} tiles = {rounds} round(s), "
            f"{tiles / (rounds * facts.compute_units) if rounds else 0:.0%} full; "
            f"efficiency {efficiency(tile, target, operand_bytes):.2f} ({source}); "
            f"cost {cost / best if best else 1:.2f} of the chosen; {tile.why}"
            + ("" if is_launchable(tile, M, N, K, regular) else f" [not for this call: needs {tile.needs}]")
        )
    return "\n".join(lines)
