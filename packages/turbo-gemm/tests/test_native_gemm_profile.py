# SPDX-License-Identifier: MIT
"""The main loops in the simulator's cost model: what a stage of K costs, as the difference of a long and a short K.

The model counts issue cycles; it has no latencies and no caches. It shows a bank conflict, an instruction that does not
belong into the loop, and which unit limits it. Figures are explained in csrc/kernels/NOTES-gemm.md.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("turbo_gemm.pytorch._C", reason="turbo-gemm is not built (pip install -e)")
pytest.importorskip("turbo_sim", reason="the cost model is the simulator's: needs turbo-sim")

from turbo_core.low_precision import ScalingGranularity  # noqa: E402
from turbo_gemm.pytorch.kernels import native  # noqa: E402
from turbo_testing.gemm_calls import fp8_call, mx_call  # noqa: E402
from turbo_testing.gemm_profile import STAGE_BYTES, Stage, stage_of  # noqa: E402
from turbo_testing.quantised_gemm import FNUZ, FP8, fp8_operand, mx_operand  # noqa: E402


def mx_stage(form: str, tile: str) -> Stage:
    edge = 256 if tile == "large" else 128

    def run(k):
        a, b = mx_operand(edge, k, form), mx_operand(edge, k, form)
        call = mx_call(a.payload, a.scale, b.payload, b.scale, (form, form), torch.bfloat16)
        native.run(call, tile=tile)

    return stage_of("gfx950", run, 256 if form == "e2m1" else 128)


def fp8_stage(arch: str, kind: str, tile: str) -> Stage:
    """``kind``: scales of rows; of blocks of rows; of blocks of rows of A and of 128 x 128 of B."""
    dtype = (FNUZ if arch == "gfx942" else FP8)["e4m3"]
    m, n = ((256, 256) if kind == "row" else (256, 128)) if tile == "large" else (128, 128)
    granularity = ScalingGranularity.ROWWISE if kind == "row" else ScalingGranularity.BLOCKWISE
    block_size = 0 if kind == "row" else 128
    options = dict(block_size=block_size, b_tiles=kind == "block_tile", out_dtype=torch.bfloat16)

    def run(k):
        of = "row" if kind == "row" else "block"
        a, b = fp8_operand(m, k, dtype, of), fp8_operand(n, k, dtype, of, kind == "block_tile")
        native.run(fp8_call(*a[:2], *b[:2], granularity, **options), tile=tile)

    return stage_of(arch, run, STAGE_BYTES[arch])


def check_loop(stage: Stage, mfma: int) -> None:
    assert stage.mfma == mfma
    assert stage.matrix == mfma, "a vector instruction of the loop cannot run beside the matrix unit"
    assert stage.lds_conflicts == 0


@pytest.mark.parametrize("form", ["e4m3", "e5m2", "e2m1"])
def test_mx_256x256(form):
    """256 x 256 x 128 (256 of e2m1) take 2048 cycles of each matrix unit, and nothing else takes as long."""
    stage = mx_stage(form, "large")
    check_loop(stage, 2048)
    assert stage.mfma_share == 1
    assert stage.valu < 0.02 * stage.mfma
    assert max(stage.lds, stage.vmem) < 0.65 * stage.mfma


@pytest.mark.parametrize("form", ["e4m3", "e2m1"])
def test_mx_128x128(form):
    """A quarter of the products for half of the bytes: the memory path has about as much work."""
    stage = mx_stage(form, "small")
    check_loop(stage, 512)
    assert stage.mfma_share == 1
    assert stage.valu < 0.05 * stage.mfma
    assert stage.vmem < 1.3 * stage.mfma


@pytest.mark.parametrize("tile, mfma", [("large", 2048), ("small", 512)])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_fp8_rows(arch, tile, mfma):
    stage = fp8_stage(arch, "row", tile)
    check_loop(stage, mfma)
    assert stage.mfma_share == 1
    assert stage.valu < 0.01 * stage.mfma
    assert max(stage.lds, stage.vmem) <= (0.5 if tile == "large" else 1) * stage.mfma


# Vector instructions of a wave and block of K, of 256x128: one for each of 64 sums, and as many for the scales where
# both operands have them by rows. Each is 4 cycles, of 2 waves a SIMD: 512 or 1024 of a block, which is 2048 cycles of
# matrix instructions on gfx942, 1024 on gfx950, of which they hold 512 and 192. So the share is below 0.85 for rows on
# gfx950.
@pytest.mark.parametrize("tile, mfma", [("large", 1024), ("small", 512)])
@pytest.mark.parametrize(
    "arch, kind, share, valu",
    [
        ("gfx942", "block_tile", 1, 0.31),
        ("gfx942", "block_row", 1, 0.54),
        ("gfx950", "block_tile", 1, 0.61),
        ("gfx950", "block_row", 0.78, 1.1),
    ],
)
def test_fp8_blocks(arch, kind, share, valu, tile, mfma):
    """The vector ALU scales and adds each block, beside the matrix unit."""
    stage = fp8_stage(arch, kind, tile)
    check_loop(stage, mfma)
    assert stage.mfma_share >= share
    assert stage.valu < valu * stage.mfma
    assert stage.lds < (1.04 if arch == "gfx942" else 1.27) * stage.mfma
    assert stage.vmem < (0.76 if arch == "gfx942" else 1.63) * stage.mfma
