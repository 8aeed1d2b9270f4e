# SPDX-License-Identifier: MIT
"""The Triton kernels of the fused expert MLP by themselves: on the GPU when there is one, else in the interpreter."""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from turbo_core import arch_facts, device_facts, simulated_arch  # noqa: E402
from turbo_core.calls import tensors  # noqa: E402
from turbo_core.launch import start  # noqa: E402
from turbo_grouped_gemm.calls import Groups  # noqa: E402
from turbo_grouped_gemm.calls_mlp import DgateCall, Gate, GateCall, GatedDgradCall, GatedGemmCall  # noqa: E402
from turbo_grouped_gemm.triton import grouped_mlp  # noqa: E402
from turbo_testing import cases  # noqa: E402
from turbo_testing.grouped_problem import LAYOUTS, NAN, Problem, bits, check, problem, specialisations  # noqa: E402

CASES = cases.load("turbo-grouped-gemm")
GPU = torch.cuda.is_available()
DTYPES = [getattr(torch, name) for name in CASES.DTYPES]
GATES = {
    "silu": (Gate("silu", math.inf, 0.0), {}),
    "silu clamped": (Gate("silu", 0.5, 0.0), {"clamp_limit": 0.5}),
    "gelu_tanh": (Gate("gelu_tanh", math.inf, 0.0), {"activation": "geglu"}),
    "gpt-oss": (Gate("clamped", 0.7, 1.702), {"limit": 0.7}),
}
SHARED = {
    "dtype": DTYPES,
    "trans": (False, True),
    "lens": ("balanced", "zipf", "one-takes-all", "many-empty", "all-empty"),
    "count": (1, 3, 8, 32),
    "layout": LAYOUTS,
    "gate": tuple(GATES),
    "probs_dtype": (None, *DTYPES),
    "sizes": ((100, 33), (1, 130), (65, 64), (33, 1)),
    "schedule": ("static", "work_steal"),
}


def _drawn(number, **values):
    """``number`` combinations in which every value comes as often as any other of its parameter, in a fixed order."""
    draw, columns = random.Random(number), []
    for options in values.values():
        column = [options[place % len(options)] for place in range(number)]
        draw.shuffle(column)
        columns.append(column)
    return list(zip(*columns))


def run(call, tile=None):
    """The results by the launcher, in poisoned memory."""
    results, launches = grouped_mlp.plan(call, device_facts(call.groups.lens.device), tile)
    made = list(tensors((results,))) + [launch.arguments.get("partials") for launch in launches]
    for tensor in made:
        if tensor is not None:
            tensor.fill_(NAN)
    return start(results, launches)


def weights(p: Problem, rows, columns, dtype, trans, device):
    shape = (p.count, columns, rows) if trans else (p.count, rows, columns)
    return (torch.randn(shape, device=device) / math.sqrt(max(rows, 1))).to(dtype)


def factors(p: Problem, dtype, device):
    """NaN in rows of no group."""
    probs = torch.full((p.size,), NAN, device=device)
    probs[p.owned()] = torch.rand(len(p.owned()), device=device)
    return probs.to(dtype)


def no_group(p: Problem):
    return sorted(set(range(p.size)) - set(p.owned()))


def product(p: Problem, a, b, trans, index):
    """float64 on the CPU; rows of no group are zeros."""
    host = None if index is None else torch.where(torch.arange(p.size)[:, None] >= 0, index.cpu()[:, None], 0)[:, 0]
    if host is not None:
        host[no_group(p)] = 0
    return CASES.grouped_gemm(a.cpu().double(), b.cpu().double(), p.lens, p.offs, trans, a_idx=host)


def gated(pre, probs, formula):
    """float64 out of pre, with probs where they are given."""
    out = CASES.gate(pre, **formula)
    return out if probs is None else out * probs.cpu().double().nan_to_num(0.0)[:, None]


def gradients(p: Problem, dout, pre, probs, formula):
    """float64 dpre, out and dprobs."""
    pre = pre.cpu().double().nan_to_num(0.0).requires_grad_()
    factor = torch.ones(p.size, dtype=torch.float64) if probs is None else probs.cpu().double().nan_to_num(0.0)
    factor.requires_grad_()
    out = CASES.gate(pre, **formula) * factor[:, None]
    dpre, dprobs = torch.autograd.grad(out, (pre, factor), dout)
    return dpre, out.detach(), dprobs


def stored_pre(p: Problem, F, dtype, device):
    """pre as the forward leaves it: zeros in rows of no group."""
    pre = torch.randn(p.size, 2 * F, device=device).to(dtype)
    pre[no_group(p)] = 0
    return pre


def check_gradients(p: Problem, found, expected, dtype, probs):
    for one, other in zip(found, expected, strict=True):
        if one is not None:
            scale = max(1.0, float(other.abs().max()))
            check(one.double() / scale, other / scale, one.dtype if dtype is torch.float32 else dtype)
            assert not one[no_group(p)].any(), "rows of no group are exact zeros"
    assert (found.probs is None) == (probs is None)


