# SPDX-License-Identifier: MIT
"""The Triton kernel of C[r] = A[r] B[g] by itself: on the GPU when there is one, else in Triton's interpreter."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from turbo_core import arch_facts, device_facts, simulated_arch  # noqa: E402
from turbo_core.launch import start  # noqa: E402
from turbo_grouped_gemm.calls import GroupedGemmCall, Groups  # noqa: E402
from turbo_grouped_gemm.triton import grouped_gemm  # noqa: E402
from turbo_testing import cases  # noqa: E402
from turbo_testing.group_lens import group_lens  # noqa: E402
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


def call_of(p: Problem, a, b, trans_b=False, bias=None, out_dtype=None, **options) -> GroupedGemmCall:
    out_dtype = out_dtype or a.dtype
    return GroupedGemmCall(a, b, bias, p.groups, trans_b, out_dtype, p.a_idx, p.out_idx, p.out_rows, **options)


def multiply(call: GroupedGemmCall, tile=None, c=None):
    """C by the launcher, in poisoned memory."""
    facts = device_facts(call.a.device)
    if c is None:
        c = poisoned(call.out_rows, call.sizes()[2], dtype=call.out_dtype, device=call.a.device)
    result = start(*grouped_gemm.plan(call, facts, tile, c))
    assert result is c
    return c


def operands(p: Problem, N, K, dtype, trans_b=False, dtype_b=None, bias_dtype=None):
    """A with NaN in rows of no group, B and bias."""
    a = p.rows(K, dtype, scale=1 / math.sqrt(max(K, 1)))
    b = torch.randn((p.count, N, K) if trans_b else (p.count, K, N), device=a.device).to(dtype_b or dtype)
    bias = None if bias_dtype is None else torch.randn(p.count, N, device=a.device).to(bias_dtype)
    return a, b, bias


def reference(p: Problem, a, b, trans_b=False, bias=None):
    """float64 on the CPU."""
    bias = None if bias is None else bias.cpu().double()
    return CASES.grouped_gemm(
        a.cpu().double(), b.cpu().double(), p.lens, p.offs, trans_b, bias, p.a_idx_host, p.out_idx_host, p.out_rows
    )


@pytest.mark.covering
@pytest.mark.parametrize("dtype", DTYPES, ids=CASES.DTYPES)
@pytest.mark.parametrize("trans_b", [False, True], ids=["NN", "NT"])
@pytest.mark.parametrize("lens", ["balanced", "zipf", "one-takes-all", "many-empty", "all-empty"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("indices", ["", "gather", "scatter", "gather+scatter"])
def test_rows(dtype, trans_b, lens, layout, indices, device):
    """Which rows are whose, which are read and which are written."""
    p = problem(lens, 5, 90, layout, device, gather="gather" in indices, scatter="scatter" in indices)
    a, b, bias = operands(p, 100, 33, dtype, trans_b, bias_dtype=dtype)
    c = multiply(call_of(p, a, b, trans_b, bias))
    check(c, reference(p, a, b, trans_b, bias))
    assert not c[p.rows_of_none()].any(), "rows of no group are exact zeros"


@pytest.mark.covering
@pytest.mark.parametrize("dtype", DTYPES, ids=CASES.DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("bias_dtype", [None, *DTYPES], ids=["", *CASES.DTYPES])
@pytest.mark.parametrize("out_dtype", DTYPES, ids=CASES.DTYPES)
@pytest.mark.parametrize("N, K", [(100, 33), (1, 130), (130, 64), (33, 1)])
@pytest.mark.parametrize("schedule", ["static", "work_steal"])
def test_product(dtype, count, bias_dtype, out_dtype, N, K, schedule, device):
    p = problem("zipf", count, 90, "none", device)
    a, b, bias = operands(p, N, K, dtype, True, bias_dtype=bias_dtype)
    c = multiply(call_of(p, a, b, True, bias, out_dtype, schedule=schedule))
    check(c, reference(p, a, b, True, bias), dtype if out_dtype is torch.float32 else out_dtype)


@pytest.mark.simulated
@pytest.mark.parametrize("layout, indices", [("none", ""), ("head", ""), ("tight", "gather+scatter")])
@pytest.mark.parametrize("dtype, trans_b", [(torch.bfloat16, True), (torch.float16, False), (torch.float32, True)])
def test_machine_code(dtype, trans_b, layout, indices, device):
    """Tiles with and without masks; programs that are more than the tiles."""
    p = problem("zipf", 4, 70, layout, device, gather="gather" in indices, scatter="scatter" in indices)
    for N, K in ((80, 64), (33, 40)):
        a, b, bias = operands(p, N, K, dtype, trans_b, bias_dtype=torch.float32)
        for schedule in ("static", "work_steal"):
            c = multiply(call_of(p, a, b, trans_b, bias, schedule=schedule))
            check(c, reference(p, a, b, trans_b, bias), dtype)
            assert not c[p.rows_of_none()].any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=CASES.DTYPES)
@pytest.mark.parametrize("trans_b", [False, True], ids=["NN", "NT"])
@pytest.mark.parametrize("lens", ["balanced", "zipf", "one-takes-all", "many-empty"])
def test_full_matrix(dtype, trans_b, lens, device):
    for count, rows, N, K in CASES.FULL:
        p = problem(lens, count, count * rows, "none", device)
        a, b, _ = operands(p, N, K, dtype, trans_b)
        for schedule in ("static", "work_steal"):
            check(multiply(call_of(p, a, b, trans_b, schedule=schedule)), reference(p, a, b, trans_b), dtype)


@pytest.mark.skipif(GPU, reason="the interpreter stands in for an architecture; a GPU is its own")
@pytest.mark.covering
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("rows, N, K", [(600, 272, 64), (300, 144, 96), (40, 129, 40)])
@pytest.mark.parametrize("schedule", ["static", "work_steal"])
def test_rows_of_an_architecture(arch, rows, N, K, schedule, device):
    """The tiles and the XCD order of both architectures, interpreted: last columns moved back, several programs."""
    p = problem("zipf", 3, rows, "gaps", device)
    a, b, bias = operands(p, N, K, torch.float16, bias_dtype=torch.float32)
    with simulated_arch(arch):
        check(multiply(call_of(p, a, b, bias=bias, schedule=schedule)), reference(p, a, b, bias=bias))


@pytest.mark.parametrize("lens, tail, N, K", CASES.EMPTY)
@pytest.mark.parametrize("scatter", [False, True], ids=["", "scatter"])
def test_zero_sizes(lens, tail, N, K, scatter, device):
    """No rows, no columns, nothing to add up, no group."""
    p = problem(list(lens), len(lens), sum(lens) + tail, "none", device, scatter=scatter)
    a, b, bias = operands(p, N, K, torch.float32, bias_dtype=torch.float32)
    c = multiply(call_of(p, a, b, bias=bias))
    check(c, reference(p, a, b, bias=bias))


def test_no_rows_to_gather_from(device):
    """Every index is wrong then; nothing is read."""
    p = problem([3, 2], 2, 5, "none", device, gather=True)
    b = torch.randn(2, 16, 16, device=device)
    c = multiply(call_of(p, torch.empty(0, 16, device=device), b))
    assert not c.any()


@pytest.mark.parametrize("trans_b", [False, True], ids=["NN", "NT"])
@pytest.mark.parametrize("dtype", DTYPES, ids=CASES.DTYPES)
def test_strides(dtype, trans_b, device):
    """All dimensions with a stride; what lies between is NaN, and stays so in C."""
    p = problem("balanced", 3, 40, "gaps", device)
    a, b, bias = operands(p, 70, 33, dtype, trans_b, bias_dtype=dtype)
    spread_a = poisoned(a.shape[0] * 2, a.shape[1] * 3, dtype=dtype, device=device)[::2, ::3].copy_(a)
    spread_b = poisoned(*(2 * size for size in b.shape), dtype=dtype, device=device)[::2, ::2, 1::2].copy_(b)
    spread_bias = poisoned(6, 140, dtype=dtype, device=device)[::2, ::2].copy_(bias)
    whole = poisoned(p.out_rows * 2, 140, dtype=dtype, device=device)
    spread_lens = torch.full((9,), 99, device=device)[::3].copy_(p.groups.lens)
    spread_offs = torch.full((8,), 99, device=device)[::2].copy_(p.groups.offs)
    call = call_of(p, spread_a, spread_b, trans_b, spread_bias)._replace(groups=Groups(spread_lens, spread_offs))
    c = multiply(call, c=whole[::2, 1::2])
    check(c, reference(p, a, b, trans_b, bias))
    assert whole[1::2].isnan().all() and whole[:, ::2].isnan().all()


def test_transposed_and_expanded(device):
    """A stored by columns, as gradients of sum() arrive, and C by columns."""
    p = problem("zipf", 3, 60, "none", device)
    a, b, _ = operands(p, 70, 33, torch.float32)
    for x in (a.t().contiguous().t(), a[:, :1].expand_as(a)):
        check(multiply(call_of(p, x, b)), reference(p, x, b))
    one = a[:1].expand_as(a)
    check(multiply(call_of(p, one, b)), reference(p, one, b))
    c = poisoned(70, p.out_rows, dtype=torch.float32, device=device).t()
    check(multiply(call_of(p, a, b), c=c), reference(p, a, b))


def test_mixed_dtypes(device):
    p = problem("balanced", 2, 50, "none", device)
    for dtype_a, dtype_b in zip(DTYPES, [*DTYPES[1:], DTYPES[0]]):
        a, b, _ = operands(p, 40, 50, dtype_a, dtype_b=dtype_b)
        check(multiply(call_of(p, a, b, out_dtype=torch.float32)), reference(p, a, b))  # nothing was rounded


@pytest.mark.simulated
def test_nan_stays_where_it_is(device):
    """In its row and in its group's columns; not in the tail, not in the next group's B behind the last column of K."""
    p = problem([20, 30, 10], 3, 70, "tight", device)
    a, b, _ = operands(p, 40, 33, torch.float32, trans_b=True)
    b[1] = NAN
    a[3, 32] = NAN
    c = multiply(call_of(p, a, b, True)).cpu()
    assert c[20:50].isnan().all() and c[3].isnan().all()
    rest = torch.cat([c[:3], c[4:20], c[50:]])
    assert rest.isfinite().all()
    b[1] = float("inf")
    assert not multiply(call_of(p, a, b, True))[60:].any(), "the tail is zeros, whatever B holds"


@pytest.mark.simulated
@pytest.mark.parametrize(
    "lens, offs",
    [
        ([-5, 2**40, 7], None),
        ([2**62, 2**62, 2**62], None),
        ([40, 40, 40], None),
        ([5, 2**40, 3], [-(2**40), 10, 30, 2**50]),
        ([50, 50, 50], [0, 10, 20, 30]),
        ([5, 5, 5], [30, 10, 20, 5]),
        ([5, 5, 5], [2**40, 2**41, 2**42, 2**43]),
    ],
)
def test_wild_groups_touch_nothing_but_the_rows(lens, offs, device):
    """A and C lie inside of poisoned memory: nothing beside A is read into C, nothing beside C is written."""
    rows, N, K = 60, 40, 33
    around_a = poisoned(rows + 256, K, dtype=torch.float32, device=device)
    a = around_a[128 : 128 + rows].normal_()
    b = torch.randn(3, K, N, device=device)
    lens, offs = (None if given is None else torch.tensor(given, device=device) for given in (lens, offs))
    for schedule in ("static", "work_steal"):
        around = poisoned(rows + 256, N, dtype=torch.float32, device=device)
        call = GroupedGemmCall(a, b, None, Groups(lens, offs), False, a.dtype, None, None, rows, schedule=schedule)
        c = multiply(call, c=around[128 : 128 + rows])
        assert c.isfinite().all(), "each row is written, from A"
        assert around[:128].isnan().all() and around[128 + rows :].isnan().all()


def test_wild_indices_are_cut_off_or_dropped(device):
    p = problem([20, 30], 2, 50, "none", device, gather=True, scatter=True)
    a, b, _ = operands(p, 40, 33, torch.float32)
    right = multiply(call_of(p, a, b))
    gone = p.out_idx[7].item()
    p.out_idx[7] = 2**40
    p.a_idx[7] = -(2**40)
    around = poisoned(p.out_rows + 64, 40, dtype=torch.float32, device=device)
    c = multiply(call_of(p, a, b), c=around[32 : 32 + p.out_rows])
    right[gone] = 0
    assert torch.equal(c, right)
    assert around[:32].isnan().all() and around[32 + p.out_rows :].isnan().all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_integers_of_either_size(dtype, device):
    p = problem("zipf", 5, 60, "head", device, gather=True, scatter=True)
    a, b, _ = operands(p, 40, 33, torch.float32)
    groups = Groups(p.groups.lens.to(dtype), p.groups.offs.to(dtype))
    call = call_of(p, a, b)._replace(groups=groups, a_idx=p.a_idx.to(dtype), out_idx=p.out_idx.to(dtype))
    check(multiply(call), reference(p, a, b))


def test_1024_groups(device):
    p = problem(group_lens("many-empty", 1024, 300, seed=3), 1024, 310, "none", device)
    a, b, _ = operands(p, 17, 16, torch.float32)
    check(multiply(call_of(p, a, b)), reference(p, a, b))


@pytest.mark.deterministic
@pytest.mark.parametrize("layout", ["none", "head"])
def test_bits_are_the_same_however_tiles_are_taken(layout, device):
    """Static, stealing, repeated, and with fewer compute units."""
    p = problem("zipf", 5, 150, layout, device, gather=True)
    a, b, _ = operands(p, 136, 72, torch.float16)
    options = [dict(num_cu=7), dict(num_cu=7), dict(num_cu=1), *(dict(schedule="work_steal", num_cu=n) for n in (1, 5))]
    with simulated_arch("gfx950"):
        first, *others = [multiply(call_of(p, a, b, **given)) for given in options]
    for given, other in zip(options[1:], others):
        assert torch.equal(bits(other), bits(first)), given


@pytest.mark.parametrize("schedule", ["static", "work_steal"])
def test_num_cu_caps_the_grid(schedule, device):
    p = problem("balanced", 8, 4096, "none", device)
    a, b, _ = operands(p, 1024, 16, torch.float16)
    facts = arch_facts("gfx942")
    for num_cu, programs in ((None, 304), (16, 16), (1, 1), (1000, 304)):
        _, (launch,) = grouped_gemm.plan(call_of(p, a, b, schedule=schedule, num_cu=num_cu), facts)
        assert launch.grid == (programs,)


def test_another_number_of_rows_is_no_other_compilation(device):
    """All totals of one class of sizes share one kernel; all there are share as many as the table has rows."""
    b = torch.empty(8, 4096, 4096, dtype=torch.bfloat16, device="meta")
    lens = torch.empty(8, dtype=torch.int64, device="meta")

    def launched(rows, **options):
        a = torch.empty(rows, 4096, dtype=torch.bfloat16, device="meta")
        call = GroupedGemmCall(a, b, None, Groups(lens, None), True, a.dtype, None, None, rows, **options)
        return grouped_gemm.plan(call, arch_facts("gfx950"))[1][0]

    assert len(specialisations(launched(rows) for rows in range(8 * 513, 8 * 513 + 40))) == 1
    assert len(specialisations(launched(rows) for rows in (4097, 8191, 8192))) == 1
    assert len(specialisations(launched(rows) for rows in (8193, 16384, 100001, 2**20, 2**22 + 1))) == 1
    assert len(specialisations(launched(rows) for rows in range(1, 20000, 61))) <= 5


@pytest.mark.gpu
def test_more_than_2_31_elements(device):
    """A, then C, of more than 2**31 elements; values past the wrap are compared."""
    K, rows = 2048 + 16, 2**20 + 4096 + 77
    lens = [rows // 2 - 5, 0, rows // 4, rows - rows // 2 - rows // 4]
    p = problem(lens, 4, rows + 5, "none", device)
    a = torch.empty(p.out_rows, K, dtype=torch.bfloat16, device=device).normal_()
    assert a.numel() > 2**31
    b = torch.randn(4, K, 16, device=device).to(torch.bfloat16) / math.sqrt(K)
    c = multiply(call_of(p, a, b))
    last = slice(rows - 200, rows - 5)
    check(c[last], a[last].cpu().double() @ b[3].cpu().double())
    assert not c[-5 - 5 :][5:].any()
    narrow = a[:, :16].contiguous()
    wide = torch.randn(4, 16, K, device=device).to(torch.bfloat16) / 4
    a.fill_(NAN)
    multiply(call_of(p, narrow, wide), c=a)
    check(a[last], narrow[last].cpu().double() @ wide[3].cpu().double())
    assert not a.isnan().any()
