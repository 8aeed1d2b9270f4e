# SPDX-License-Identifier: MIT
"""grouped_mlp: values, gradients, what it saves, its refusals and its registration."""

import gc
import inspect
import math

import pytest
import torch

import turbo_grouped_gemm as tgg
from turbo_core import BackendType, UnsupportedError, explain, trace_dispatch
from turbo_grouped_gemm.calls import Groups
from turbo_grouped_gemm.calls_mlp import DgateCall, Gate, GateCall, GatedDgradCall, GatedGemmCall
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

CASES = load("turbo-grouped-gemm")
LENS, ROWS, K, F, N = [9, 0, 14], 26, 20, 34, 24
SILU = Gate("silu", math.inf, 0.0)
FORMULAS = [{}, {"activation": "geglu"}, {"clamp_limit": 0.6}, {"limit": 0.8, "alpha": 1.3}]


class Problem:
    """Operands of `grouped_mlp`, NaN in rows of no group, and the float64 results."""

    def __init__(self, device, dtype=torch.float32, *, trans=(True, True), probs=True, indices=False, **formula):
        torch.manual_seed(5)
        self.trans, self.formula = {"trans_w1": trans[0], "trans_w2": trans[1]}, formula
        self.lens = torch.tensor(LENS, device=device)
        shapes = ((3, 2 * F, K) if trans[0] else (3, K, 2 * F)), ((3, N, F) if trans[1] else (3, F, N))
        self.x = torch.randn(ROWS, K, device=device).to(dtype)
        self.w1, self.w2 = ((torch.randn(shape, device=device) * 0.3).to(dtype) for shape in shapes)
        self.probs = torch.rand(ROWS, device=device) if probs else None
        self.by = {}
        if indices:
            order = torch.arange(ROWS, device=device).flip(0) // 2
            order[sum(LENS) :] = -7
            self.by = {"a_idx": order, "out_idx": torch.arange(ROWS, device=device).flip(0) + 3, "out_rows": ROWS + 3}
        else:
            self.x[sum(LENS) :] = torch.nan
        if probs:
            self.probs[sum(LENS) :] = torch.nan
        self.leaves = [t.requires_grad_() for t in (self.x, self.w1, self.w2, self.probs) if t is not None]
        self.dy = torch.randn(ROWS + 3 if indices else ROWS, N, device=device).to(dtype)

    def run(self, **options):
        chosen = {**self.trans, **self.by, **self.formula, **options}
        return tgg.grouped_mlp(self.x, self.w1, self.w2, self.lens, probs=self.probs, **chosen)

    def results(self, **options):
        """y and all gradients."""
        y = self.run(**options)
        return [y.detach(), *torch.autograd.grad(y, self.leaves, self.dy)]

    def expected(self):
        wide = [leaf.detach().cpu().double().nan_to_num(0.0).requires_grad_() for leaf in self.leaves]
        probs = wide[3] if self.probs is not None else None
        by = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in self.by.items()}
        if by:
            by["a_idx"] = by["a_idx"].clamp(min=0)
        y = CASES.grouped_mlp(*wide[:3], LENS, None, probs, **self.trans, **by, **self.formula)
        return [y.detach(), *torch.autograd.grad(y, wide, self.dy.cpu().double())]

    def check(self, found):
        for name, one, other in zip(("y", "dx", "dw1", "dw2", "dprobs"), found, self.expected()):
            scale = max(1.0, float(other.abs().max()))
            assert_close(one.cpu().double() / scale, other / scale, dtype=self.x.dtype, what=name)


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("formula", FORMULAS, ids=str)
@pytest.mark.parametrize(("trans", "probs", "indices"), [((True, True), True, False), ((False, False), False, True)])
def test_values_and_gradients(device, formula, trans, probs, indices):
    problem = Problem(device, trans=trans, probs=probs, indices=indices, **formula)
    found = problem.results()
    problem.check(found)
    if not indices:
        assert not found[0][sum(LENS) :].any() and not found[1][sum(LENS) :].any(), "rows of no group are zeros"
    assert not found[2][1].any() and not found[3][1].any(), "a group without rows has a gradient of zeros"


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits(device, dtype):
    problem = Problem(device, dtype, trans=(True, False))
    problem.check(problem.results())


