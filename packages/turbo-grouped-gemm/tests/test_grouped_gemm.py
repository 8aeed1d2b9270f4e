# SPDX-License-Identifier: MIT
"""grouped_gemm: forward and gradients of every backend against float64, with NaN in every row of no group."""

import math
from collections import Counter

import pytest
import torch

import turbo_grouped_gemm as tgg
from turbo_core import BackendType, GlobalBackendManager, trace_dispatch
from turbo_grouped_gemm.pytorch.kernels import grouped_gemm_reference
from turbo_testing.cases import load
from turbo_testing.group_lens import GROUP_LENS, group_lens
from turbo_testing.metrics import assert_close, get_tolerances
from turbo_testing.poison import poisoned_empty

CASES = load("turbo-grouped-gemm")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


class Problem:
    """Tensors of one product: a, b and bias as leaves, a gradient of C, everything in rows of no group NaN.

    ``room``: unused rows behind each group; ``gather``: a row of a for each row of the groups but the last, which is
    the first again; ``scatter``: rows of C in another order, some of none.
    """

    def __init__(
        self,
        lens,
        tail,
        n,
        k,
        dtype=torch.float32,
        device="cpu",
        trans_b=False,
        bias=True,
        room=0,
        gather=False,
        scatter=False,
        index_dtype=torch.int64,
    ):
        starts = [sum(lens[:g]) + g * room for g in range(len(lens) + 1)]
        self.rows = starts[-1] + tail
        self.group_rows = [row for start, count in zip(starts, lens) for row in range(start, start + count)]
        owned = torch.zeros(self.rows, dtype=torch.bool, device=device)
        owned[torch.tensor(self.group_rows, dtype=torch.int64, device=device)] = True
        self.lens = torch.tensor(lens, dtype=index_dtype, device=device)
        offs = torch.tensor(starts, dtype=index_dtype, device=device)
        self.options = {"trans_b": trans_b, "group_offs": offs if room else None}
        a_rows, out_rows = self.rows, self.rows
        used, written = owned, owned
        if gather:
            order = torch.randperm(self.rows).to(device)
            if self.group_rows:
                order[self.group_rows[-1]] = order[self.group_rows[0]]
            used = torch.zeros_like(owned).index_fill(0, order[owned], True)
            order[~owned] = -(2**31)
            self.options["a_idx"] = order.to(index_dtype)
        if scatter:
            out_rows = self.rows + 3
            order = torch.randperm(out_rows)[: self.rows].to(device)
            written = torch.zeros(out_rows, dtype=torch.bool, device=device).index_fill(0, order[owned], True)
            order[~owned] = 2**31 - 1
            self.options |= {"out_idx": order.to(index_dtype), "out_rows": out_rows}
        self.written, self.used = written, used
        scale = max(k, 1) ** -0.25
        a = (torch.randn(a_rows, k, device=device) * scale).to(dtype)
        a[~used] = math.nan
        self.a = a.requires_grad_()
        shape = (len(lens), n, k) if trans_b else (len(lens), k, n)
        self.b = (torch.randn(shape, device=device) * scale).to(dtype).requires_grad_()
        self.bias = torch.randn(len(lens), n, device=device).to(dtype).requires_grad_() if bias else None
        grad = (torch.randn(out_rows, n, device=device) / max(n, *lens, 1) ** 0.5).to(dtype)
        grad[~written] = math.nan
        self.grad_out = grad

    def leaves(self):
        return {name: t for name in ("a", "b", "bias") if (t := getattr(self, name)) is not None}

    def run(self, **options):
        return tgg.grouped_gemm(self.a, self.b, self.lens, bias=self.bias, **self.options, **options)

    def expected(self):
        """C and the gradients in float64, rows of no group left out on both sides."""
        wide = {name: t.detach().double() for name, t in self.leaves().items()}
        wide["a"] = torch.where(self.used[:, None], wide["a"], 0.0)
        wide = {name: t.requires_grad_() for name, t in wide.items()}
        out = CASES.grouped_gemm(wide["a"], wide["b"], self.lens, bias=wide.get("bias"), **self.options)
        grad = torch.where(self.written[:, None], self.grad_out.double(), 0.0)
        if not out.requires_grad:
            return out, [torch.zeros_like(t) for t in wide.values()]
        found = torch.autograd.grad(out, list(wide.values()), grad, allow_unused=True)
        return out, [torch.zeros_like(t) if g is None else g for t, g in zip(wide.values(), found)]

    def check(self, out_dtype=None):
        out = self.run() if out_dtype is None else self.run(out_dtype=out_dtype)
        gradients = torch.autograd.grad(out, list(self.leaves().values()), self.grad_out.to(out.dtype))
        want, want_gradients = self.expected()
        assert out.dtype is (out_dtype or torch.promote_types(self.a.dtype, self.b.dtype))
        assert out.is_contiguous()
        dtypes = (self.a.dtype, self.b.dtype, out.dtype)
        coarsest = max(dtypes, key=lambda dtype: get_tolerances(dtype)["rtol"])
        assert_close(out, want, dtype=coarsest, what="out")
        for (name, leaf), gradient, expected in zip(self.leaves().items(), gradients, want_gradients, strict=True):
            assert (gradient.dtype, gradient.shape) == (leaf.dtype, leaf.shape)
            assert_close(gradient, expected, dtype=coarsest, what=f"d{name}")
        assert not out[~self.written].count_nonzero(), "rows of no group are exact zeros"
        assert not gradients[0][~self.used].count_nonzero(), "and so are their gradients"
        for g in (self.lens == 0).nonzero().flatten().tolist():
            assert not gradients[1][g].count_nonzero(), "the gradient of a group without rows is exactly zero"


