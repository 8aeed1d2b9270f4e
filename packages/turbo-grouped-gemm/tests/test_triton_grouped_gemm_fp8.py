# SPDX-License-Identifier: MIT
"""The Triton kernels of grouped FP8 and MX products by themselves: on a GPU, in the simulator, else interpreted.

Payloads and scales of rows that belong to no group are NaN, and so is C before.
"""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from turbo_core import arch_facts, device_facts, simulated_arch  # noqa: E402
from turbo_core.launch import start  # noqa: E402
from turbo_gemm.developer import Tile, fp8_lds_bytes  # noqa: E402
from turbo_grouped_gemm.calls import GroupedGemmFp8Call, GroupedOperand, Groups  # noqa: E402
from turbo_grouped_gemm.triton import grouped_gemm_fp8  # noqa: E402
from turbo_grouped_gemm.triton.grouped_fp8_tiles import choose_tile  # noqa: E402
from turbo_testing.grouped_operands import NAN_BYTE, SCALINGS, random_operand  # noqa: E402
from turbo_testing.metrics import assert_close  # noqa: E402
from turbo_testing.support_table import PLACES  # noqa: E402

GPU = torch.cuda.is_available()
OUTS = (torch.bfloat16, torch.float16, torch.float32)
# name -> (S, lens, offs or None)
LAYOUTS = {
    "tight": (100, [40, 0, 33, 27], None),
    "tail": (96, [1, 64], None),
    "all-empty": (40, [0, 0, 0], None),
    "one-takes-all": (131, [0, 131, 0], None),
    "gaps": (170, [30, 0, 5, 64], [0, 32, 64, 70, 150]),
    "head": (90, [17, 20], [33, 50, 90]),
    "many": (60, [3, 0, 1, 9] * 4 + [0], None),
}

scalings = pytest.mark.parametrize("scaling", SCALINGS)


class Problem:
    """A call's operands, and C in float64."""

    def __init__(
        self, N, K, layout, scaling, device, *, kinds=("e4m3", "e4m3"), gather=False, scatter=False, bias=False, index=0
    ):
        S, lens, offs = layout
        self.scaling, self.S, G = scaling, S, len(lens)
        dtype = (torch.int64, torch.int32)[index]
        starts = [sum(lens[:g]) for g in range(G)] if offs is None else offs
        owner = torch.full((S,), -1)
        for g, size in enumerate(lens):
            owner[starts[g] : starts[g] + size] = g
        owned = owner >= 0
        A_ROWS = S // 2 + 3 if gather else S
        self.a, wide_a = random_operand((A_ROWS, K), scaling, kinds[0], device)
        self.b, wide_b = random_operand((G, N, K), scaling, kinds[1], device, tiles=True)
        source = torch.arange(S)
        self.a_idx = self.out_idx = None
        if gather:
            source = torch.randint(0, A_ROWS, (S,))
            self.a_idx = torch.where(owned, source, -(2**30)).to(device, dtype)
        named = torch.zeros(A_ROWS, dtype=torch.bool)
        named[source[owned]] = True
        self._poison(~named, device)
        place, self.out_rows = torch.arange(S), S
        if scatter:
            self.out_rows = S + 7
            place = torch.randperm(self.out_rows)[:S]
            self.out_idx = torch.where(owned, place, 2**30).to(device, dtype)
        self.bias = torch.randn(G, N * 2, device=device)[:, ::2] if bias else None
        self.groups = Groups(
            torch.tensor(lens, device=device, dtype=dtype),
            None if offs is None else torch.tensor(offs, device=device, dtype=dtype),
        )
        self.product = torch.zeros(self.out_rows, N, dtype=torch.float64)
        for g in range(G):
            rows = wide_a[source[owner == g]] @ wide_b[g].t()
            if bias:
                rows = rows + self.bias[g].cpu().double()
            self.product[place[owner == g]] = rows
        self.unit = math.sqrt(max(K, 1))
        if scaling.startswith("mx") and N and K:
            self.unit *= float((wide_a.square().mean() * wide_b.square().mean()).sqrt())

    def _poison(self, rows, device):
        mx = self.scaling.startswith("mx")
        nan = 0x80 if device_facts(device).fp8_fnuz and not mx else NAN_BYTE
        rows = rows.to(device)
        self.a.data.view(torch.uint8)[rows] = nan
        if self.scaling != "tensorwise":
            self.a.scale_inv[rows] = nan if mx else float("nan")

    def call(self, out_dtype=torch.float32, **fields):
        granularity, block_size = SCALINGS[self.scaling]
        given = dict(
            a=self.a, b=self.b, bias=self.bias, groups=self.groups, a_idx=self.a_idx, out_idx=self.out_idx,
            out_rows=self.out_rows,
        )  # fmt: skip
        return GroupedGemmFp8Call(
            granularity=granularity, block_size=block_size, out_dtype=out_dtype, **(given | fields)
        )

    def run(self, out_dtype=torch.float32, tile=None, **fields):
        """C, in memory that was NaN."""
        call, device = self.call(out_dtype, **fields), self.a.data.device
        assert grouped_gemm_fp8.why_not(call) is None
        c = torch.full((call.out_rows, call.sizes()[2]), float("nan"), dtype=out_dtype, device=device)
        return start(*grouped_gemm_fp8.plan(call, device_facts(device), tile, c))