@pytest.mark.parametrize("case", _drawn(20, **SHARED, gather=(False, True), keeps=(True, True, False)), ids=str)
def test_first_projection(case, device):
    dtype, trans, lens, count, layout, gate, probs_dtype, (F, K), schedule, gather, keeps = case
    p = problem(lens, count, 90, layout, device, gather=gather)
    formula, named = GATES[gate]
    x, w = p.rows(K, dtype), weights(p, K, 2 * F, dtype, trans, device)
    probs = None if probs_dtype is None else factors(p, probs_dtype, device)
    out, pre = run(
        GatedGemmCall(x, w, probs, p.groups, formula, trans, dtype, p.a_idx, keeps, schedule=schedule)
    )  # fmt: skip
    expected = product(p, x, w, trans, p.a_idx)
    assert (pre is not None) == keeps
    if keeps:
        check(pre, expected, dtype)
        expected = pre.cpu().double()  # the gate is that of pre as it is stored
    check(out, gated(expected, probs, named), dtype)
    for result in (out, pre):
        assert result is None or not result[no_group(p)].any(), "rows of no group are exact zeros"


@pytest.mark.parametrize("case", _drawn(20, **SHARED, scatter=(False, True), again=(True, True, False)), ids=str)
def test_gradient_of_the_second_projection(case, device):
    dtype, trans, lens, count, layout, gate, probs_dtype, (F, N), schedule, scatter, again = case
    p = problem(lens, count, 90, layout, device, scatter=scatter)
    formula, named = GATES[gate]
    w, pre = weights(p, F, N, dtype, trans, device), stored_pre(p, F, dtype, device)
    dy = torch.randn(p.out_rows, N, device=device).to(dtype)
    dy[p.rows_of_none()] = NAN
    probs = None if probs_dtype is None else factors(p, probs_dtype, device)
    found = run(
        GatedDgradCall(
            dy, w, pre, probs, p.groups, formula, trans, p.out_idx, again, probs is not None, schedule=schedule
        )
    )
    assert (found.out is not None) == again
    dout = product(p, dy, w, not trans, p.out_idx)
    check_gradients(p, found, gradients(p, dout, pre, probs, named), dtype, probs)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    ("dtype", "lens", "layout", "with_probs", "F"),
    [
        (torch.bfloat16, "zipf", "gaps", True, 257),
        (torch.float32, "many-empty", "head", False, 40),
        (torch.float16, "all-empty", "none", True, 1),
    ],
)
def test_gate_by_itself(gate, dtype, lens, layout, with_probs, F, device):
    p = problem(lens, 5, 60, layout, device)
    formula, named = GATES[gate]
    pre = stored_pre(p, F, dtype, device)
    probs = factors(p, torch.float32, device) if with_probs else None
    out = run(GateCall(pre, probs, p.groups, formula))
    check(out, gated(pre.cpu().double().nan_to_num(0.0), probs, named), dtype)
    assert not out[no_group(p)].any()
    dout = torch.randn(p.size, F, device=device).to(dtype)
    dout[no_group(p)] = NAN
    found = run(DgateCall(dout, pre, probs, p.groups, formula, True, with_probs))
    check_gradients(
        p, found, gradients(p, dout.cpu().double().nan_to_num(0.0), pre, probs, named), dtype, probs
    )  # fmt: skip


@pytest.mark.simulated
@pytest.mark.parametrize("layout, by_index", [("none", False), ("head", True)])
@pytest.mark.parametrize("dtype, trans", [(torch.bfloat16, True), (torch.float32, False)])
def test_machine_code(dtype, trans, layout, by_index, device):
    p = problem("zipf", 4, 70, layout, device, gather=by_index, scatter=by_index)
    probs = factors(p, torch.float32, device) if by_index else None
    for (F, K), (formula, named) in zip(((80, 64), (33, 40)), (GATES["gpt-oss"], GATES["silu"])):
        x, w = p.rows(K, dtype), weights(p, K, 2 * F, dtype, trans, device)
        out, pre = run(GatedGemmCall(x, w, probs, p.groups, formula, trans, dtype, p.a_idx, True))
        check(pre, product(p, x, w, trans, p.a_idx), dtype)
        check(out, gated(pre.cpu().double(), probs, named), dtype)
        w2 = weights(p, F, K, dtype, trans, device)
        dy = torch.randn(p.out_rows, K, device=device).to(dtype)
        found = run(GatedDgradCall(dy, w2, pre, probs, p.groups, formula, trans, p.out_idx, True, by_index))
        dout = product(p, dy, w2, not trans, p.out_idx)
        check_gradients(p, found, gradients(p, dout, pre, probs, named), dtype, probs)


