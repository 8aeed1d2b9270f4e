# SPDX-License-Identifier: MIT
"""The HIP kernels of groups in the simulator's cost model, beside the dense ones with the same tiles.

The model counts issue cycles; it has no latencies and no caches. A stage of K is compared, and whole products, where
the grouped kernel also finds its groups. No kernel takes a matrix instruction of half the rate.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("turbo_gemm.pytorch._C", reason="turbo-gemm is not built (pip install -e)")
pytest.importorskip("turbo_grouped_gemm.pytorch._C", reason="turbo-grouped-gemm is not built (pip install -e)")
turbo_sim = pytest.importorskip("turbo_sim", reason="the cost model is the simulator's: needs turbo-sim")

import turbo_grouped_gemm  # noqa: E402
from turbo_core import simulated_arch  # noqa: E402
from turbo_core.device import simulated_arch_name  # noqa: E402
from turbo_gemm.pytorch.kernels import native as dense_native  # noqa: E402
from turbo_grouped_gemm.calls import GroupedGemmCall, GroupedGemmFp8Call, GroupedOperand, GroupedWgradFp8Call, Groups  # noqa: E402
from turbo_grouped_gemm.pytorch.kernels import grouped_native  # noqa: E402
from turbo_testing.gemm_calls import fp8_call, mx_call  # noqa: E402
from turbo_testing.gemm_profile import STAGE_BYTES, stage_of  # noqa: E402
from turbo_testing.group_lens import group_lens  # noqa: E402
from turbo_testing.grouped_operands import SCALINGS, random_operand  # noqa: E402

CPU = torch.device("cpu")
KERNELS = [(arch, scaling) for arch in ("gfx942", "gfx950") for scaling in ("rowwise", "blockwise")]
KERNELS += [("gfx950", "mxfp8"), ("gfx950", "mxfp4")]


def tile_of(scaling: str, tile: str) -> tuple[int, int]:
    return (128, 128) if tile == "small" else (256, 128 if scaling == "blockwise" else 256)


def operands(rows: int, n: int, k: int, scaling: str, tiles: bool, G: int = 0):
    """A [rows, k] and B [n, k] (or one for each of G groups)."""
    a, _ = random_operand((rows, k), scaling, "e4m3", CPU)
    b, _ = random_operand((G, n, k) if G else (n, k), scaling, "e4m3", CPU, tiles=tiles)
    return a, b


def dense(scaling: str, a: GroupedOperand, b: GroupedOperand, tiles: bool, tile: str) -> None:
    granularity, block_size = SCALINGS[scaling]
    if scaling.startswith("mx"):
        form = "e2m1" if scaling == "mxfp4" else "e4m3"
        call = mx_call(*a, *b, (form, form), torch.bfloat16)
    else:
        options = dict(block_size=block_size, b_tiles=tiles, out_dtype=torch.bfloat16)
        call = fp8_call(*a, *b, granularity, **options)
    dense_native.run(call, tile=tile)


def grouped_rows(scaling: str, a: GroupedOperand, b: GroupedOperand, lens: list[int], tile: str, num_cu=None) -> None:
    groups = Groups(torch.tensor(lens), None)
    fields = dict(out_dtype=torch.bfloat16, a_idx=None, out_idx=None, out_rows=sum(lens), num_cu=num_cu)
    granularity, block_size = SCALINGS[scaling]
    call = GroupedGemmFp8Call(a, b, None, groups, granularity=granularity, block_size=block_size, **fields)
    grouped_native.run(call, tile=tile)


def grouped_columns(scaling: str, x: GroupedOperand, y: GroupedOperand, k: int, tile: str) -> None:
    granularity, block_size = SCALINGS[scaling]
    call = GroupedWgradFp8Call(x, y, torch.tensor([0, k]), granularity, block_size, torch.bfloat16)
    grouped_native.run(call, tile=tile)


@pytest.mark.parametrize("tile", ["large", "small"])
@pytest.mark.parametrize("arch, scaling", KERNELS)
def test_a_stage_costs_what_a_dense_one_does(arch, scaling, tile):
    m, n = tile_of(scaling, tile)
    k_of_stage = STAGE_BYTES[arch] * (2 if scaling == "mxfp4" else 1)
    at_a_time = 2 if tile == "small" and scaling != "blockwise" else 1
    tiles = scaling == "blockwise"

    def run_dense(k):
        dense(scaling, *operands(m, n, k, scaling, tiles), tiles, tile)

    def run_rows(k):
        grouped_rows(scaling, *operands(m, n, k, scaling, tiles, 1), [m], tile, num_cu=1)

    expected = stage_of(arch, run_dense, k_of_stage)
    found = stage_of(arch, run_rows, k_of_stage, at_a_time)
    assert found.mfma == expected.mfma
    assert found.matrix == expected.matrix and found.lds_conflicts == expected.lds_conflicts
    assert max(found) <= 1.05 * max(expected)
    assert found.mfma_share >= 0.95 * expected.mfma_share


@pytest.mark.parametrize("tile, mfma", [("large", 2048), ("small", 512)])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_a_stage_of_16_bits(arch, tile, mfma):
    """The matrix unit is the limit: nothing else takes longer, and no vector instruction holds it up."""
    m, n = tile_of("", tile)

    def run(k):
        a, b = torch.randn(m, k).bfloat16(), torch.randn(1, n, k).bfloat16()
        where = Groups(torch.tensor([m]), None)
        call = GroupedGemmCall(a, b, None, where, True, torch.bfloat16, None, None, m, num_cu=1)
        grouped_native.run(call, tile=tile)

    stage = stage_of(arch, run, STAGE_BYTES[arch] // 2, 2 if tile == "small" else 1)
    assert stage.mfma == stage.matrix == mfma
    assert stage.mfma_share == 1 and stage.lds_conflicts == 0
    assert stage.valu < 0.03 * mfma
    assert max(stage.lds, stage.vmem) <= (0.5 if tile == "large" else 1) * mfma


@pytest.mark.parametrize("arch, scaling", KERNELS)
def test_a_stage_of_columns_costs_what_a_dense_one_does(arch, scaling):
    m, n = tile_of(scaling, "large")
    k_of_stage = STAGE_BYTES[arch] * (2 if scaling == "mxfp4" else 1)

    def run_dense(k):
        dense(scaling, *operands(m, n, k, scaling, False), False, "large")

    def run_columns(k):
        x, y = operands(m, n, k, scaling, False)
        if scaling == "rowwise":
            x, y = (o._replace(scale_inv=o.scale_inv.t()) for o in (x, y))
        grouped_columns(scaling, x, y, k, "large")

    expected = stage_of(arch, run_dense, k_of_stage)
    found = stage_of(arch, run_columns, k_of_stage)
    assert found.mfma == expected.mfma
    assert max(found) <= 1.05 * max(expected)
    assert found.mfma_share >= 0.95 * expected.mfma_share


def cycles(arch: str, run) -> dict[str, float]:
    """Of each unit of a SIMD, or of a compute unit, all work-groups together."""
    if torch.cuda.is_available() or simulated_arch_name() is not None:
        pytest.skip("counts launches of its own simulated device")
    with turbo_sim.use(arch, costs=True, triton=False) as session:
        session.profiles()
        run()
        (profile,) = session.profiles()
    return {**profile["simd_cycles"], **{unit: profile["unit_cycles"][unit] for unit in ("lds", "vmem")}}


@pytest.mark.parametrize("kind", ["balanced", "zipf"])
@pytest.mark.parametrize("arch, scaling", [("gfx942", "blockwise"), ("gfx950", "rowwise"), ("gfx950", "mxfp4")])
def test_whole_products_cost_what_dense_ones_do(arch, scaling, kind):
    """Groups whose rows are multiples of a tile: as many tiles as one dense product of the same rows.

    What a tile costs beside its K, some 700 cycles of issue a SIMD to find its group, is little from K = 2048 on.
    """
    m, n = tile_of(scaling, "large")
    k = 4096 if scaling == "mxfp4" else 2048
    lens = [m * size for size in group_lens(kind, 4, 8)]
    tiles = scaling == "blockwise"
    with simulated_arch(arch):
        a, b = operands(sum(lens), n, k, scaling, tiles, 4)
    one = GroupedOperand(b.data[0], b.scale_inv[0])
    expected = cycles(arch, lambda: dense(scaling, a, one, tiles, "large"))
    found = cycles(arch, lambda: grouped_rows(scaling, a, b, lens, "large", num_cu=4))
    assert max(found.values()) <= 1.05 * max(expected.values())


# Of the matrix instructions, those of the full rate.
FULL_RATE = {
    "gfx942": {"v_mfma_f32_16x16x32", "v_mfma_f32_16x16x16_bf16", "v_mfma_f32_16x16x16_f16"},
    "gfx950": {
        "v_mfma_f32_16x16x32_bf16",
        "v_mfma_f32_16x16x32_f16",
        "v_mfma_f32_16x16x128_f8f6f4",
        "v_mfma_f32_32x32x64_f8f6f4",
        "v_mfma_scale_f32_16x16x128_f8f6f4",
    },
}


@pytest.mark.parametrize("arch", FULL_RATE)
def test_matrix_instructions_are_of_the_full_rate(arch):
    simulator = pytest.importorskip("turbo_sim.testing")
    if reason := simulator.why_no_llvm("llvm-objdump"):
        pytest.skip(reason)
    objdump = simulator.llvm_tool("llvm-objdump")
    objects = [file for folder in turbo_grouped_gemm.__path__ for file in Path(folder, "lib").glob(f"*.{arch}.hsaco")]
    assert len(objects) == (4 if arch == "gfx942" else 5)
    for file in objects:
        command = [objdump, "-d", f"--mcpu={arch}", str(file)]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = {re.sub(r"_(fp8|bf8)_(fp8|bf8)$", "", name) for name in re.findall(r"^\t(v_mfma\w+)", listing, re.M)}
        assert found and found <= FULL_RATE[arch], file.name
