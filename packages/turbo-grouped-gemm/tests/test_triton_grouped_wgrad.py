# SPDX-License-Identifier: MIT
"""The Triton kernel of C[g] = X_g^T Y_g by itself: on the GPU when there is one, else in Triton's interpreter."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from turbo_core import arch_facts, device_facts, simulated_arch  # noqa: E402
from turbo_core.launch import start  # noqa: E402
from turbo_grouped_gemm.calls import GroupedWgradCall, Groups  # noqa: E402
from turbo_grouped_gemm.triton import grouped_wgrad  # noqa: E402
from turbo_grouped_gemm.triton.grouped_wgrad_kernel import long_first  # noqa: E402
from turbo_testing import cases  # noqa: E402
from turbo_testing.grouped_problem import (  # noqa: E402
    LAYOUTS,
    NAN,
    Problem,
    bits,
    check,
    poisoned,
    problem,
    specialisations,
)

CASES = cases.load("turbo-grouped-gemm")
GPU = torch.cuda.is_available()
DTYPES = [getattr(torch, name) for name in CASES.DTYPES]


def call_of(p: Problem, x, y, out_dtype=None, out=None, y_idx=None, **options) -> GroupedWgradCall:
    out_dtype = out.dtype if out is not None else out_dtype or x.dtype
    return GroupedWgradCall(x, y, p.groups, out_dtype, p.a_idx, y_idx, out, **options)


def contract(call: GroupedWgradCall, tile=None, c=None):
    """C by the launcher, in poisoned memory or added to ``out``."""
    G, _, X, Y = call.sizes()
    if c is None and call.out is None:
        c = poisoned(G, X, Y, dtype=call.out_dtype, device=call.x.device)
    result = start(*grouped_wgrad.plan(call, device_facts(call.x.device), tile, c))
    assert result is (c if call.out is None else call.out)
    return result


def operands(p: Problem, X, Y, dtype, dtype_y=None):
    """X and Y with NaN in rows of no group."""
    scale = 1 / math.sqrt(max(1, max(p.lens, default=1)))
    return p.rows(X, dtype, scale), p.rows(Y, dtype_y or dtype, gathered=False)


def reference(p: Problem, x, y, old=None):
    """float64 on the CPU."""
    x, y = x.cpu().double(), y.cpu().double()
    c = torch.zeros(p.count, x.shape[1], y.shape[1], dtype=torch.float64)
    starts = p.offs or [sum(p.lens[:g]) for g in range(p.count)]
    for g, (first, length) in enumerate(zip(starts, p.lens)):
        rows = torch.arange(first, first + length)
        c[g] = x[rows if p.a_idx_host is None else p.a_idx_host[rows]].t() @ y[rows]
    return c if old is None else c + old.cpu().double()


@pytest.mark.covering
@pytest.mark.parametrize("dtype", DTYPES, ids=CASES.DTYPES)
@pytest.mark.parametrize("lens", ["balanced", "zipf", "one-takes-all", "many-empty", "all-empty"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gather", [False, True], ids=["", "gather"])
@pytest.mark.parametrize("out", [None, *DTYPES], ids=["", *CASES.DTYPES])
@pytest.mark.parametrize("schedule", ["static", "work_steal"])
def test_rows(dtype, lens, layout, gather, out, schedule, device):
    """Which rows are whose; zeros for empty groups, or C as it was where it is added to."""
    p = problem(lens, 5, 180, layout, device, gather=gather)
    x, y = operands(p, 70, 33, dtype)
    old = None if out is None else torch.randn(5, 70, 33, device=device).to(out)
    c = contract(call_of(p, x, y, out=None if old is None else old.clone(), schedule=schedule))
    check(c, reference(p, x, y, old), dtype if out is torch.float32 else out)
    empty = [g for g, length in enumerate(p.lens) if length == 0]
    assert torch.equal(c[empty], torch.zeros_like(c[empty]) if old is None else old[empty])


@pytest.mark.covering
@pytest.mark.parametrize("dtype", DTYPES, ids=CASES.DTYPES)
@pytest.mark.parametrize("dtype_y", [None, *DTYPES], ids=["", *CASES.DTYPES])
@pytest.mark.parametrize("out_dtype", DTYPES, ids=CASES.DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("X, Y", [(100, 33), (1, 130), (130, 64), (33, 1)])
def test_product(dtype, dtype_y, out_dtype, count, X, Y, device):
    p = problem("zipf", count, 90, "none", device)
    x, y = operands(p, X, Y, dtype, dtype_y)
    least = max((dtype, dtype_y or dtype), key=lambda kind: torch.finfo(kind).eps)
    check(contract(call_of(p, x, y, out_dtype)), reference(p, x, y), least if out_dtype is torch.float32 else out_dtype)


@pytest.mark.simulated
@pytest.mark.parametrize("layout, gather", [("none", False), ("head", False), ("tight", True)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_machine_code(dtype, layout, gather, device):
    p = problem("zipf", 3, 90, layout, device, gather=gather)
    for X, Y in ((80, 64), (33, 40)):
        x, y = operands(p, X, Y, dtype)
        old = torch.randn(3, X, Y, device=device)
        for schedule in ("static", "work_steal"):
            check(contract(call_of(p, x, y, schedule=schedule)), reference(p, x, y))
            check(contract(call_of(p, x, y, out=old.clone(), schedule=schedule)), reference(p, x, y, old), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=CASES.DTYPES)
@pytest.mark.parametrize("lens", ["balanced", "zipf", "one-takes-all", "many-empty"])
def test_full_matrix(dtype, lens, device):
    for count, rows, X, Y in CASES.FULL:
        p = problem(lens, count, count * rows, "none", device)
        x, y = operands(p, X, Y, dtype)
        for schedule in ("static", "work_steal"):
            check(contract(call_of(p, x, y, schedule=schedule)), reference(p, x, y), dtype)


@pytest.mark.skipif(GPU, reason="the interpreter stands in for an architecture; a GPU is its own")
@pytest.mark.covering
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("X, Y", [(272, 304), (144, 96), (129, 40)])
@pytest.mark.parametrize("out", [None, torch.float32], ids=["", "accumulate"])
@pytest.mark.parametrize("gather", [False, True], ids=["", "gather"])
def test_rows_of_an_architecture(arch, X, Y, out, gather, device):
    """The tiles and the XCD order of both architectures, interpreted: what blocks share at an edge is added once."""
    p = problem("zipf", 3, 150, "gaps", device, gather=gather)
    x, y = operands(p, X, Y, torch.float16)
    old = None if out is None else torch.randn(3, X, Y, device=device)
    with simulated_arch(arch):
        c = contract(call_of(p, x, y, out=None if old is None else old.clone()))
    check(c, reference(p, x, y, old), torch.float16)


def test_accumulate_rounds_once(device):
    """256 + (1 + 2**-8): bf16 has 256 and 258, so 258; a product rounded to bf16 first is 1, and 257 ties to 256."""
    p = problem([2, 0], 2, 2, "none", device)
    x = torch.zeros(2, 16, dtype=torch.bfloat16, device=device)
    x[0], x[1] = 1.0, 2.0**-8
    out = torch.full((2, 16, 16), 256.0, dtype=torch.bfloat16, device=device)
    contract(call_of(p, x, torch.ones_like(x), out=out))
    assert (out[0] == 258.0).all() and (out[1] == 256.0).all()


def test_an_empty_group_leaves_every_bit(device):
    """Also a NaN and the sign of a zero."""
    p = problem([3, 0], 2, 3, "none", device)
    out = torch.full((2, 20, 20), -0.0, device=device)
    out[1, 3] = NAN
    before = bits(out[1]).clone()
    contract(call_of(p, torch.randn(3, 20, device=device), torch.randn(3, 20, device=device), out=out))
    assert torch.equal(bits(out[1]), before)


@pytest.mark.parametrize("lens, tail, X, Y", CASES.EMPTY)
def test_zero_sizes(lens, tail, X, Y, device):
    p = problem(list(lens), len(lens), sum(lens) + tail, "none", device)
    x, y = operands(p, X, Y, torch.float32)
    check(contract(call_of(p, x, y)), reference(p, x, y))


def test_no_rows_to_gather_from(device):
    p = problem([3, 2], 2, 5, "none", device, gather=True)
    c = contract(call_of(p, torch.empty(0, 16, device=device), torch.randn(5, 16, device=device)))
    assert not c.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=CASES.DTYPES)
def test_strides(dtype, device):
    """All dimensions with a stride, C's transposed too; what lies between is NaN, and stays so in C."""
    p = problem("balanced", 3, 40, "gaps", device)
    x, y = operands(p, 70, 33, dtype)
    spread_x = poisoned(x.shape[0] * 2, 210, dtype=dtype, device=device)[::2, ::3].copy_(x)
    spread_y = poisoned(33 * 2, y.shape[0] * 3, dtype=dtype, device=device)[::2, ::3].t().copy_(y)
    whole = poisoned(6, 66, 140, dtype=dtype, device=device)
    c = contract(call_of(p, spread_x, spread_y), c=whole[::2, ::2, 1::2].transpose(1, 2))
    check(c, reference(p, x, y))
    assert whole[1::2].isnan().all() and whole[:, 1::2].isnan().all() and whole[:, :, ::2].isnan().all()
    old = torch.randn(3, 33, 70, device=device)
    out = old.clone().transpose(1, 2)
    check(contract(call_of(p, x, y, out=out)), reference(p, x, y, old.transpose(1, 2)), dtype)