def aligned(cases):
    """Those that torch's own grouped product takes."""
    return [case for case in cases if case[2] % 8 == 0 and case[3] % 8 == 0]


def cases_of(backend, device):
    if backend is BackendType.TRITON and device.type == "cpu":
        return CASES.INTERPRETED
    return aligned(CASES.CPU) if backend is BackendType.HIPBLASLT else CASES.CPU


@pytest.mark.simulated
@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("trans_b", CASES.LAYOUTS)
@pytest.mark.parametrize("room", [0, 3])
@pytest.mark.parametrize("indices", ["none", "gather", "scatter", "both"])
def test_forward_and_gradients(backend, device, dtype, trans_b, room, indices):
    plain = backend is not BackendType.HIPBLASLT
    if not plain and (dtype is not torch.bfloat16 or room or indices != "none"):
        pytest.skip("torch's grouped product takes bf16 groups one after the other")
    for lens, tail, n, k in cases_of(backend, device):
        problem = Problem(
            lens, tail, n, k, dtype, device, trans_b, plain, room,
            indices in ("gather", "both"), indices in ("scatter", "both"),
            torch.int32 if room else torch.int64,
        )  # fmt: skip
        with poisoned_empty():
            problem.check()


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize(("dtype_a", "dtype_b", "out_dtype"), [
    (torch.bfloat16, torch.float32, None), (torch.float32, torch.float16, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16, torch.float32), (torch.float16, torch.bfloat16, torch.float16),
], ids=str)  # fmt: skip
def test_dtypes_that_differ(device, dtype_a, dtype_b, out_dtype):
    problem = Problem((5, 0, 12), 2, 24, 17, dtype_a, device)
    problem.b = problem.b.detach().to(dtype_b).requires_grad_()
    problem.check(out_dtype)


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize(("lens", "tail", "n", "k"), CASES.EMPTY)
@pytest.mark.parametrize("trans_b", CASES.LAYOUTS)
@pytest.mark.parametrize("bias", [False, True])
def test_zero_sizes(device, lens, tail, n, k, trans_b, bias, poisoned_allocations):
    Problem(lens, tail, n, k, torch.bfloat16, device, trans_b, bias).check()
    Problem(lens, tail, n, k, torch.bfloat16, device, trans_b, bias, 2, True, True).check()


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("trans_b", CASES.LAYOUTS)
def test_masked(device, trans_b, poisoned_allocations):
    """[G,M,K] with counts: rows behind a group's count are NaN in, zeros out, and change nothing."""
    counts = torch.tensor([2, 0, 5, 3], dtype=torch.int32, device=device)
    a = torch.randn(4, 5, 12, device=device)
    inside = torch.arange(5, device=device) < counts[:, None]
    a[~inside] = math.nan
    a.requires_grad_()
    b = torch.randn(4, 7, 12, device=device) if trans_b else torch.randn(4, 12, 7, device=device)
    b.requires_grad_()
    out = tgg.grouped_gemm(a, b, counts, trans_b=trans_b)
    grad = torch.randn(4, 5, 7, device=device)
    da, db = torch.autograd.grad(out, (a, b), torch.where(inside[..., None], grad, math.nan))
    a64 = torch.where(inside[..., None], a.detach().double(), 0.0)
    g64 = torch.where(inside[..., None], grad.double(), 0.0)
    b64 = b.detach().double().mT if trans_b else b.detach().double()
    assert_close(out, a64 @ b64, what="out")
    assert_close(da, g64 @ b64.mT, what="da")
    assert_close(db, (g64.mT @ a64) if trans_b else (a64.mT @ g64), what="db")