@pytest.mark.usefixtures("serving")
def test_the_composition_to_the_bit_forward(device):
    """The gate is that of the first projection as it is stored, so nothing depends on what is saved."""
    p = Problem(device, torch.bfloat16)
    with torch.no_grad():
        pre = tgg.grouped_gemm(p.x, p.w1, p.lens, trans_b=True)
        out = CASES.gate(pre.float()) * p.probs[:, None].nan_to_num(0.0)
        expected = tgg.grouped_gemm(out.bfloat16(), p.w2, p.lens, trans_b=True)
        assert torch.equal(p.run(), p.run())
        assert_close(p.run(), expected.double(), dtype=torch.bfloat16)
    assert torch.equal(p.run().detach(), p.run(schedule="work_steal").detach())


@pytest.mark.usefixtures("serving")
def test_masked_rows(device):
    torch.manual_seed(1)
    x, w1 = torch.randn(3, 7, K, device=device), torch.randn(3, K, 2 * F, device=device) * 0.3
    w2, probs = torch.randn(3, F, N, device=device) * 0.3, torch.rand(3, 7, device=device)
    lens = torch.tensor([7, 0, 4], device=device)
    y = tgg.grouped_mlp(x, w1, w2, lens, probs=probs)
    expected = CASES.grouped_mlp(*(t.double() for t in (x, w1, w2)), lens, None, probs.reshape(-1).double())
    assert y.shape == (3, 7, N)
    assert_close(y, expected, dtype=torch.float32)


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (0, 3), (1, 2)])
def test_each_gradient_by_itself(device, wanted):
    problem = Problem(device)
    whole = problem.results()
    for number, leaf in enumerate(problem.leaves):
        leaf.requires_grad_(number in wanted)
    found = torch.autograd.grad(problem.run(), [problem.leaves[number] for number in wanted], problem.dy)
    for number, gradient in zip(wanted, found, strict=True):
        assert torch.equal(gradient, whole[1 + number])


