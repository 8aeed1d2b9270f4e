# SPDX-License-Identifier: MIT
"""Second derivatives of every op, and torch.func, against float64 autograd of the formulas, on every backend."""

import itertools

import pytest
import torch

from turbo_core import GlobalBackendManager, UnsupportedError
from turbo_norm_act import geglu, geglu_with_probs, layernorm, rmsnorm, rmsnorm_residual, swiglu, swiglu_with_probs
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

cases = load("turbo-norm-act")

T, D = 5, 12
MASK = torch.tensor([1, 0, 2, 1, 0])


@pytest.fixture(params=["TORCH", "TRITON"])
def backend(request):
    GlobalBackendManager.set_norm_act_backend(request.param)
    return request.param


def halves(x, interleaved=False):
    return (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)


def residual64(x, r, g):
    return cases.norm(x + r, g, None, 1e-3), x + r


# name: (shapes of the inputs, the op, its formula in float64); outputs are a tensor or a tuple
OPS = {
    "rmsnorm": ([(T, D), (D,)], lambda x, g: rmsnorm(x, g, 1e-3), lambda x, g: cases.norm(x, g, None, 1e-3)),
    "rmsnorm zero-centred": (
        [(T, D), (D,)],
        lambda x, g: rmsnorm(x, g, 1e-3, zero_centered=True),
        lambda x, g: cases.norm(x, g, None, 1e-3, zero_centered=True),
    ),
    "rmsnorm bare": ([(2, T, D)], lambda x: rmsnorm(x, None), lambda x: cases.norm(x)),
    "rmsnorm_residual": ([(T, D), (T, D), (D,)], lambda x, r, g: rmsnorm_residual(x, r, g, 1e-3), residual64),
    "layernorm": (
        [(T, D), (D,), (D,)],
        lambda x, g, b: layernorm(x, g, b, 1e-3),
        lambda x, g, b: cases.norm(x, g, b, 1e-3, center=True),
    ),
    "layernorm bare": (
        [(T, D)],
        lambda x: layernorm(x, None, None),
        lambda x: cases.norm(x, None, None, 1e-5, center=True),
    ),
    "swiglu": ([(T, 2 * D)], swiglu, lambda x: cases.glu(*halves(x), "silu")),
    "swiglu two": ([(T, D), (T, D)], swiglu, lambda x, u: cases.glu(x, u, "silu")),
    "swiglu clamped": (
        [(T, 2 * D)],
        lambda x: swiglu(x, limit=0.7, alpha=1.3, interleaved=True),
        lambda x: cases.glu(*halves(x, True), "clamped", limit=0.7, alpha=1.3),
    ),
    "swiglu clamp_limit": (
        [(T, 2 * D)],
        lambda x: swiglu(x, clamp_limit=0.7),
        lambda x: cases.glu(*halves(x), "silu limited", limit=0.7),
    ),
    "geglu": ([(T, 2 * D)], geglu, lambda x: cases.glu(*halves(x), "gelu")),
    "geglu tanh": (
        [(T, D), (T, D)],
        lambda x, u: geglu(x, u, approximate="tanh"),
        lambda x, u: cases.glu(x, u, "gelu_tanh"),
    ),
    "swiglu_with_probs": (
        [(T, 2 * D), (T,)],
        lambda x, p: swiglu_with_probs(x, p, MASK.to(x.device)),
        lambda x, p: cases.glu(*halves(x), "silu", p, MASK.to(x.device)),
    ),
    "geglu_with_probs": (
        [(T, 2 * D), (T,)],
        lambda x, p: geglu_with_probs(x, p),
        lambda x, p: cases.glu(*halves(x), "gelu", p),
    ),
    "geglu_with_probs clamp_limit": (
        [(T, 2 * D), (T, 1)],
        lambda x, p: geglu_with_probs(x, p, None, 0.9),
        lambda x, p: cases.glu(*halves(x), "gelu limited", p.squeeze(-1), limit=0.9),
    ),
}


def draw(name, device, dtype=torch.float32):
    torch.manual_seed(29)
    return [torch.randn(shape, device=device).to(dtype).requires_grad_() for shape in OPS[name][0]]