@pytest.mark.usefixtures("serving")
def test_lens_of_every_kind_and_many_groups(device):
    """64 experts, of which many get nothing; and 1024."""
    for kind in GROUP_LENS:
        Problem(group_lens(kind, 64, 96), 4, 16, 16, torch.float32, device).check()
    lens = [0] * 1024
    lens[3], lens[1023] = 5, 2
    problem = Problem(lens, 1, 8, 8, torch.float32, device)
    assert_close(problem.run(), problem.expected()[0])


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("options", [{"num_cu": 1}, {"num_cu": 7}, {"schedule": "work_steal"}], ids=str)
def test_schedules_have_the_bits_of_the_plain_call(device, options):
    problem = Problem((5, 0, 40, 3), 2, 24, 33, torch.bfloat16, device)
    leaves = list(problem.leaves().values())
    results = []
    for chosen in ({}, options):
        out = problem.run(**chosen)
        results.append((out, *torch.autograd.grad(out, leaves, problem.grad_out)))
    for plain, other in zip(*results, strict=True):
        assert torch.equal(plain, other)


def test_repeats_are_equal_to_the_bit(backend, device):
    plain = backend is not BackendType.HIPBLASLT
    gather = {"gather": True, "scatter": True} if plain else {}
    problem = Problem((8, 0, 40, 3), 2, 24, 32, torch.bfloat16, device, bias=plain, **gather)
    leaves = list(problem.leaves().values())
    first, *others = (
        (out, *torch.autograd.grad(out, leaves, problem.grad_out)) for out in (problem.run() for _ in range(3))
    )
    for other in others:
        assert all(map(torch.equal, first, other))


@pytest.mark.usefixtures("serving")
def test_awkward_memory(device):
    """Transposed, strided, expanded and offset operands and gradients are those of their copies."""
    problem = Problem((5, 3), 1, 12, 16, torch.float32, device)
    a, b, lens = problem.a.detach().nan_to_num(0.5), problem.b.detach(), problem.lens
    grad = problem.grad_out.nan_to_num(0.5)

    def step(a, b, grad):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        out = tgg.grouped_gemm(a, b, lens)
        return (out, *torch.autograd.grad(out, (a, b), grad))

    plain = step(a, b, grad)
    wide = torch.full((9, 33), 7.0, device=device)
    wide[:, 1::2] = a
    flat = torch.zeros(b.numel() + 3, device=device)
    flat[3:] = b.flatten()
    for other in (
        step(a.t().contiguous().t(), b.mT.contiguous().mT, grad.t().contiguous().t()),
        step(wide[:, 1::2], flat[3:].view(b.shape), grad),
        step(a, b.permute(2, 0, 1).contiguous().permute(1, 2, 0), grad),
    ):
        for one, expected in zip(other, plain, strict=True):
            assert_close(one, expected.double())
    ones = torch.ones(1, 1, device=device).expand(9, 12)
    for one, expected in zip(step(a, b, ones), step(a, b, ones.contiguous()), strict=True):
        assert_close(one, expected.double())
    shared = b[:1].expand(2, 16, 12)
    for one, expected in zip(step(a, shared, grad), step(a, shared.contiguous(), grad), strict=True):
        assert_close(one, expected.double())


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("lens", [[5, -3, 9], [2**40, 3, 2**40], [4, 4, 400]], ids=str)
@pytest.mark.parametrize("offs", [None, [0, 4, 2**50, -5], [-(2**40), 3, 6, 9], [7, 7, 7, 8]], ids=str)
def test_wild_groups_reach_no_memory_of_others(device, lens, offs):
    """Wrong groups give wrong numbers, of the operands' own rows: they are all ones here."""
    a, b = torch.ones(9, 16, device=device, requires_grad=True), torch.ones(3, 16, 8, device=device, requires_grad=True)
    offs = None if offs is None else torch.tensor(offs, device=device)
    out = tgg.grouped_gemm(a, b, torch.tensor(lens, device=device), offs)
    assert set(out.unique().tolist()) <= {0.0, 16.0}
    da, db = torch.autograd.grad(out.sum(), (a, b))
    assert set(da.unique().tolist()) <= {0.0, 8.0}
    assert float(db.max()) <= 9.0 and float(db.min()) >= 0.0


