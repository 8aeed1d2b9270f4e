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

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = ["OVERHEAD_K", "Tile", "choose_tile", "explain_tile", "lds_bytes", "rows_for", "tile_cost"]

OVERHEAD_K = 192


@dataclass(frozen=True)
class Tile:
    """One row of the table: a launchable configuration and why it is there.

    Attributes:
        block_m, block_n, block_k: tile of C, and the step along K.
        num_warps, num_stages: Triton launch options.
        why: reason or measurement (device, date).
        loads: "descriptor" (TMA) or "pointer".
        group_m: rows of tiles walked together, for L2.
        flatten: fuse the tile loop with the k loop.
        subtile: column slices in which a tile of C is stored.
        measured: efficiency seen on a device; None: from arithmetic.
        options: launch options of this target only (waves_per_eu, matrix_instr_nonkdim, kpack exist on AMD alone).
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    why: str
    loads: str = "pointer"
    group_m: int = 8
    flatten: bool = False
    subtile: int = 1
    measured: float | None = None
    options: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        kind = "d" if self.loads == "descriptor" else "p"
        return f"{self.block_m}x{self.block_n}x{self.block_k}_w{self.num_warps}_s{self.num_stages}_{kind}{self.subtile}"


_MFMA16 = (("matrix_instr_nonkdim", 16),)
_MFMA16_K2 = (("kpack", 2), ("matrix_instr_nonkdim", 16))

# (target, bytes of an operand as the matrix unit sees it) -> rows, the preferred first.
TABLE: dict[tuple[str, int], tuple[Tile, ...]] = {
    ("sm_90", 2): (
        Tile(128, 256, 64, 8, 3, "two warp groups of 64x256", "descriptor", flatten=True, measured=1.0),
        Tile(128, 256, 64, 8, 3, "float32 C: halves fit", "descriptor", flatten=True, subtile=2, measured=0.97),
        Tile(128, 128, 64, 8, 4, "half the tile", "descriptor", flatten=True, measured=0.8),
        Tile(128, 64, 64, 4, 4, "small C", "descriptor", measured=0.6),
        Tile(64, 64, 64, 4, 4, "small C", "descriptor", measured=0.45),
        Tile(128, 128, 64, 8, 3, "odd views: cp.async or plain loads", measured=0.7),
        Tile(64, 64, 64, 4, 3, "odd views, small C", measured=0.4),
        Tile(16, 64, 64, 4, 3, "odd views, skinny C", measured=0.15),
    ),
    ("sm_90", 4): (
        Tile(128, 128, 16, 8, 2, "float32 runs on the FMA units: 64 accumulators a thread", measured=1.0),
        Tile(64, 64, 16, 4, 2, "small C", measured=0.8),
        Tile(16, 64, 16, 4, 2, "skinny C", measured=0.4),
    ),
    ("nvidia", 2): (
        Tile(128, 128, 32, 4, 3, "fits 64 KiB of shared memory", measured=1.0),
        Tile(64, 64, 32, 4, 2, "small C; fits 48 KiB", measured=0.6),
    ),
    ("nvidia", 4): (Tile(64, 64, 16, 4, 2, "fits 48 KiB", measured=1.0),),
    ("gfx950", 2): (
        Tile(256, 256, 32, 8, 3, "largest tile without a spill", options=_MFMA16),
        Tile(256, 128, 64, 8, 2, "half the tile", options=_MFMA16),
        Tile(128, 128, 64, 4, 2, "quarter", options=_MFMA16),
        Tile(64, 64, 64, 4, 2, "small C", options=_MFMA16),
        Tile(16, 64, 64, 4, 2, "skinny C", options=_MFMA16),
    ),
    ("gfx950", 4): (
        Tile(128, 128, 32, 8, 2, "float32", options=_MFMA16),
        Tile(64, 64, 32, 4, 2, "small C", options=_MFMA16),
        Tile(16, 64, 32, 4, 2, "skinny C", options=_MFMA16),
    ),
    ("gfx942", 2): (
        Tile(256, 256, 32, 8, 2, "largest tile without a spill", options=_MFMA16_K2),
        Tile(256, 128, 64, 8, 2, "half the tile", options=_MFMA16_K2),
        Tile(128, 128, 64, 4, 2, "quarter", options=_MFMA16_K2),
        Tile(64, 64, 64, 4, 2, "small C", options=_MFMA16_K2),
        Tile(16, 64, 64, 4, 2, "skinny C", options=_MFMA16_K2),
    ),
    ("gfx942", 4): (
        Tile(128, 128, 32, 8, 2, "float32", options=_MFMA16),
        Tile(64, 64, 32, 4, 2, "small C", options=_MFMA16),
        Tile(16, 64, 32, 4, 2, "skinny C", options=_MFMA16),
    ),
    ("amd", 2): (Tile(64, 64, 32, 4, 2, "any wave32 or wave64 part"),),
    ("amd", 4): (Tile(64, 64, 16, 4, 2, "any wave32 or wave64 part"),),
    ("cpu", 2): (
        Tile(128, 128, 64, 4, 1, "interpreter: few, large numpy calls", measured=1.0),
        Tile(32, 64, 32, 4, 1, "interpreter, small C", measured=0.5),
    ),
    ("cpu", 4): (
        Tile(128, 128, 64, 4, 1, "interpreter: few, large numpy calls", measured=1.0),
        Tile(32, 64, 32, 4, 1, "interpreter, small C", measured=0.5),
    ),
}

# Per compute unit and clock: multiply-adds of the matrix units (16-bit, float32), bytes from L2, bytes from LDS.
# Source: CDNA3 and CDNA4 white papers (peak rate / units / clock; 64-byte L1 line a clock; LDS read width doubled in CDNA4).
_RATES = {"gfx942": (1024, 128, 64, 128), "gfx950": (2048, 128, 64, 256), "amd": (512, 128, 64, 128)}


def table_key(facts: DeviceFacts, operand_bytes: int) -> tuple[str, int]:
    """Key of the device's rows: its architecture where that has rows of its own, else its vendor."""
    target = facts.arch if (facts.arch, operand_bytes) in TABLE else facts.vendor
    return target, operand_bytes


