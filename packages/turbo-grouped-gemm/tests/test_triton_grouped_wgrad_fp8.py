# SPDX-License-Identifier: MIT
"""The Triton kernels of grouped FP8 and MX wgrad by themselves: on a GPU, in the simulator, else interpreted."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from turbo_core import device_facts, simulated_arch  # noqa: E402
from turbo_core.launch import start  # noqa: E402
from turbo_gemm.developer import Tile  # noqa: E402
from turbo_grouped_gemm.calls import GroupedOperand, GroupedWgradFp8Call  # noqa: E402
from turbo_grouped_gemm.triton import grouped_wgrad_fp8  # noqa: E402
from turbo_testing.grouped_operands import NAN_BYTE, SCALINGS, padded_offs, random_operand  # noqa: E402
from turbo_testing.metrics import assert_close  # noqa: E402

GPU = torch.cuda.is_available()
# rows of the groups; the padded ones are multiples of 128
LENS = {"one": [130], "empty": [0, 70, 0], "all-empty": [0, 0], "many": [1, 128, 0, 129, 0, 300]}
OUTS = (torch.bfloat16, torch.float16, torch.float32)

scalings = pytest.mark.parametrize("scaling", SCALINGS)


class Problem:
    """Operands whose padding is zeros, with NaN past the last group, and their products in float64."""

    def __init__(self, X, Y, lens, scaling, device, kinds=("e4m3", "e4m3"), tail=128):
        self.scaling, self.lens, G = scaling, lens, len(lens)
        offs = padded_offs(lens)
        self.offs = torch.tensor(offs, device=device)
        P = offs[-1] + tail
        self.x, wide_x = self._operand(X, P, kinds[0], G, device)
        self.y, wide_y = self._operand(Y, P, kinds[1], G, device)
        self.products = torch.zeros(G, X, Y, dtype=torch.float64)
        for g, size in enumerate(lens):
            rows = slice(offs[g], offs[g] + size)
            self.products[g] = wide_x[g, :, rows] @ wide_y[g, :, rows].t()
        self.unit = math.sqrt(max(lens)) or 1.0
        if scaling.startswith("mx"):
            self.unit *= float((wide_x.square().mean() * wide_y.square().mean()).sqrt()) or 1.0

    def _operand(self, rows, P, kind, G, device):
        """The operand, and its values for each group [G,rows,P]."""
        operand, wide = random_operand((rows, P), self.scaling, kind, device, groups=G)
        payload = operand.data.view(torch.uint8)
        bytes_of = P // payload.shape[1]
        offs = self.offs.tolist()
        for begin, end, size in zip(offs, offs[1:], self.lens):
            if size % bytes_of:  # half a byte of padding
                payload[:, (begin + size) // bytes_of] &= 0x0F
            payload[:, -(-(begin + size) // bytes_of) : end // bytes_of] = 0
        nan = 0x80 if device_facts(device).fp8_fnuz and not self.scaling.startswith("mx") else NAN_BYTE
        payload[:, offs[-1] // bytes_of :] = nan
        if self.scaling.startswith("mx"):
            operand.scale_inv[:, offs[-1] // 32 :] = nan
        if self.scaling == "blockwise":
            operand.scale_inv[:, offs[-1] // 128 :] = float("nan")
        wide = wide.expand(G, rows, P)
        if self.scaling == "rowwise":
            for g, size in enumerate(self.lens):
                if size == 0:
                    operand.scale_inv[g] = float("nan")
            wide = wide * operand.scale_inv.cpu().double()[:, :, None]
        return operand, wide

    def call(self, out_dtype=torch.float32, **fields):
        granularity, block_size = SCALINGS[self.scaling]
        given = dict(x=self.x, y=self.y, offs=self.offs, out=None) | fields
        return GroupedWgradFp8Call(
            granularity=granularity, block_size=block_size, out_dtype=out_dtype, **given
        )  # fmt: skip

    def run(self, out_dtype=torch.float32, tile=None, c=None, **fields):
        call = self.call(out_dtype, **fields)
        assert grouped_wgrad_fp8.why_not(call) is None
        return start(*grouped_wgrad_fp8.plan(call, device_facts(self.x.data.device), tile, c))


def check(actual, expected, unit, dtype=None):
    """Against float64, in units of the product's own size. Sums in 14 bits (sm_90) lose what 16-bit results do."""
    dtype = dtype or (torch.bfloat16 if GPU else actual.dtype)
    assert_close(actual.cpu().double() / unit, expected / unit, dtype=dtype)