@pytest.mark.parametrize("trans_b", CASES.LAYOUTS)
def test_the_reference_where_nothing_may_be_read(device, trans_b, monkeypatch):
    """What TORCH does on a GPU: each group by a product over all rows, of which its own are taken."""
    GlobalBackendManager.set_grouped_gemm_backend("TORCH")
    monkeypatch.setattr(grouped_gemm_reference, "_rows_of_groups", lambda owner, count: [None] * count)
    for lens, tail, n, k in CASES.CPU:
        Problem(lens, tail, n, k, torch.float32, device, trans_b, room=2).check()
        Problem(lens, tail, n, k, torch.float32, device, trans_b, gather=True, scatter=True).check()


# --- what users of such libraries met ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("serving")
def test_rows_behind_the_last_group(device, poisoned_allocations):
    """Field case: rows past the sum of the lengths kept what the memory held, and NaN came into the gradients."""
    problem = Problem((32, 0, 16), 16, 96, 64, torch.bfloat16, device, bias=False)
    poisoned_allocations(problem.grad_out.nbytes, problem.a.nbytes)
    problem.check()


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("lens", [(81, 81, 0, 0, 0, 0, 0, 0), (16, 0, 257, 44, 0, 8), (0, 0, 0, 0)], ids=str)
def test_groups_without_rows_in_the_backward(device, lens, poisoned_allocations):
    """Field case: illegal access, a hang, or gradients other than zero for experts without a token."""
    Problem(lens, 0, 48, 32, torch.bfloat16, device, bias=False).check()


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize(("n", "k"), [(100, 64), (64, 100), (90, 90), (132, 44)])
@pytest.mark.parametrize("rows", [31, 63])
def test_sizes_that_are_no_multiples_of_a_tile(device, n, k, rows):
    """Field case: N = 2112, 2880, 100 with M = 255, 507."""
    Problem((rows, rows), 0, n, k, torch.bfloat16, device, bias=False).check()


def test_what_no_backend_takes_is_said_at_the_call(device):
    """Field case: a recipe that was accepted above and failed, or was silently replaced, below."""
    GlobalBackendManager.set_grouped_gemm_backend("CK")
    problem = Problem((2, 2), 0, 8, 8, device=device)
    with pytest.raises(
        ValueError, match=r"grouped_gemm: backend CK \(set in code\) does not exist for this op; it has"
    ):
        problem.run()
    GlobalBackendManager.set_grouped_gemm_backend("HIPBLASLT")
    with pytest.raises(
        ValueError, match=r"HIPBLASLT .*cannot take this call: .*bias.*Call: G=2 rows=4 N=8 K=8 NN, flo"
    ):
        problem.run()


# --- second derivatives, and how often a weight is multiplied ---------------------------------------------------------


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("indices", [False, True])
def test_second_derivatives(device, indices):
    problem = Problem((3, 0, 4), 2, 5, 6, torch.float32, device, True, True, 1, indices, indices)

    def penalty(leaves, run):
        out = run(**leaves)
        first = torch.autograd.grad(out.square().sum(), list(leaves.values()), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), list(leaves.values()), allow_unused=True)

    options = dict(problem.options)
    leaves = problem.leaves()
    leaves["a"] = torch.where(problem.used[:, None], leaves["a"].detach(), 0.0).requires_grad_()
    wide = {name: t.detach().double().requires_grad_() for name, t in leaves.items()}
    found = penalty(leaves, lambda **x: tgg.grouped_gemm(group_lens=problem.lens, **options, **x))
    expected = penalty(wide, lambda **x: CASES.grouped_gemm(group_lens=problem.lens, **options, **x))
    for name, one, other in zip(leaves, found, expected, strict=True):
        scale = float(other.abs().max())
        assert_close(one.double() / scale, other / scale, rtol=1e-4, atol=1e-4, what=name)


@pytest.mark.usefixtures("plain_cpu")
def test_a_step_is_three_products_and_one_for_the_bias(device):
    problem = Problem((3, 0, 4), 2, 5, 6, device=device)
    with trace_dispatch() as trace:
        torch.autograd.grad(problem.run(), list(problem.leaves().values()), problem.grad_out)
    assert Counter(record.role for record in trace.records) == {"forward": 1, "dgrad": 1, "wgrad": 2}


