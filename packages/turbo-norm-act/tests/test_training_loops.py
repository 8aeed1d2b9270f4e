# SPDX-License-Identifier: MIT
"""What a training loop does to the ops: several dtypes, strided parameters, numbers of all kinds, checkpoints."""

import itertools
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import turbo_norm_act as ops
from turbo_core import GlobalBackendManager, UnsupportedError
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

cases = load("turbo-norm-act")
PAIRS = list(itertools.product(cases.DTYPES, repeat=2))


@pytest.fixture(params=["TORCH", "TRITON"])
def backend(request):
    GlobalBackendManager.set_norm_act_backend(request.param)
    return request.param


def leaf(*shape, dtype=torch.float32, device):
    return torch.randn(shape, device=device).to(dtype).requires_grad_()


# --- dtypes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype, other", PAIRS, ids=str)
def test_two_dtypes_are_promoted_in_a_norm(backend, device, dtype, other, autocast):
    """As in x + residual, in and out of autocast; every gradient in the dtype of its own input."""
    x, r = leaf(6, 40, dtype=dtype, device=device), leaf(6, 40, dtype=other, device=device)
    gamma = leaf(40, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
        y, s = ops.rmsnorm_residual(x, r, gamma)
    out = torch.promote_types(dtype, other)
    assert y.dtype == s.dtype == out
    assert torch.equal(s, x.detach() + r.detach())
    x64, r64, gamma64 = cases.float64(x, r, gamma)
    s64 = x64 + r64
    s64 = s64 + (s.detach().double() - s64.detach())
    y64 = cases.norm(s64, gamma64)
    assert_close(y, y64, dtype=out, what="y")
    weights = [torch.randn(6, 40, device=device).to(out) for _ in range(2)]
    found = torch.autograd.grad([y, s], [x, r, gamma], weights)
    expected = torch.autograd.grad([y64, s64], [x64, r64, gamma64], [w.double() for w in weights])
    for tensor, a, b in zip((x, r, gamma), found, expected):
        assert a.dtype == tensor.dtype
        assert_close(a / 3, b / 3, dtype=torch.bfloat16 if tensor is gamma else tensor.dtype)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("activation", ["silu", "clamped", "gelu"])
@pytest.mark.parametrize("dtype, other", PAIRS, ids=str)
def test_two_dtypes_are_promoted_in_a_gate(backend, device, dtype, other, activation, autocast):
    gate, up = leaf(5, 24, dtype=dtype, device=device), leaf(5, 24, dtype=other, device=device)
    op = {"silu": ops.swiglu, "gelu": ops.geglu, "clamped": lambda g, u: ops.swiglu(g, u, limit=1.5)}[activation]
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
        out = op(gate, up)
    assert out.dtype == torch.promote_types(dtype, other)
    wide = cases.float64(gate, up)
    out64 = cases.glu(*wide, activation, limit=1.5)
    assert_close(out, out64, dtype=out.dtype)
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, [gate, up], grad)
    for tensor, a, b in zip((gate, up), found, torch.autograd.grad(out64, wide, grad.double())):
        assert a.dtype == tensor.dtype
        assert_close(a, b, dtype=tensor.dtype)


# --- strides and subsets of inputs ----------------------------------------------------------------------------------


def vectors(n, device):
    """A vector of n in several layouts; all have a gradient."""
    return {
        "strided": torch.randn(n, 3, device=device)[:, 1].requires_grad_(),
        "expanded": torch.randn(1, device=device).expand(n).requires_grad_(),
        "reversed": torch.randn(2 * n, device=device)[n:].flip(0).requires_grad_(),
    }