@pytest.mark.simulated
def test_machine_code_of_the_gate(device):
    p = problem("zipf", 4, 50, "gaps", device)
    pre, probs = stored_pre(p, 40, torch.bfloat16, device), factors(p, torch.float32, device)
    formula, named = GATES["gelu_tanh"]
    out = run(GateCall(pre, probs, p.groups, formula))
    check(out, gated(pre.cpu().double().nan_to_num(0.0), probs, named))
    dout = torch.randn(p.size, 40, device=device).to(torch.bfloat16)
    found = run(DgateCall(dout, pre, probs, p.groups, formula, True, True))
    check_gradients(p, found, gradients(p, dout.cpu().double(), pre, probs, named), torch.bfloat16, probs)


@pytest.mark.skipif(GPU, reason="the interpreter stands in for an architecture; a GPU is its own")
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("rows, F, K", [(300, 144, 64), (40, 65, 40)])
def test_rows_of_an_architecture(arch, rows, F, K, device):
    """The tiles and the XCD order of both architectures, interpreted: last columns moved back, several programs."""
    p = problem("zipf", 3, rows, "gaps", device)
    formula, named = GATES["silu"]
    probs = factors(p, torch.float32, device)
    x, w = p.rows(K, torch.float16), weights(p, K, 2 * F, torch.float16, True, device)
    w2, dy = weights(p, F, K, torch.float16, False, device), torch.randn(rows, K, device=device).half()
    with simulated_arch(arch):
        out, pre = run(GatedGemmCall(x, w, probs, p.groups, formula, True, x.dtype, None, True))
        found = run(GatedDgradCall(dy, w2, pre, probs, p.groups, formula, False, None, True, True))
    check(pre, product(p, x, w, True, None), x.dtype)
    check(out, gated(pre.cpu().double(), probs, named), x.dtype)
    dout = product(p, dy, w2, True, None)
    check_gradients(p, found, gradients(p, dout, pre, probs, named), x.dtype, probs)


@pytest.mark.simulated
@pytest.mark.parametrize("lens, offs", [([-5, 2**40, 7], None), ([40, 40, 40], None), ([5, 5, 5], [30, 10, 20, 5])])
def test_wild_groups_read_and_write_rows_alone(lens, offs, device):
    rows, F, K = 60, 40, 33
    lens, offs = (None if given is None else torch.tensor(given, device=device) for given in (lens, offs))
    groups, (formula, _) = Groups(lens, offs), GATES["silu"]
    x, w = torch.randn(rows, K, device=device), torch.randn(3, K, 2 * F, device=device)
    out, pre = run(GatedGemmCall(x, w, None, groups, formula, False, x.dtype, None, True))
    assert out.isfinite().all() and pre.isfinite().all(), "each row is written"
    w2 = torch.randn(3, F, K, device=device)
    found = run(GatedDgradCall(x, w2, pre, None, groups, formula, False, None, True, False))
    assert found.pre.isfinite().all() and found.out.isfinite().all()


@pytest.mark.deterministic
def test_bits_are_the_same_however_tiles_are_taken(device):
    p = problem("zipf", 3, 150, "gaps", device)
    F, K = 72, 40
    formula, _ = GATES["silu"]
    x, w, probs = (
        p.rows(K, torch.float16),
        weights(p, K, 2 * F, torch.float16, True, device),
        factors(p, DTYPES[0], device),
    )
    w2, dy = weights(p, F, K, torch.float16, True, device), torch.randn(150, K, device=device).half()
    first = None
    for options in ({}, {}, dict(num_cu=3), dict(schedule="work_steal")):
        with simulated_arch("gfx950") if not GPU else simulated_arch(None):
            out, pre = run(GatedGemmCall(x, w, probs, p.groups, formula, True, x.dtype, None, True, **options))
            found = run(GatedDgradCall(dy, w2, pre, probs, p.groups, formula, True, None, True, True, **options))
        now = [bits(t) for t in (out, pre, *found)]
        first = first or now
        assert all(torch.equal(one, other) for one, other in zip(now, first, strict=True)), options
        assert torch.equal(bits(found.out), bits(out)), "the activation is the same when it is computed again"


def test_another_number_of_rows_is_no_other_compilation():
    w = torch.empty(8, 8192, 4096, dtype=torch.bfloat16, device="meta")
    w2 = torch.empty(8, 4096, 4096, dtype=torch.bfloat16, device="meta")
    groups = Groups(torch.empty(8, dtype=torch.int64, device="meta"), None)
    formula, facts = GATES["silu"][0], arch_facts("gfx950")

    def launched(rows):
        x, pre, probs = (
            torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((rows, 4096), (rows, 8192), (rows,))
        )
        calls = (
            GatedGemmCall(x, w, probs, groups, formula, True, x.dtype, None, True),
            GatedDgradCall(x, w2, pre, probs, groups, formula, True, None, True, True),
            GateCall(pre, probs, groups, formula),
            DgateCall(x, pre, probs, groups, formula, True, True),
        )
        return [launch for call in calls for launch in grouped_mlp.plan(call, facts)[1]]

    assert len(specialisations(launch for rows in (8193, 16384, 100001, 2**20) for launch in launched(rows))) == 5