def tuple_of(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def directions(tensors, seed):
    """A fixed random tensor like each, the same for the op and for float64."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(t.shape, generator=generator).to(t.device, t.dtype) for t in tensors]


def derivatives(function, inputs, order):
    """Gradients up to ``order`` of a weighted sum, each weighted anew; of the first weights as well."""
    outputs = tuple_of(function(*inputs))
    weights = [w.requires_grad_() for w in directions(outputs, 1)]
    leaves = [*inputs, *weights]
    found, total = [], sum((o * w).sum() for o, w in zip(outputs, weights))
    for step in range(order):
        keep = step + 1 < order
        gradients = torch.autograd.grad(total, leaves, create_graph=keep, allow_unused=True, materialize_grads=True)
        found.append([gradient.detach() for gradient in gradients])
        total = sum((g * w).sum() for g, w in zip(gradients, directions(gradients, 2 + step))) if keep else None
    return found


@pytest.mark.parametrize("name", OPS)
def test_derivatives_to_the_third(backend, device, name):
    inputs = draw(name, device)
    _, op, formula = OPS[name]
    found = derivatives(op, inputs, 3)
    expected = derivatives(formula, cases.float64(*inputs), 3)
    for order, (ours, theirs) in enumerate(zip(found, expected), 1):
        for i, (a, b) in enumerate(zip(ours, theirs)):
            scale = max(1.0, float(b.abs().max()))
            assert_close(a / scale, b / scale, rtol=1e-4, atol=2e-5, what=f"{name}: order {order}, leaf {i}")
    assert any(bool(gradient.any()) for gradient in expected[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["rmsnorm_residual", "layernorm", "swiglu_with_probs", "geglu tanh"])
def test_sixteen_bits(backend, device, name, dtype):
    inputs = draw(name, device, dtype)
    _, op, formula = OPS[name]
    _, found = derivatives(op, inputs, 2)
    _, expected = derivatives(formula, cases.float64(*inputs), 2)
    for i, (a, b) in enumerate(zip(found, expected)):
        scale = max(1.0, float(b.abs().max()))
        assert_close(a / scale, b / scale, rtol=4e-2, atol=4e-2, what=f"{name}: leaf {i}")


@pytest.mark.parametrize("name", OPS)
def test_create_graph_changes_no_bit(backend, device, name):
    inputs = draw(name, device)
    outputs = tuple_of(OPS[name][1](*inputs))
    weights = directions(outputs, 1)
    plain = torch.autograd.grad(outputs, inputs, weights, retain_graph=True)
    graphed = torch.autograd.grad(outputs, inputs, weights, create_graph=True)
    for a, b in zip(plain, graphed):
        assert torch.equal(a, b) and b.requires_grad and not a.requires_grad


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm_residual", "swiglu_with_probs", "swiglu two"])
def test_second_derivatives_of_every_subset(device, name):
    """Frozen inputs get none, and change nothing for the others."""
    everything = draw(name, device)
    _, op, formula = OPS[name]
    for frozen in itertools.product([False, True], repeat=len(everything)):
        if all(frozen):
            continue
        results = []
        for function, tensors in ((op, everything), (formula, cases.float64(*everything))):
            tensors = [t.detach().requires_grad_(not f) for t, f in zip(tensors, frozen)]
            wanted = [t for t in tensors if t.requires_grad]
            outputs = tuple_of(function(*tensors))
            total = sum((o.square() * w).sum() for o, w in zip(outputs, directions(outputs, 1)))
            first = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True, materialize_grads=True)
            norm = sum(g.square().sum() for g in first)
            results.append(torch.autograd.grad(norm, wanted, allow_unused=True, materialize_grads=True))
        for a, b in zip(*results):
            scale = max(1.0, float(b.abs().max()))
            assert_close(a / scale, b / scale, rtol=1e-4, atol=2e-5, what=f"{name}, frozen {frozen}")


def test_gradient_penalty(backend, device):
    """The norm of the gradient with respect to the input, as a loss of the weights (pytorch issue 116350)."""
    torch.manual_seed(0)
    x = torch.randn(4, 8, device=device)
    w1, w2, gamma = (torch.randn(shape, device=device) for shape in ((8, 8), (8, 1), (8,)))

    def penalty(norm, gate, x, w1, w2, gamma):
        hidden = gate(torch.cat([norm(x @ w1, gamma)] * 2, -1)) @ w2
        (gradient,) = torch.autograd.grad(hidden.sum(), [x], create_graph=True)
        return (gradient.norm(dim=-1) - 1).square().sum()

    leaves = [t.clone().requires_grad_() for t in (x, w1, w2, gamma)]
    wide = cases.float64(*leaves)
    found = penalty(rmsnorm, swiglu, *leaves)
    expected = penalty(lambda x, g: cases.norm(x, g), lambda x: cases.glu(*halves(x), "silu"), *wide)
    assert_close(found, expected, dtype=torch.float32)
    for a, b in zip(torch.autograd.grad(found, leaves[1:]), torch.autograd.grad(expected, wide[1:])):
        assert_close(a, b, rtol=1e-3, atol=1e-3)


# --- torch.func -----------------------------------------------------------------------------------------------------


def weighted(function):
    """A scalar of the outputs, the same for the op and for float64."""

    def total(*inputs):
        outputs = tuple_of(function(*inputs))
        return sum((o * w).sum() for o, w in zip(outputs, directions(outputs, 1)))

    return total


@pytest.mark.parametrize("name", OPS)
def test_func_grad_and_hessian(device, name):
    inputs = [t.detach() for t in draw(name, device)]
    wide = [t.double() for t in inputs]
    _, op, formula = OPS[name]
    every = tuple(range(len(inputs)))
    found = torch.func.grad(weighted(op), every)(*inputs)
    expected = torch.func.grad(weighted(formula), every)(*wide)
    for a, b in zip(found, expected):
        assert_close(a, b, rtol=1e-4, atol=1e-4, what=name)
    hessian = torch.func.jacrev(torch.func.grad(weighted(op)))(*inputs)
    hessian64 = torch.func.jacrev(torch.func.grad(weighted(formula)))(*wide)
    assert_close(hessian, hessian64, rtol=1e-3, atol=1e-3, what=f"{name}: hessian")
    jacobian, jacobian64 = torch.func.jacrev(op)(*inputs), torch.func.jacrev(formula)(*wide)
    for a, b in zip(tuple_of(jacobian), tuple_of(jacobian64)):
        assert_close(a, b, rtol=1e-4, atol=1e-4, what=f"{name}: jacobian")


@pytest.mark.parametrize("name", ["rmsnorm", "rmsnorm_residual", "layernorm", "swiglu", "swiglu two"])
def test_vmap_of_values_and_gradients(device, name):
    """Each sample as by itself: per-sample gradients of shared weights."""
    inputs = [t.detach() for t in draw(name, device)]
    samples = [torch.stack([t, t * 0.5, -t]) if t.dim() == 2 else t for t in inputs]
    dims = tuple(0 if t.dim() == 2 else None for t in inputs)
    _, op, formula = OPS[name]
    found, expected = torch.vmap(op, dims)(*samples), torch.vmap(formula, dims)(*[t.double() for t in samples])
    for a, b in zip(tuple_of(found), tuple_of(expected)):
        assert_close(a, b, dtype=torch.float32)
    every = tuple(range(len(inputs)))
    found = torch.vmap(torch.func.grad(lambda *t: sum(o.square().sum() for o in tuple_of(op(*t))), every), dims)
    expected = torch.vmap(torch.func.grad(lambda *t: sum(o.square().sum() for o in tuple_of(formula(*t))), every), dims)
    for a, b in zip(found(*samples), expected(*[t.double() for t in samples])):
        assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", OPS)
def test_forward_mode_is_refused_by_name(device, name):
    inputs = tuple(t.detach() for t in draw(name, device))
    tangents = tuple(torch.ones_like(t) for t in inputs)
    with pytest.raises(UnsupportedError, match=name.split()[0].removesuffix("_with_probs")):
        torch.func.jvp(OPS[name][1], inputs, tangents)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(UnsupportedError, match="forward-mode"):
        OPS[name][1](*(torch.autograd.forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents)))