@pytest.mark.parametrize("layout", ["strided", "expanded", "reversed"])
def test_layouts_of_parameters(backend, device, poisoned_allocations, layout):
    x = leaf(7, 20, device=device)
    gamma, beta = vectors(20, device)[layout], vectors(20, device)[layout]
    probs = vectors(7, device)[layout]
    mask = torch.tensor([[1, 0], [0, 1], [2, 1], [1, 1], [0, 0], [1, 0], [3, 9]], device=device)[:, 0]
    inputs = [x, gamma, beta, probs]
    wide = cases.float64(*inputs)
    found = [ops.layernorm(x, gamma, beta), ops.rmsnorm(x, gamma), ops.swiglu_with_probs(x, probs, mask)]
    expected = [
        cases.norm(wide[0], wide[1], wide[2], 1e-5, center=True),
        cases.norm(wide[0], wide[1]),
        cases.glu(*wide[0].chunk(2, -1), "silu", wide[3], mask),
    ]
    grads = [torch.randn(*out.shape, 2, device=device)[..., 0] for out in found]
    for out, out64 in zip(found, expected):
        assert_close(out, out64, dtype=torch.float32)
    gradients = torch.autograd.grad(found, inputs, grads)
    for a, b in zip(gradients, torch.autograd.grad(expected, wide, [g.double() for g in grads])):
        assert_close(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["residual", "layernorm", "probs", "two"])
def test_every_subset_of_inputs(backend, device, kind):
    """A frozen input changes nothing for the others, and needs no gradient of its own."""
    shapes = {"residual": [(5, 16), (5, 16), (16,)], "layernorm": [(5, 16), (16,), (16,)],
              "probs": [(5, 16), (5,)], "two": [(5, 16), (5, 16)]}[kind]  # fmt: skip
    op = {"residual": lambda *t: sum(ops.rmsnorm_residual(*t)), "layernorm": ops.layernorm,
          "probs": ops.geglu_with_probs, "two": ops.swiglu}[kind]  # fmt: skip
    everything = [torch.randn(shape, device=device) for shape in shapes]

    def gradients(frozen):
        tensors = [t.clone().requires_grad_(not f) for t, f in zip(everything, frozen)]
        out = op(*tensors)
        assert out.requires_grad is not all(frozen)
        if out.requires_grad:
            out.backward(torch.linspace(-1, 1, out.numel(), device=device).view(out.shape))
        return [t.grad for t in tensors]

    whole = gradients([False] * len(shapes))
    for frozen in itertools.product([False, True], repeat=len(shapes)):
        for grad, full, f in zip(gradients(frozen), whole, frozen):
            assert grad is None if f else torch.equal(grad, full)


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), torch.tensor(0.5), torch.tensor(0.5).double()],
                         ids=lambda n: f"{type(n).__name__} {n.dtype}")  # fmt: skip
def test_numbers_are_what_float_takes(device, number):
    x, g = torch.randn(4, 16, device=device), torch.rand(16, device=device)
    for found, expected in (
        (ops.rmsnorm(x, g, number), ops.rmsnorm(x, g, 0.5)),
        (ops.rmsnorm_residual(x, x, g, number)[0], ops.rmsnorm_residual(x, x, g, 0.5)[0]),
        (ops.layernorm(x, g, g, number), ops.layernorm(x, g, g, 0.5)),
        (ops.swiglu(x, limit=number, alpha=number), ops.swiglu(x, limit=0.5, alpha=0.5)),
        (ops.swiglu_with_probs(x, limit=number), ops.swiglu_with_probs(x, limit=0.5)),
        (ops.SwiGLU(limit=number)(x), ops.swiglu(x, limit=0.5)),
        (ops.RMSNorm(16, eps=number, device=device)(x), ops.rmsnorm(x, torch.ones_like(g), 0.5)),
    ):
        assert torch.equal(found, expected)
    assert torch.equal(ops.swiglu(x, limit=np.int64(1)), ops.swiglu(x, limit=1.0))


@pytest.mark.parametrize("number", [True, np.bool_(True), torch.tensor(True), torch.tensor([0.5]), 1j, "1", -1.0,
                                    torch.tensor(0.5, requires_grad=True), torch.tensor(0.5, device="meta"),
                                    torch.tensor(-0.5), np.float32("nan"), np.ones(1)], ids=repr)  # fmt: skip
def test_what_is_no_number_is_refused(number):
    x = torch.randn(4, 16)
    with pytest.raises(UnsupportedError, match="rmsnorm: eps="):
        ops.rmsnorm(x, None, number)
    with pytest.raises(UnsupportedError, match="swiglu: limit="):
        ops.swiglu(x, limit=number)


