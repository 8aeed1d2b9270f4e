# SPDX-License-Identifier: MIT
"""The main loops in the simulator's cost model: what a stage of K costs, as the difference of a long and a short K.

The model counts issue cycles; it has no latencies and no caches. It shows a bank conflict, an instruction that does not
belong into the loop, and which unit limits it. Figures are explained in csrc/kernels/NOTES-gemm.md.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("turbo_gemm.pytorch._C", reason="turbo-gemm is not built (pip install -e)")
turbo_sim = pytest.importorskip("turbo_sim", reason="the cost model is the simulator's: needs turbo-sim")

from turbo_core.device import simulated_arch_name  # noqa: E402
from turbo_core.low_precision import ScalingGranularity  # noqa: E402
from turbo_gemm.pytorch.kernels import native  # noqa: E402
from turbo_testing.quantised_gemm import FNUZ, FP8, fp8_operand, mx_operand  # noqa: E402

STAGES = 8, 24
STAGE_BYTES = {"gfx942": 64, "gfx950": 128}


class Stage(NamedTuple):
    """Cycles of one stage of one work-group: of matrix and vector units a SIMD, of LDS and memory path a unit."""

    mfma: float
    valu: float
    lds: float
    lds_conflicts: float
    vmem: float

    @property
    def mfma_share(self) -> float:
        """Of what a SIMD issues to its matrix and vector units, were they never busy at the same time."""
        return self.mfma / (self.mfma + self.valu)


def stage_of(arch: str, run, k_of_stage: int) -> Stage:
    """``run(k)`` multiplies one tile."""
    if torch.cuda.is_available() or simulated_arch_name() is not None:
        pytest.skip("counts launches of its own simulated device")
    counts = []
    with turbo_sim.use(arch, costs=True, triton=False) as session:
        for stages in STAGES:
            session.profiles()
            run(stages * k_of_stage)
            (profile,) = session.profiles()
            assert profile["work_groups"] == 1
            counts.append(profile)
    short, long = counts

    more = STAGES[1] - STAGES[0]
    cycles = {unit: (long["unit_cycles"][unit] - short["unit_cycles"][unit]) / more for unit in long["unit_cycles"]}
    conflicts = (long["lds_conflict_cycles"] - short["lds_conflict_cycles"]) / more
    return Stage(cycles["mfma"] / 4, cycles["valu"] / 4, cycles["lds"], conflicts, cycles["vmem"])


def mx_stage(form: str, tile: str) -> Stage:
    edge = 256 if tile == "large" else 128

    def run(k):
        a, b = mx_operand(edge, k, form), mx_operand(edge, k, form)
        options = dict(format_a=form, format_b=form, out_dtype=torch.bfloat16, tile=tile)
        native.matmul_mx(a.payload, a.scale, b.payload, b.scale, **options)

    return stage_of("gfx950", run, 256 if form == "e2m1" else 128)


def fp8_stage(arch: str, kind: str, tile: str) -> Stage:
    dtype = (FNUZ if arch == "gfx942" else FP8)["e4m3"]
    m, n = ((256, 256) if kind == "row" else (256, 128)) if tile == "large" else (128, 128)

    def run(k):
        a, b = fp8_operand(m, k, dtype, kind), fp8_operand(n, k, dtype, kind)
        granularity = ScalingGranularity.ROWWISE if kind == "row" else ScalingGranularity.BLOCKWISE
        options = dict(granularity=granularity, block_size=128 if kind == "block" else 0, tile=tile)
        native.matmul_fp8(*a[:2], *b[:2], trans_a=False, trans_b=True, out_dtype=torch.bfloat16, **options)

    return stage_of(arch, run, STAGE_BYTES[arch])


@pytest.mark.parametrize("form", ["e4m3", "e5m2", "e2m1"])
def test_mx_256x256(form):
    """256 x 256 x 128 (256 of e2m1) take 2048 cycles of each matrix unit, and nothing else takes as long."""
    stage = mx_stage(form, "large")
    assert stage.mfma == 2048
    assert stage.lds_conflicts == 0
    assert stage.mfma_share > 0.94
    assert max(stage.lds, stage.vmem) < 0.65 * stage.mfma


@pytest.mark.parametrize("form", ["e4m3", "e2m1"])
def test_mx_128x128(form):
    """A quarter of the products for half of the bytes: the memory path has about as much work."""
    stage = mx_stage(form, "small")
    assert stage.mfma == 512
    assert stage.lds_conflicts == 0
    assert stage.mfma_share > 0.9
    assert stage.vmem < 1.3 * stage.mfma


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_fp8_rows_256x256(arch):
    stage = fp8_stage(arch, "row", "large")
    assert stage.mfma == 2048
    assert stage.lds_conflicts == 0
    assert stage.mfma_share > 0.92
    assert max(stage.lds, stage.vmem) <= 0.5 * stage.mfma


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_fp8_blocks_256x128(arch):
    """The vector ALU scales and adds each block: beside the matrix units, though the share counts it as after."""
    stage = fp8_stage(arch, "block", "large")
    assert stage.mfma == 1024
    assert stage.lds_conflicts == 0
    assert stage.valu < 0.65 * stage.mfma
    assert max(stage.lds, stage.vmem) < 1.25 * stage.mfma


@pytest.mark.parametrize("kind", ["row", "block"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_fp8_128x128(arch, kind):
    stage = fp8_stage(arch, kind, "small")
    assert stage.mfma == 512
    assert stage.lds_conflicts == 0