def test_rows_of_y_are_named_too(device):
    p = problem("zipf", 3, 60, "tight", device, gather=True)
    x, y = operands(p, 40, 24, torch.float32)
    order = torch.randperm(60, device=device)
    shuffled = torch.empty_like(y)
    shuffled[order] = y
    check(contract(call_of(p, x, shuffled, y_idx=order.int())), reference(p, x, y))


@pytest.mark.simulated
def test_nan_stays_in_its_group(device):
    p = problem([20, 30, 10], 3, 70, "tight", device)
    x, y = operands(p, 40, 33, torch.float32)
    x[25, 7] = NAN
    y[55, 3] = NAN
    c = contract(call_of(p, x, y)).cpu()
    assert c[0].isfinite().all()
    assert c[1, 7].isnan().all() and c[1, :7].isfinite().all() and c[1, 8:].isfinite().all()
    assert c[2, :, 3].isnan().all() and c[2, :, :3].isfinite().all() and c[2, :, 4:].isfinite().all()


@pytest.mark.simulated
@pytest.mark.parametrize(
    "lens, offs",
    [
        ([-5, 2**40, 7], None),
        ([2**62, 2**62, 2**62], None),
        ([5, 2**40, 3], [-(2**40), 10, 30, 2**50]),
        ([5, 5, 5], [30, 10, 20, 5]),
        ([5, 5, 5], [2**40, 2**41, 2**42, 2**43]),
    ],
)
def test_wild_groups_touch_nothing_but_the_rows(lens, offs, device):
    """X and Y lie inside of poisoned memory."""
    around = poisoned(60 + 256, 40, dtype=torch.float32, device=device)
    x = around[128:188].normal_()
    lens, offs = (None if given is None else torch.tensor(given, device=device) for given in (lens, offs))
    for schedule in ("static", "work_steal"):
        call = GroupedWgradCall(x, x, Groups(lens, offs), x.dtype, None, None, schedule=schedule)
        assert contract(call).isfinite().all()


