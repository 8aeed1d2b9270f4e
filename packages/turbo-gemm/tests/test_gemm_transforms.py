# SPDX-License-Identifier: MIT
"""The products under torch.func, forward mode and double backward: right values, or a refusal by name.

gemm has every derivative that reverse mode can take. A quantised product has first derivatives only: the gradient is
quantised, which has no derivative.
"""

import pytest
import torch
from torch.autograd import forward_ad

import turbo_gemm
from turbo_core import UnsupportedError
from turbo_core.low_precision import Float4QuantConfig
from turbo_testing.metrics import assert_close
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS

CONFIGS = {"gemm": None, **FP8_CONFIGS, **FP4_CONFIGS}
QUANTISED = ["tensorwise-e4m3", "rowwise-hybrid", "blockwise-e4m3", "mx-hybrid", "mxfp4"]
NAMES = ["gemm", *QUANTISED]
LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def product(name):
    """x w^T + bias by one of the ops."""
    if name == "gemm":
        return lambda x, w, bias=None: turbo_gemm.gemm(x, w, trans_b=True, bias=bias)
    config = CONFIGS[name]
    function = turbo_gemm.gemm_fp4 if isinstance(config, Float4QuantConfig) else turbo_gemm.gemm_fp8
    return lambda x, w, bias=None: function(x, w, trans_b=True, config=config, bias=bias)


def op_of(name):
    return "gemm" if name == "gemm" else "gemm_fp4" if name == "mxfp4" else "gemm_fp8"


def operands(device):
    torch.manual_seed(5)
    return (torch.randn(shape, device=device) for shape in ((6, 32), (16, 32), (16,)))


@pytest.fixture(params=NAMES)
def case(request, device):
    """A loss of x, w and bias, the three, and its gradients by backward."""
    x, w, bias = operands(device)

    def loss(x, w, bias):
        return product(request.param)(x, w, bias).square().sum()

    leaves = [t.clone().requires_grad_() for t in (x, w, bias)]
    return request.param, loss, (x, w, bias), torch.autograd.grad(loss(*leaves), leaves)


@pytest.mark.usefixtures("serving")
def test_func_grad(case):
    name, loss, leaves, expected = case
    for got, want in zip(torch.func.grad(loss, (0, 1, 2))(*leaves), expected):
        assert torch.equal(got, want)
    one, *rest = leaves
    assert torch.equal(torch.func.grad(lambda x: loss(x, *rest))(one), expected[0])


def test_vjp(case):
    _, loss, leaves, expected = case
    value, pull = torch.func.vjp(loss, *leaves)
    assert torch.equal(value, loss(*leaves))
    for got, want in zip(pull(torch.tensor(2.0, device=value.device)), expected):
        assert_close(got, 2 * want.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_jacrev(device, name):
    """Row i of the Jacobian is the gradient of output i."""
    x, w, bias = operands(device)
    got = torch.func.jacrev(lambda w: product(name)(x, w, bias)[:, :3])(w)
    leaf = w.clone().requires_grad_()
    y = product(name)(x, leaf, bias)[:, :3]
    for i, j in ((0, 0), (2, 1), (5, 2)):
        (want,) = torch.autograd.grad(y[i, j], leaf, retain_graph=True)
        assert want.any()
        assert torch.equal(got[i, j], want)


@pytest.mark.parametrize("name", NAMES)
def test_vmap_is_a_loop(device, name):
    """Each product of the batch is quantised on its own."""
    x, w, bias = operands(device)
    xs, ws = torch.stack([x, 100 * x, x - 1]), torch.stack([w, w / 9, w + 1])
    multiply = product(name)
    got = torch.func.vmap(multiply, (0, 0, None))(xs, ws, bias)
    assert torch.equal(got, torch.stack([multiply(a, b, bias) for a, b in zip(xs, ws)]))
    got = torch.func.vmap(multiply, (None, 2, None), 1)(x, ws.movedim(0, 2), bias)
    assert torch.equal(got, torch.stack([multiply(x, b, bias) for b in ws], 1))


def test_vmap_of_grad_and_grad_of_vmap(case):
    """Gradients of each sample, and of a sum over samples."""
    _, loss, (x, w, bias), _ = case
    xs = torch.stack([x, x + 1])
    alone = [torch.func.grad(loss, 1)(each, w, bias) for each in xs]
    each = torch.func.vmap(torch.func.grad(loss, 1), (0, None, None))(xs, w, bias)
    assert torch.equal(each, torch.stack(alone))
    together = torch.func.grad(lambda w: torch.func.vmap(lambda x: loss(x, w, bias))(xs).sum())(w)
    assert_close(together, sum(alone).double(), rtol=1e-6, atol=1e-4)
    of_xs = torch.func.grad(lambda xs: torch.func.vmap(lambda x: loss(x, w, bias))(xs).sum())(xs)
    assert torch.equal(of_xs, torch.stack([torch.func.grad(loss)(each, w, bias) for each in xs]))


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("needed", [(True, False, False), (False, True, False), (False, False, True), (True,) * 3])
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
def test_second_derivatives_of_gemm(device, trans_a, trans_b, needed):
    """A penalty on each gradient, for every input that may be asked."""
    shapes = ((4, 3) if trans_a else (3, 4), (5, 4) if trans_b else (4, 5), (5,))
    leaves = [torch.randn(shape, device=device).requires_grad_(need) for shape, need in zip(shapes, needed)]

    def penalty(multiply, a, b, bias):
        wanted = [t for t in (a, b, bias) if t.requires_grad]
        y = multiply(a, b, bias)
        gradients = torch.autograd.grad(y.pow(3).sum(), wanted, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in gradients), wanted)

    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in leaves]
    found = penalty(lambda a, b, bias: turbo_gemm.gemm(a, b, trans_a, trans_b, bias=bias), *leaves)
    wanted = penalty(lambda a, b, bias: (a.t() if trans_a else a) @ (b.t() if trans_b else b) + bias, *exact)
    for got, want in zip(found, wanted):
        assert want.any()
        assert_close(got, want, rtol=1e-3, atol=1e-3 * want.abs().max().item())