# --- a GPU's real shapes ----------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("trans_b", CASES.LAYOUTS)
@pytest.mark.parametrize("kind", GROUP_LENS)
def test_the_whole_matrix(backend, device, kind, trans_b):
    plain = backend is not BackendType.HIPBLASLT
    for groups, rows, n, k in CASES.FULL:
        if plain or (n % 8 == 0 and k % 8 == 0):
            lens = group_lens(kind, groups, groups * rows)
            Problem(lens, 33, n, k, torch.bfloat16, device, trans_b, plain).check()


@pytest.mark.gpu
def test_nothing_waits_for_the_device(backend, device):
    """Forward and every gradient, and another number of rows: torch reports a wait as an error."""
    plain = backend is not BackendType.HIPBLASLT
    options = {"bias": plain, "gather": plain, "scatter": plain}
    problems = [
        Problem(lens, tail, 64, 48, torch.bfloat16, device, **options)
        for lens, tail in (((40, 0, 17), 7), ((3, 90, 1), 34))
    ]
    torch.autograd.grad(problems[0].run(), list(problems[0].leaves().values()), problems[0].grad_out)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for problem in problems:
            torch.autograd.grad(problem.run(), list(problem.leaves().values()), problem.grad_out)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_replayed_with_other_lens(backend, device):
    """Captured once, forward and backward, and replayed with other lengths and values."""
    plain = backend is not BackendType.HIPBLASLT
    problem = Problem((64, 0, 100), 92, 128, 64, torch.bfloat16, device, bias=plain)
    other = Problem((7, 200, 13), 36, 128, 64, torch.bfloat16, device, bias=plain)
    leaves = list(problem.leaves().values())
    torch.autograd.grad(problem.run(), leaves, problem.grad_out)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        torch.autograd.grad(problem.run(), leaves, problem.grad_out)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = problem.run()
        gradients = torch.autograd.grad(out, leaves, problem.grad_out)
    with torch.no_grad():
        for mine, theirs in zip(leaves, other.leaves().values(), strict=True):
            mine.copy_(theirs)
        problem.lens.copy_(other.lens)
        problem.grad_out.copy_(other.grad_out)
    graph.replay()
    torch.cuda.synchronize(device)
    want, want_gradients = other.expected()
    assert_close(out, want, dtype=torch.bfloat16, what="out")
    for gradient, expected in zip(gradients, want_gradients, strict=True):
        assert_close(gradient, expected, dtype=torch.bfloat16, what="gradient")


@pytest.mark.gpu
@pytest.mark.parametrize("large", ["a", "b", "c"])
def test_more_than_2_31_elements(device, large):
    """Values past the wrap are compared, of the last rows and of the last group."""
    if torch.cuda.mem_get_info(device)[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free memory")
    rows, n, k, groups = {"a": (2**19 + 512, 16, 4096, 3), "b": (96, 4096, 4096, 130), "c": (2**19 + 512, 4096, 16, 3)}[
        large
    ]
    a = torch.randn(rows, k, device=device, dtype=torch.bfloat16) * k**-0.5
    b = torch.randn(groups, n, k, device=device, dtype=torch.bfloat16).requires_grad_()
    a.requires_grad_()
    lens = torch.zeros(groups, dtype=torch.int64, device=device)
    lens[0], lens[-1] = rows - 64, 60
    out = tgg.grouped_gemm(a, b, lens, trans_b=True)
    grad = torch.randn(rows, n, device=device, dtype=torch.bfloat16) * rows**-0.5
    da, db = torch.autograd.grad(out, (a, b), grad)
    last = slice(rows - 64, rows - 4)
    b64 = b[-1].detach().double()
    assert_close(out[last], a[last].detach().double() @ b64.t(), dtype=torch.bfloat16, what="out")
    assert_close(da[last], grad[last].double() @ b64, dtype=torch.bfloat16, what="da")
    assert_close(db[-1], grad[last].double().t() @ a[last].detach().double(), dtype=torch.bfloat16, what="db")
    assert not out[rows - 4 :].any() and not da[rows - 4 :].any()
    before = slice(rows - 96, rows - 64)
    b64 = b[0].detach().double()
    assert_close(out[before], a[before].detach().double() @ b64.t(), dtype=torch.bfloat16, what="out before")