@pytest.mark.deterministic
def test_bits_are_the_same_however_tiles_are_taken(device):
    """Static, stealing, repeated, and with fewer compute units."""
    p = problem("zipf", 3, 100, "head", device)
    x, y = operands(p, 144, 136, torch.float16)
    options = [dict(num_cu=7), dict(num_cu=7), dict(num_cu=1), *(dict(schedule="work_steal", num_cu=n) for n in (1, 5))]
    with simulated_arch("gfx950"):
        first, *others = [contract(call_of(p, x, y, **given)) for given in options]
    for given, other in zip(options[1:], others):
        assert torch.equal(bits(other), bits(first)), given


def test_another_number_of_rows_is_no_other_compilation(device):
    """All totals of one class of sizes share one kernel; all there are share as many as the table has rows."""
    lens = torch.empty(8, dtype=torch.int64, device="meta")

    def launched(rows):
        x = torch.empty(rows, 4096, dtype=torch.bfloat16, device="meta")
        call = GroupedWgradCall(x, x, Groups(lens, None), x.dtype, None, None)
        return grouped_wgrad.plan(call, arch_facts("gfx950"))[1][0]

    assert len(specialisations(launched(rows) for rows in range(8 * 513, 8 * 513 + 40))) == 1
    assert len(specialisations(launched(rows) for rows in (8193, 16384, 100001, 2**20, 2**22 + 1))) == 1
    assert len(specialisations(launched(rows) for rows in range(1, 20000, 61))) <= 4


@triton.jit
def order_kernel(out, sizes, G, BLOCK_G: tl.constexpr):
    group = tl.arange(0, BLOCK_G)
    size = tl.load(sizes + group, mask=group < G, other=0)
    tl.store(out + group, long_first(size, G, BLOCK_G), mask=group < G)


@pytest.mark.parametrize("sizes", [[5], [0, 0, 0], [1, 9, 1, 9, 1], [7, 7, 7, 7], [0, 0, 100, 3, 60, 0, 2]])
def test_long_groups_come_first(sizes, device):
    """The order is one of all groups, none longer than the average after one that is not."""
    out = torch.full((len(sizes),), -1, dtype=torch.int32, device=device)
    given = torch.tensor(sizes, dtype=torch.int32, device=device)
    order_kernel[(1,)](out, given, len(sizes), triton.next_power_of_2(len(sizes)))
    places = out.tolist()
    assert sorted(places) == list(range(len(sizes)))
    mean = sum(sizes) // len(sizes)
    is_long = [size > mean for _, size in sorted(zip(places, sizes))]
    assert is_long == sorted(is_long, reverse=True)
    assert [place for place, size in zip(places, sizes) if size > mean] == list(range(sum(is_long))), "in their order"