def check(actual, problem, dtype=None):
    """Against float64, in units of the product's own size. Sums in 14 bits (sm_90) lose what 16-bit results do."""
    dtype = dtype or (torch.bfloat16 if GPU else actual.dtype)
    assert_close(actual.cpu().double() / problem.unit, problem.product / problem.unit, dtype=dtype)
    none = problem.product.abs().sum(1) == 0
    assert not actual.cpu()[none].any(), "rows of no group are exact zeros"


@pytest.mark.covering
@scalings
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("N, K", [(33, 128), (128, 256), (70, 384)])
@pytest.mark.parametrize("kinds", [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2")], ids="x".join)
@pytest.mark.parametrize("gather", [False, True], ids=["rows", "gathered"])
@pytest.mark.parametrize("scatter", [False, True], ids=["", "scattered"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("out_dtype", OUTS, ids=str)
def test_products(N, K, layout, scaling, kinds, gather, scatter, bias, out_dtype, device):
    p = Problem(N, K, layout, scaling, device, kinds=kinds, gather=gather, scatter=scatter, bias=bias, index=K == 256)
    check(p.run(out_dtype), p, torch.bfloat16 if out_dtype != torch.float32 else None)


@pytest.mark.simulated
@scalings
@pytest.mark.parametrize("named", [False, True], ids=["", "named"])
def test_groups_with_gaps(scaling, named, device):
    """Rows in place and work in order, or both rows named and work stolen."""
    p = Problem(70, 256, LAYOUTS["gaps"], scaling, device, gather=named, scatter=named, bias=True)
    check(p.run(torch.bfloat16, schedule="work_steal" if named else "static"), p)


@pytest.mark.covering
@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise", "blockwise"])
@pytest.mark.parametrize("N, K", [(1, 1), (100, 33), (16, 130), (1, 192)])
@pytest.mark.parametrize("gather", [False, True], ids=["rows", "gathered"])
def test_sizes_that_are_multiples_of_nothing(N, K, scaling, gather, device):
    """Operands are packed then, and the last block of K is masked."""
    p = Problem(N, K, LAYOUTS["tight"], scaling, device, gather=gather, bias=True)
    check(p.run(), p)


@scalings
def test_no_contraction(scaling, device):
    """K = 0: bias in rows of a group, zeros elsewhere."""
    p = Problem(16, 0, LAYOUTS["tail"], scaling, device, bias=True)
    assert torch.equal(p.run().cpu(), p.product.float())


@scalings
@pytest.mark.parametrize("G, S, N", [(0, 8, 8), (2, 0, 8), (2, 8, 0)])
def test_nothing_to_multiply(G, S, N, scaling, device):
    p = Problem(N, 128, (S, [0] * G, None), scaling, device)
    c = p.run()
    assert c.shape == (S, N) and not c.any()


def test_no_rows_to_gather_from(device):
    """A has no rows, and the groups name some: nothing is read."""
    p = Problem(8, 128, (4, [4], None), "rowwise", device, gather=True, bias=True)
    empty = GroupedOperand(p.a.data[:0], p.a.scale_inv[:0])
    assert torch.equal(p.run(a=empty), p.bias.expand(4, 8))


@pytest.mark.deterministic
@scalings
def test_schedules_give_the_same_bits(scaling, device):
    """Work stealing, another number of programs, and again."""
    p = Problem(70, 128, LAYOUTS["gaps"], scaling, device)
    first = p.run()
    for options in ({}, {"schedule": "work_steal"}, {"num_cu": 3}, {"schedule": "work_steal", "num_cu": 1}):
        assert torch.equal(first, p.run(**options))


@scalings
def test_strides(scaling, device):
    """Payloads and scales that are views with strides in all dimensions, b stored as [K,G,N]; memory between is NaN."""
    p = Problem(40, 256, LAYOUTS["tail"], scaling, device)

    def spread(x):
        if x.dim() == 0:
            return x
        order = (1, 0) if x.dim() == 2 else (2, 0, 1)
        kind = torch.float32 if x.dtype == torch.float32 else torch.uint8
        shape = [x.shape[i] * (2 + i) for i in order]
        whole = torch.full(shape, float("nan") if kind == torch.float32 else NAN_BYTE, dtype=kind, device=device)
        part = whole.view(x.dtype)[tuple(slice(None, None, 2 + i) for i in order)]
        return part.copy_(x.permute(order)).permute([order.index(i) for i in range(x.dim())])

    a, b = (GroupedOperand(*map(spread, operand)) for operand in (p.a, p.b))
    assert torch.equal(p.run(a=a, b=b), p.run())
    if scaling == "blockwise":  # as quantisation writes them: those of a block side by side
        scale = p.a.scale_inv.t().contiguous().t()
        assert torch.equal(p.run(a=GroupedOperand(p.a.data, scale)), p.run())


@pytest.mark.parametrize(
    "lens, offs",
    [([-5, 2**40], None), ([90, 90], None), ([10, 10], [-(2**40), 90, 2**40]), ([50, 50], [60, 20, 10])],
    ids=["wild", "too-many", "wild-offs", "falling-offs"],
)
@pytest.mark.parametrize("scaling", ["rowwise", "blockwise"])
def test_wild_groups_reach_nothing_outside(lens, offs, scaling, device):
    """Neither a fault nor a NaN: each row is one group's product, or zeros."""
    p = Problem(16, 128, (96, [48, 48], None), scaling, device)
    groups = Groups(torch.tensor(lens, device=device), None if offs is None else torch.tensor(offs, device=device))
    c = p.run(groups=groups).cpu()
    whole = Groups(torch.tensor([96, 0], device=device), None), Groups(torch.tensor([0, 96], device=device), None)
    zeros, first, second = torch.zeros_like(c), *(p.run(groups=g).cpu() for g in whole)
    assert c.isfinite().all()
    assert all(any(torch.equal(row, x[i]) for x in (zeros, first, second)) for i, row in enumerate(c))


@scalings
@pytest.mark.parametrize("gather", [False, True], ids=["rows", "gathered"])
def test_another_number_of_rows_compiles_nothing(scaling, gather, device):
    """Batches of other sizes, with the same row of the table."""
    keys = set()
    facts = device_facts(device)
    for S in (1, 16, 17, 1001):
        p = Problem(32, 256, (S, [S, 0], None), scaling, device, gather=gather, scatter=gather)
        call = p.call()
        if scaling == "blockwise" and not gather:
            call = call._replace(a=GroupedOperand(p.a.data, p.a.scale_inv.t().contiguous().t()))
        tile = Tile(32, 32, 128, num_warps=4, why="test")
        keys.add(repr([launch.signature() for launch in grouped_gemm_fp8.plan(call, facts, tile)[1]]))
    assert len(keys) == 1


@pytest.mark.skipif(GPU, reason="the interpreter stands in for an architecture; a GPU is its own")
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@scalings
def test_rows_of_an_architecture(arch, scaling, device):
    """The rows and the XCD order of both architectures, and the FP8 types of each, interpreted."""
    with simulated_arch(arch):
        for N, K, layout in ((64, 256, (150, [129, 21], None)), (17, 128, LAYOUTS["head"])):
            p = Problem(N, K, layout, scaling, device)
            check(p.run(), p)


@pytest.mark.skipif(GPU, reason="descriptors in the interpreter; on a GPU every case takes them where they pay")
@pytest.mark.parametrize("scaling, halves", [("tensorwise", 1), ("rowwise", 1), ("blockwise", 1), ("blockwise", 2)])
def test_descriptors(scaling, halves, device):
    """Of all groups' rows: what a tile reads of its neighbours' is not stored."""
    tile = Tile(32, 64, 128, num_warps=4, why="test", loads="descriptor", halves=halves, per_unit=2)
    for N, K in ((72, 256), (64, 144)):
        p = Problem(N, K, LAYOUTS["gaps"], scaling, device, bias=True)
        check(p.run(tile=tile), p)


@pytest.mark.parametrize("facts", [arch_facts("gfx942"), arch_facts("gfx950"), PLACES["NVIDIA"]], ids=lambda f: f.arch)
@pytest.mark.parametrize("kind", ["fp8", "fp8 1d2d", "fp8 1d1d", "mxfp8", "mxfp4"])
@pytest.mark.parametrize("out_bytes, regular, loads", [(2, True, "descriptor"), (4, False, "pointer")])
def test_every_launch_has_a_row_that_fits(kind, out_bytes, regular, loads, facts):
    """Whatever the sizes, C's layout and whether rows are named; in wgrad none are."""
    for wgrad in (False, True):
        for M, N, K in ((1, 1, 1), (128, 100, 40000), (1024, 7168, 2048)):
            how = "descriptor" if wgrad else loads
            tile = choose_tile(wgrad, 8, M, N, K, kind, facts, out_bytes, regular, how)
            assert fp8_lds_bytes(tile, facts.arch, kind, out_bytes) <= facts.lds_bytes
            assert 128 % tile.block_k == 0 and (tile.needs == "any" or regular)
            assert tile.loads == how or tile.loads == "pointer"


def test_few_rows_a_group_take_low_tiles():
    """A tile of 256 rows for groups of 16 would multiply fifteen rows of nothing for each."""
    for facts in (arch_facts("gfx942"), arch_facts("gfx950"), PLACES["NVIDIA"]):
        low = choose_tile(False, 64, 16, 4096, 4096, "fp8", facts, 2, True)
        high = choose_tile(False, 8, 1024, 4096, 4096, "fp8", facts, 2, True)
        assert low.block_m <= 64 < high.block_m
