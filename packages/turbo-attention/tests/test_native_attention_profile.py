# SPDX-License-Identifier: MIT
"""The main loop in the simulator's cost model: what a tile of keys costs, as the difference of many and few keys.

The model counts issue cycles; it has no latencies and no caches. It shows a bank conflict, an instruction that does not
belong into the loop, and which unit limits it. Figures are explained in csrc/kernels/NOTES-attention.md.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("turbo_attention.pytorch._C", reason="turbo-attention is not built (pip install -e)")
turbo_sim = pytest.importorskip("turbo_sim", reason="the cost model is the simulator's: needs turbo-sim")

from turbo_attention.calls import ForwardCall  # noqa: E402
from turbo_attention.pytorch.kernels import native  # noqa: E402
from turbo_core.device import simulated_arch_name  # noqa: E402

TILES = 8, 16


class Tile(NamedTuple):
    """Cycles of 256 queries and 64 keys: of matrix and vector units a SIMD, of LDS and memory path a compute unit."""

    mfma: float
    valu: float
    lds: float
    lds_conflicts: float
    vmem: float


def tile_of(arch: str, D: int) -> Tile:
    if torch.cuda.is_available() or simulated_arch_name() is not None:
        pytest.skip("counts launches of its own simulated device")
    torch.manual_seed(0)
    counts = []
    with turbo_sim.use(arch, costs=True, triton=False) as session:
        for tiles in TILES:
            session.profiles()
            q, k = (torch.randn(1, length, 1, D).bfloat16() for length in (256, 64 * tiles))
            empty = (None,) * 6
            native.run(ForwardCall(q, k, k, D**-0.5, -1, -1, 0.0, 0.0, *empty, 256, 64 * tiles))
            (profile,) = session.profiles()
            assert (profile["work_groups"], profile["vgpr_spills"], profile["scratch_bytes"]) == (1, 0, 0)
            counts.append(profile)
    short, long = counts
    more = TILES[1] - TILES[0]
    cycles = {unit: (long["unit_cycles"][unit] - short["unit_cycles"][unit]) / more for unit in long["unit_cycles"]}
    conflicts = (long["lds_conflict_cycles"] - short["lds_conflict_cycles"]) / more
    return Tile(cycles["mfma"] / 4, cycles["valu"] / 4, cycles["lds"], conflicts, cycles["vmem"])


@pytest.mark.parametrize("arch, mfma", [("gfx942", 4096), ("gfx950", 2048)])
def test_128(arch, mfma):
    """The matrix unit has most to do; the vector ALU works beside it, for other waves."""
    tile = tile_of(arch, 128)
    assert tile.mfma == mfma
    assert tile.lds_conflicts == 0
    assert tile.valu < 0.85 * tile.mfma
    assert tile.lds < 0.55 * tile.mfma
    assert tile.vmem <= 0.25 * tile.mfma


@pytest.mark.parametrize("arch, mfma", [("gfx942", 2048), ("gfx950", 1024)])
def test_64(arch, mfma):
    """As many exponentials for half of the products: they weigh as much, and more on gfx950."""
    tile = tile_of(arch, 64)
    assert tile.mfma == mfma
    assert tile.lds_conflicts == 0
    assert tile.valu < 2048
    assert tile.lds < 0.55 * tile.mfma
    assert tile.vmem <= 0.25 * tile.mfma