@pytest.mark.parametrize("sizes", [(0, K, F, N), (ROWS, 0, F, N), (ROWS, K, 0, N), (ROWS, K, F, 0)])
def test_zero_sizes(device, sizes):
    rows, k, f, n = sizes
    shapes = ((rows, k), (2, k, 2 * f), (2, f, n), (rows,))
    leaves = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]
    lens = torch.tensor([rows // 2, rows // 3], device=device)
    y = tgg.grouped_mlp(*leaves[:3], lens, probs=leaves[3])
    assert y.shape == (rows, n) and not y.any()
    for leaf, gradient in zip(leaves, torch.autograd.grad(y.sum(), leaves), strict=True):
        assert gradient.shape == leaf.shape and not gradient.any()


# --- main_grad ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("trans", [(True, True), (False, False)])
def test_added_to_main_grad(device, trans):
    problem = Problem(device, torch.bfloat16, trans=trans)
    plain = problem.results()
    for weight in (problem.w1, problem.w2):
        weight.main_grad = torch.full(weight.shape, 2.0, device=device)
        weight.grad_added_to_main_grad = False
    y = problem.run(fuse_wgrad_accum_pattern="megatron")
    assert problem.w1.grad_added_to_main_grad and problem.w2.grad_added_to_main_grad
    y.backward(problem.dy)
    assert torch.equal(problem.x.grad, plain[1]) and torch.equal(problem.probs.grad, plain[4])
    for weight, gradient in ((problem.w1, plain[2]), (problem.w2, plain[3])):
        assert not weight.grad.any()
        assert_close(weight.main_grad - 2.0, gradient.double(), dtype=torch.bfloat16)
    y = problem.run(fuse_wgrad_accum_pattern="megatron")
    before = problem.w1.main_grad.clone()
    torch.autograd.grad(y, problem.x, problem.dy)
    assert torch.equal(problem.w1.main_grad, before), "a gradient of x alone adds nothing"


def test_one_weight_frozen_with_main_grad(device):
    problem = Problem(device)
    whole = problem.results()
    for weight in (problem.w1, problem.w2):
        weight.main_grad, weight.grad_added_to_main_grad = torch.zeros_like(weight), False
    problem.w1.requires_grad_(False)
    problem.run(fuse_wgrad_accum_pattern="megatron").backward(problem.dy)
    assert not problem.w1.main_grad.any() and not problem.w1.grad_added_to_main_grad
    assert_close(problem.w2.main_grad, whole[3].double(), dtype=torch.float32)


# --- memory and launches --------------------------------------------------------------------------------------------


def saved_bytes(compute):
    """Bytes of all tensors that a forward saves, each once; the tensors' own inputs included."""
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compute()
    return sum(storages.values()), result


def test_bytes_that_are_saved(device):
    """Of activations pre [S,2F] and x alone; the composition saves the activation [S,F] as well."""
    p = Problem(device, torch.bfloat16)
    found, _ = saved_bytes(p.run)
    inputs = sum(t.untyped_storage().nbytes() for t in (p.x, p.w1, p.w2, p.probs, p.lens))
    assert found == inputs + ROWS * 2 * F * 2

    def composed():
        pre = tgg.grouped_gemm(p.x, p.w1, p.lens, trans_b=True)
        gate, up = pre.chunk(2, -1)
        out = (torch.nn.functional.silu(gate) * up * p.probs[:, None].to(gate.dtype)).contiguous()
        return tgg.grouped_gemm(out, p.w2, p.lens, trans_b=True)

    assert saved_bytes(composed)[0] >= found + ROWS * F * 2


def test_no_gradient_keeps_nothing(device):
    p = Problem(device)
    with torch.no_grad():
        p.run()
    gc.collect()
    for leaf in p.leaves:
        leaf.requires_grad_(False)
    assert not p.run().requires_grad
    with trace_dispatch() as trace:
        p.run()
    assert [record.role for record in trace.records] == ["gated", "forward"]


def test_products_of_a_step(device):
    """Two launches forward; backward one that goes through the gate, and three plain products."""
    p = Problem(device)
    with trace_dispatch() as trace:
        p.results()
    names = [(record.op, record.role) for record in trace.records]
    assert names == [
        ("grouped_mlp", "gated"), ("grouped_gemm", "forward"), ("grouped_mlp", "dgated"), ("grouped_gemm", "wgrad"),
        ("grouped_gemm", "dgrad"), ("grouped_gemm", "wgrad"),
    ]  # fmt: skip


# --- refusals and registration --------------------------------------------------------------------------------------


def test_signature():
    """Names and order are those of the field."""
    names = list(inspect.signature(tgg.grouped_mlp).parameters)
    assert names[:12] == [
        "x", "w1", "w2", "group_lens", "group_offs", "probs", "trans_w1", "trans_w2", "out_dtype", "num_cu",
        "fuse_wgrad_accum_pattern", "activation",
    ]  # fmt: skip


X, W1, W2, TWO = torch.ones(6, 4), torch.ones(2, 4, 6), torch.ones(2, 3, 5), torch.tensor([2, 3])


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"x": None}, "x is None; a tensor of 2 or 3 dimensions is accepted"),
        ({"w1": W1[0]}, r"w1 has shape \[4, 6\]; 3 dimensions are accepted"),
        ({"w2": W2.double()}, "w2.dtype=torch.float64; accepted are"),
        ({"w2": W2[:1]}, r"w1 is .*\[2, 4, 6\].*, and w2 .*\[1, 3, 5\]"),
        ({"w1": W1[:, :, :5]}, "w1 with the columns of the gate and of up"),
        ({"trans_w1": True}, r"K is 4 by x .* and 6 by w1 .*trans_w1=True"),
        ({"probs": torch.ones(5)}, r"probs is .*\[5\].*; None or a tensor of shape \[6\]"),
        ({"probs": torch.ones(6).int()}, "probs is .*torch.int32"),
        ({"activation": "relu"}, "activation='relu'; None, 'swiglu' and 'geglu' are accepted"),
        ({"clamp_limit": -1.0}, "clamp_limit=-1.0; None and numbers that are not negative are accepted"),
        ({"limit": 7.0, "clamp_limit": 7.0}, "limit=7.0 with activation=None, clamp_limit=7.0"),
        ({"limit": 7.0, "activation": "geglu"}, "limit=7.0 with activation='geglu'"),
        ({"alpha": 1.0}, "alpha=1.0 without limit"),
        ({"schedule": "steal"}, "schedule='steal'"),
        ({"group_lens": TWO[:1]}, "group_lens is"),
        ({"x": X.view(2, 3, 4), "a_idx": torch.arange(6)}, "a_idx is .*; None is accepted where x has 3 dimensions"),
        ({"fuse_wgrad_accum_pattern": "megatron"}, "needs b.main_grad"),
    ],
)
def test_refusals_name_argument_value_and_what_is_accepted(changed, complaint):
    with trace_dispatch() as trace, pytest.raises(UnsupportedError, match=f"^grouped_mlp: .*{complaint}"):
        tgg.grouped_mlp(**{"x": X, "w1": W1, "w2": W2, "group_lens": TWO, **changed})
    assert not trace.records