def arithmetic_efficiency(tile: Tile, target: str, operand_bytes: int) -> float:
    """Share of the matrix rate that the tile's data movement allows, for one step of K on one compute unit.

    Matrix clocks: block_m * block_n / rate. L2 clocks: (block_m + block_n) operands once. LDS clocks: the
    warps form a grid of wm x wn, and each reads its own rows and columns, so A is read wn times and B wm times. The
    three overlap, so the slowest is the time of a step.
    """
    rate16, rate32, l2, lds = _RATES[target]
    matrix = tile.block_m * tile.block_n / (rate16 if operand_bytes == 2 else rate32)
    from_l2 = (tile.block_m + tile.block_n) * operand_bytes / l2
    wm = wn = 1
    while wm * wn < tile.num_warps:
        if tile.block_m // wm >= tile.block_n // wn:
            wm *= 2
        else:
            wn *= 2
    from_lds = (tile.block_m * wn + tile.block_n * wm) * operand_bytes / lds
    return matrix / max(matrix, from_l2, from_lds)


def efficiency(tile: Tile, target: str, operand_bytes: int) -> float:
    return tile.measured if tile.measured is not None else arithmetic_efficiency(tile, target, operand_bytes)


def lds_bytes(tile: Tile, target: str, operand_bytes: int, out_bytes: int, accumulate: bool) -> int:
    """Upper estimate of the local memory of a launch; the audit holds it against the compiler's own figure.

    NVIDIA and gfx950 copy straight into one buffer a stage; older AMD parts hold one stage in registers. The store of C
    is staged through LDS: beside the loop's buffers when the loops are fused, else after them, in their place.
    """
    stage = (tile.block_m + tile.block_n) * tile.block_k * operand_bytes
    if target in ("gfx942", "amd"):
        loop = max(1, tile.num_stages - 1) * stage
    elif target == "gfx950":
        loop = tile.num_stages * stage * 17 // 16  # rows are padded against bank conflicts
    else:
        loop = tile.num_stages * stage
    block_c = tile.block_m * tile.block_n // tile.subtile
    if target in _RATES:
        return loop  # MFMA results are stored from registers, or converted in pieces within the loop's buffers
    staged = block_c * out_bytes * (2 if accumulate else 1)
    return loop + staged + 1024 if tile.flatten else max(loop, staged) + 1024


def rows_for(
    facts: DeviceFacts, operand_bytes: int, *, loads: str, out_bytes: int = 2, accumulate: bool = False
) -> list[Tile]:
    """Rows of the table that the device can launch. "descriptor" prefers descriptor rows, and has pointer rows too
    where the target has no others."""
    key = table_key(facts, operand_bytes)
    limit = facts.lds_bytes if facts.vendor != "cpu" else 2**62
    fitting = [t for t in TABLE[key] if lds_bytes(t, key[0], operand_bytes, out_bytes, accumulate) <= limit]
    wanted = [t for t in fitting if t.loads == loads]
    return wanted or [t for t in fitting if t.loads == "pointer"]


def tile_cost(tile: Tile, M: int, N: int, K: int, facts: DeviceFacts, operand_bytes: int) -> float:
    """The model of the module's docstring, in multiply-adds of one compute unit at full rate."""
    tiles = -(-M // tile.block_m) * -(-N // tile.block_n)
    units = -(-tiles // facts.compute_units)
    depth = -(-K // tile.block_k) * tile.block_k + OVERHEAD_K
    target = table_key(facts, operand_bytes)[0]
    return units * tile.block_m * tile.block_n * depth / efficiency(tile, target, operand_bytes)


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
    accumulate: bool = False,
) -> Tile:
    """The row with the least cost; the earlier one on a tie."""
    rows = rows_for(facts, operand_bytes, loads=loads, out_bytes=out_bytes, accumulate=accumulate)
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
    accumulate: bool = False,
) -> str:
    """The choice for C[M, N] = A[M, K] B[K, N] as text: one line a row that fits, the chosen one marked."""
    keywords = {"loads": loads, "out_bytes": out_bytes, "accumulate": accumulate}
    rows = rows_for(facts, operand_bytes, **keywords)
    chosen = choose_tile(M, N, K, facts, operand_bytes, **keywords)
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
            f"cost {cost / best if best else 1:.2f} of the best; {tile.why}"
        )
    return "\n".join(lines)