def poisoned(*shape, dtype, device):
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


@pytest.mark.covering
@scalings
@pytest.mark.parametrize("lens", LENS.values(), ids=LENS)
@pytest.mark.parametrize("X, Y", [(1, 33), (64, 128), (100, 65)])
@pytest.mark.parametrize("kinds", [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2")], ids="x".join)
@pytest.mark.parametrize("out_dtype", OUTS, ids=str)
@pytest.mark.parametrize("accumulate", [False, True], ids=["new", "accumulated"])
def test_products(X, Y, lens, scaling, kinds, out_dtype, accumulate, device):
    """C is NaN before, or strided memory that C is added to; an empty group keeps the latter to the bit."""
    p = Problem(X, Y, lens, scaling, device, kinds)
    G = len(lens)
    if not accumulate:
        c = poisoned(G, X, Y, dtype=out_dtype, device=device)
        assert p.run(out_dtype, c=c) is c
        check(c, p.products, p.unit, torch.bfloat16 if out_dtype != torch.float32 else None)
        return
    whole = poisoned(G, X * 2, Y * 3, dtype=out_dtype, device=device)
    out = whole[:, ::2, 1::3]
    old = (torch.randn(G, X, Y, device=device) * p.unit).to(out_dtype)
    old[:, 0, 0] = -0.0
    out.copy_(old)
    assert p.run(out_dtype, out=out) is out
    expected = p.products + old.cpu().double()
    check(out, expected, p.unit, torch.bfloat16 if out_dtype != torch.float32 else None)
    for g, size in enumerate(lens):
        if size == 0:
            assert torch.equal(out[g].float().view(torch.int32), old[g].float().view(torch.int32))
    assert whole[:, 1::2].isnan().all() and whole[:, :, ::3].isnan().all()


@pytest.mark.simulated
@scalings
@pytest.mark.parametrize("schedule", ["static", "work_steal"])
def test_added_to_what_was_there(scaling, schedule, device):
    p = Problem(70, 65, [130, 0, 40], scaling, device)
    old = torch.randn(3, 70, 65, device=device) * p.unit
    out = old.clone()
    p.run(out=out, schedule=schedule)
    check(out, p.products + old.cpu().double(), p.unit)


@pytest.mark.simulated
@scalings
def test_an_empty_group_is_exactly_zero(scaling, device):
    p = Problem(40, 24, LENS["empty"], scaling, device)
    c = p.run(torch.bfloat16, c=poisoned(3, 40, 24, dtype=torch.bfloat16, device=device))
    assert not c[0].any() and c[1].any() and not c[2].any()


@scalings
@pytest.mark.parametrize("G, X, Y", [(0, 8, 8), (2, 0, 8), (2, 8, 0)])
def test_nothing_to_write(G, X, Y, scaling, device):
    p = Problem(X, Y, [5] * G or [5], scaling, device)
    offs = p.offs[: G + 1]
    assert p.run(offs=offs).shape == (G, X, Y)


@pytest.mark.deterministic
@scalings
def test_schedules_give_the_same_bits(scaling, device):
    """Work stealing, another number of programs, and again."""
    p = Problem(33, 70, [1, 0, 129], scaling, device)
    first = p.run()
    for options in ({}, {"schedule": "work_steal"}, {"num_cu": 3}, {"schedule": "work_steal", "num_cu": 1}):
        assert torch.equal(first, p.run(c=poisoned(*first.shape, dtype=first.dtype, device=device), **options))


@scalings
def test_strides(scaling, device):
    """Payloads and scales that are views with strides in both dimensions; memory between is NaN."""
    p = Problem(33, 40, [1, 0, 129], scaling, device)

    def spread(x):
        if x.dim() == 0:
            return x
        fill = float("nan") if x.dtype == torch.float32 else NAN_BYTE
        kind = torch.float32 if x.dtype == torch.float32 else torch.uint8
        whole = torch.full((x.shape[1] * 3, x.shape[0] * 2), fill, dtype=kind, device=device).view(x.dtype)
        return whole[1::3, ::2].copy_(x.t()).t()

    x, y = (GroupedOperand(*map(spread, operand)) for operand in (p.x, p.y))
    assert torch.equal(p.run(x=x, y=y), p.run())


@pytest.mark.parametrize("offs", [[-500, 128, 2**40, 2**40], [0, 384, 128, 256], [-(2**40), -1, -128, 2**62]])
def test_wild_offsets_reach_nothing_outside(offs, device):
    """What they say beyond the columns is cut off; a group that ends before it begins is empty."""
    p = Problem(16, 16, [128, 128, 128], "rowwise", device, tail=0)
    c = p.run(offs=torch.tensor(offs, device=device)).cpu()
    begin, end = (torch.tensor(part).clamp(0, 384) // 128 * 128 for part in (offs[:-1], offs[1:]))
    x, y = (operand.data.cpu().double() for operand in (p.x, p.y))
    for g in range(3):
        columns = slice(int(begin[g]), int(max(begin[g], end[g])))
        scales = [operand.scale_inv[g].cpu().double()[:, None] for operand in (p.x, p.y)]
        check(c[g], (x[:, columns] * scales[0]) @ (y[:, columns] * scales[1]).t(), 20)


def test_columns_past_a_padded_group_are_refused(device):
    p = Problem(16, 16, [128], "rowwise", device, tail=0)
    short = GroupedOperand(p.x.data[:, :100], p.x.scale_inv), GroupedOperand(p.y.data[:, :100], p.y.scale_inv)
    assert "100 columns" in grouped_wgrad_fp8.why_not(p.call(x=short[0], y=short[1]))
    assert grouped_wgrad_fp8.why_not(p.call()) is None


@scalings
def test_another_number_of_rows_compiles_nothing(scaling, device):
    """Batches of other sizes, and lengths in int32."""
    keys = set()
    for rows in (128 * 3, 128 * 17, 128 * 64, 128 * 1001):
        p = Problem(24, 40, [rows, 1], scaling, device)
        call = p.call()
        tile = grouped_wgrad_fp8.choose_tile(True, 2, 24, 40, 500, "fp8", device_facts(device), 4, True)
        _, launches = grouped_wgrad_fp8.plan(call, device_facts(device), tile)
        keys.add(repr([launch.signature() for launch in launches]))
    assert len(keys) == 1


@pytest.mark.skipif(GPU, reason="the interpreter stands in for an architecture; a GPU is its own")
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@scalings
def test_rows_of_an_architecture(arch, scaling, device):
    """The rows and the XCD order of both architectures, and the FP8 types of each, interpreted."""
    with simulated_arch(arch):
        for X, Y, lens in ((128, 128, [130]), (17, 65, [5, 0])):
            p = Problem(X, Y, lens, scaling, device)
            check(p.run(), p.products, p.unit)


@pytest.mark.skipif(GPU, reason="descriptors in the interpreter; on a GPU every case takes them where they pay")
@pytest.mark.parametrize("scaling, halves", [("tensorwise", 1), ("rowwise", 1), ("blockwise", 2)])
def test_descriptors(scaling, halves, device):
    tile = Tile(32, 64, 128, num_warps=4, why="test", loads="descriptor", halves=halves, per_unit=0)
    p = Problem(40, 72, [0, 129, 1], scaling, device)
    check(p.run(tile=tile), p.products, p.unit)