def test_second_derivatives_are_refused(device):
    p = Problem(device)
    (dx,) = torch.autograd.grad(p.run().sum(), p.x, create_graph=True)
    with pytest.raises(UnsupportedError, match="grouped_mlp"):
        dx[: sum(LENS)].sum().backward()


def test_opcheck(device):
    groups, made = Groups(torch.tensor(LENS, device=device), None), {"device": device}
    x, pre, probs = torch.randn(ROWS, K, **made), torch.randn(ROWS, 2 * F, **made), torch.rand(ROWS, **made)
    w1, w2, dy = torch.randn(3, K, 2 * F, **made), torch.randn(3, F, N, **made), torch.randn(ROWS, N, **made)
    ops = torch.ops.turbo_grouped_gemm
    assert tgg.grouped_mlp, "imported, and with it registered"
    from turbo_core.call_fields import CallFields

    for op, call in (
        (ops.grouped_gated, GatedGemmCall(x, w1, probs, groups, SILU, False, x.dtype, None, True)),
        (ops.grouped_gated, GatedGemmCall(x, w1, None, groups, SILU, False, x.dtype, None, False)),
        (ops.grouped_dgated, GatedDgradCall(dy, w2, pre, probs, groups, SILU, False, None, True, True)),
        (ops.grouped_gate, GateCall(pre, probs, groups, SILU)),
        (ops.grouped_dgate, DgateCall(torch.randn(ROWS, F, **made), pre, probs, groups, SILU, True, True)),
    ):
        fields = CallFields(type(call))
        torch.library.opcheck(op.default, fields.encode(fields.flatten(call)))


def test_compiled_whole_with_any_number_of_rows(device):
    torch._dynamo.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    w1, w2 = (torch.randn(shape, device=device, requires_grad=True) for shape in ((3, K, 2 * F), (3, F, N)))

    def step(x, lens, probs):
        return tgg.grouped_mlp(x, w1, w2, lens, probs=probs)

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=count)
    for rows in (26, 31, 40):
        x = torch.randn(rows, K, device=device, requires_grad=True)
        lens, probs = torch.tensor([rows // 2, 0, rows // 3], device=device), torch.rand(rows, device=device)
        found, expected = (run(x, lens, probs) for run in (compiled, step))
        assert torch.equal(found, expected)
        for one, other in zip(*(torch.autograd.grad(y.sum(), (x, w1, w2)) for y in (found, expected)), strict=True):
            assert torch.equal(one, other)
    assert len(graphs) == 1


def test_explained(device):
    p = Problem(device)
    told = explain("grouped_mlp", p.x, p.w1, p.w2, p.lens, probs=p.probs, **p.trans)
    assert {call.role if hasattr(call, "role") else call for call in (told if isinstance(told, dict) else ())} or told
    assert BackendType.TORCH.name in str(told)


# --- the module -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
def test_module(device, activation):
    layer = tgg.GroupedMLP(3, K, F, activation=activation, device=device)
    x, lens, probs = (
        torch.randn(ROWS, K, device=device),
        torch.tensor(LENS, device=device),
        torch.rand(ROWS, device=device),
    )
    y = layer(x, lens, probs=probs)
    wide = (t.detach().double() for t in (x, layer.w1, layer.w2))
    expected = CASES.grouped_mlp(*wide, LENS, None, probs.double(), True, True, activation=activation)
    assert_close(y, expected, dtype=torch.float32)
    y.sum().backward()
    assert layer.w1.grad is not None and layer.w2.grad is not None
    assert f"3, {K}, {F}" in repr(layer)