def test_third_derivative_of_gemm_by_func(device):
    x, w, _ = operands(device)

    def squared(f):
        return lambda x: torch.func.grad(f)(x).square().sum()

    def thrice(multiply, x, w):
        return torch.func.grad(squared(squared(lambda x: multiply(x, w).pow(4).sum())))(x)

    x, w = x[:2, :4] / 4, w[:3, :4] / 4
    got, want = thrice(product("gemm"), x, w), thrice(lambda x, w: x @ w.t(), x.double(), w.double())
    assert_close(got, want, rtol=1e-3, atol=1e-3 * want.abs().max().item())


@pytest.mark.parametrize("name", QUANTISED)
def test_second_derivatives_of_quantised_products_are_refused(device, name):
    """By the name of the op, also where the penalty is one term among others, whose gradient would look right."""
    x, w, bias = (t.requires_grad_() for t in operands(device))
    multiply = product(name)
    y = multiply(x, w, bias)
    for leaf in (x, w):
        (gradient,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        with pytest.raises(UnsupportedError, match=f"{op_of(name)}: second derivatives are not supported"):
            (y.mean() + gradient.square().sum()).backward(retain_graph=True)
    x, w = x.detach(), w.detach()

    def of_x(x):
        return torch.func.grad(lambda x: multiply(x, w).square().sum())(x).square().sum()

    def of_w(w):
        return torch.func.grad(lambda x: multiply(x, w).sum())(x).square().sum()

    for function, leaf in ((of_x, x), (of_w, w)):
        with pytest.raises(UnsupportedError, match=f"{op_of(name)}: second derivatives are not supported"):
            torch.func.grad(function)(leaf)


@pytest.mark.parametrize("name", NAMES)
def test_create_graph_alone_changes_nothing(device, name):
    x, w, bias = (t.requires_grad_() for t in operands(device))
    y = product(name)(x, w, bias).square().sum()
    plain = torch.autograd.grad(y, (x, w, bias), retain_graph=True)
    for got, want in zip(torch.autograd.grad(y, (x, w, bias), create_graph=True), plain):
        assert torch.equal(got.detach(), want)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_forward_mode_is_refused(device, name, which):
    """Field case: zero tangents without a word."""
    leaves = list(operands(device))
    multiply = product(name)

    def of_one(t):
        return multiply(*leaves[:which], t, *leaves[which + 1 :])

    refused = pytest.raises(UnsupportedError, match=f"{op_of(name)}: forward-mode derivatives .* are not supported")
    with refused:
        torch.func.jvp(of_one, (leaves[which],), (leaves[which],))
    with refused:
        torch.func.hessian(lambda t: of_one(t).square().sum())(leaves[which])
    with forward_ad.dual_level(), refused:
        of_one(forward_ad.make_dual(leaves[which], leaves[which]))


@pytest.mark.parametrize("name", NAMES)
def test_forward_mode_of_something_else(device, name):
    """Inside a level, a product of tensors without tangents runs, and so does its backward."""
    x, w, bias = (t.requires_grad_() for t in operands(device))
    y = product(name)(x, w, bias)
    with forward_ad.dual_level():
        inside = product(name)(x, w, bias)
        gradients = torch.autograd.grad(inside.sum(), (x, w, bias))
    assert torch.equal(inside, y)
    for got, want in zip(gradients, torch.autograd.grad(y.sum(), (x, w, bias))):
        assert torch.equal(got, want)