def test_compiled_with_changing_numbers(device):
    """Whole graphs; values and gradients as in eager mode (torch makes a graph a number, as for its own norms)."""
    backend = "inductor" if device.type == "cuda" else "aot_eager"

    def function(x, r, g, eps, limit, alpha):
        y, s = ops.rmsnorm_residual(x, r, g, eps)
        return ops.swiglu(ops.layernorm(y, g, None, eps), s, limit=limit, alpha=alpha)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    for rows, eps, limit, alpha in (
        (4, 1e-6, 0.5, 1.7),
        (5, 1e-3, 1.25, 1.5),
        (7, 0.125, 2.5, 0.5),
        (9, 3.0, 7.0, 2.0),
    ):
        results = []
        for f in (function, compiled):
            torch.manual_seed(rows)
            inputs = [leaf(rows, 16, device=device), leaf(rows, 16, device=device), leaf(16, device=device)]
            out = f(*inputs, eps, limit, alpha)
            results.append([out, *torch.autograd.grad(out, inputs, torch.ones_like(out))])
        for a, b in zip(*results):
            assert_close(b, a, dtype=torch.float32)


# --- checkpoints and saved tensors ----------------------------------------------------------------------------------


def block(x, r, gamma, probs):
    y, s = ops.rmsnorm_residual(x, r, gamma)
    y = ops.layernorm(y, gamma, gamma)
    return ops.swiglu_with_probs(torch.cat([y, s], -1), probs) + ops.geglu(y, s)


@pytest.mark.parametrize("how", ["non-reentrant", "no early stop", "reentrant", "save_on_cpu"])
def test_checkpointed_bit_for_bit(backend, device, how):
    def gradients(run):
        torch.manual_seed(5)
        inputs = [leaf(6, 16, device=device), leaf(6, 16, device=device), leaf(16, device=device)]
        inputs.append(leaf(6, device=device))
        out = run(*inputs)
        out.square().sum().backward()
        return [out.detach(), *(t.grad for t in inputs)]

    def run(*inputs):
        if how == "save_on_cpu":
            with torch.autograd.graph.save_on_cpu():
                return block(*inputs)
        with torch.utils.checkpoint.set_checkpoint_early_stop(how != "no early stop"):
            return checkpoint(block, *inputs, use_reentrant=how == "reentrant")

    for a, b in zip(gradients(block), gradients(run)):
        assert torch.equal(a, b)


def test_saved_tensors_are_unpacked_once(backend, device):
    packed, unpacked = [], []
    inputs = [leaf(6, 16, device=device), leaf(6, 16, device=device), leaf(16, device=device), leaf(6, device=device)]

    def pack(tensor):
        packed.append(tensor)
        return len(packed) - 1

    def unpack(index):
        unpacked.append(index)
        return packed[index]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        out = block(*inputs)
    out.sum().backward()
    assert sorted(unpacked) == list(range(len(packed))) and packed


@pytest.mark.parametrize("function", [lambda x: ops.rmsnorm(x, None), ops.swiglu], ids=["norm", "gate"])
def test_an_input_changed_in_between_is_an_error(device, function):
    x = leaf(4, 16, device=device)
    y = x * 1
    out = function(y)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_meta_and_fake_tensors(kind):
    with FakeTensorMode() if kind == "fake" else nullcontext():
        device = torch.device("meta" if kind == "meta" else "cpu")
        x, r = (torch.empty(3, 4, 16, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        g, p = torch.empty(16, device=device, requires_grad=True), torch.empty(12, device=device, requires_grad=True)
        y, s = ops.rmsnorm_residual(x, r, g)
        out = ops.swiglu(y, ops.layernorm(s, g, g)), ops.geglu_with_probs(x, p)
        assert [tuple(t.shape) for t in out] == [(3, 4, 16), (12, 8)] and out[0].dtype == torch.bfloat16
        gradients = torch.autograd.grad(out, [x, r, g, p], [torch.empty_like(o) for o in out], create_graph=True)
        for t, gradient in zip((x, r, g, p), gradients):
            assert gradient.shape == t.shape and gradient.dtype == t.dtype and gradient.device == t.device
        second = torch.autograd.grad([t.float().sum() for t in gradients], [x, r, g, p])
        assert [t.shape for t in second] == [t.shape for t in (x, r, g, p)]
