# SPDX-License-Identifier: MIT
"""Gradients of registered ops under every transform: y = x^3, with a first and a second derivative and no third."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from turbo_core import UnsupportedError
from turbo_core.library import refuse_gradient, register_gradient, without_gradient

library = torch.library.Library("turbo_core_test", "DEF")
library.define("cube(Tensor x, float factor) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
library.define("cube_backward(Tensor dy, Tensor x, float factor) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
library.define("cube_second(Tensor ddx, Tensor dy, Tensor x, float factor) -> (Tensor, Tensor)")
library.impl("cube", lambda x, factor: factor * x**3, "CompositeExplicitAutograd")
library.impl("cube_backward", lambda dy, x, factor: 3 * factor * dy * x * x, "CompositeExplicitAutograd")
library.impl(
    "cube_second",
    lambda ddx, dy, x, factor: (3 * factor * ddx * x * x, 6 * factor * ddx * dy * x),
    "CompositeExplicitAutograd",
)
library.define("sign(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
library.impl("sign", torch.sign, "CompositeExplicitAutograd")
without_gradient(library, "turbo_core_test::sign")
for name in ("cube", "cube_backward", "sign"):
    torch.library.register_fake(f"turbo_core_test::{name}", lambda x, *_: torch.empty_like(x), lib=library)

ops = torch.ops.turbo_core_test
cube = partial(ops.cube, factor=2.0)


def save(ctx, inputs, output):
    *saved, ctx.factor = inputs
    ctx.save_for_backward(*saved)


def backward(ctx, dy):
    assert ctx.needs_input_grad == (True, False), "one flag for each argument of the op"
    (x,) = ctx.saved_tensors
    return ops.cube_backward(dy, x, ctx.factor), None


def second(ctx, ddx):
    return *ops.cube_second(ddx, *ctx.saved_tensors, ctx.factor), None


register_gradient(library, "turbo_core_test::cube", backward, setup_context=save, name="cube")
register_gradient(library, "turbo_core_test::cube_backward", second, setup_context=save, name="cube")
refuse_gradient(library, "turbo_core_test::cube_second", name="cube", what="third derivatives")

X = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.0, -0.25]], dtype=torch.float64)
FIRST, SECOND = 6 * X**2, 12 * X


@pytest.fixture(autouse=True)
def no_warning_of_slow_loops():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield


def total(x):
    return cube(x).sum()


VIEWS = {
    "backward": lambda: torch.autograd.grad(total(leaf := X.clone().requires_grad_()), leaf)[0],
    "func.grad": lambda: torch.func.grad(total)(X),
    "vjp": lambda: torch.func.vjp(cube, X)[1](torch.ones_like(X))[0],
    "jacrev": lambda: torch.func.jacrev(cube)(X).reshape(6, 6).diagonal().reshape(2, 3),
    "vmap of grad": lambda: torch.func.vmap(torch.func.grad(total))(X),
    "grad of vmap": lambda: torch.func.grad(lambda x: torch.func.vmap(cube)(x).sum())(X),
    "compiled": lambda: torch.autograd.grad(
        torch.compile(total, fullgraph=True, backend="aot_eager")(leaf := X.clone().requires_grad_()), leaf
    )[0],
    "compiled func.grad": lambda: torch.compile(torch.func.grad(total), fullgraph=True, backend="aot_eager")(X),
    "checkpoint": lambda: torch.autograd.grad(
        checkpoint(total, leaf := X.clone().requires_grad_(), use_reentrant=False), leaf
    )[0],
}


@pytest.mark.parametrize("view", VIEWS)
def test_first_derivative(view):
    assert torch.equal(VIEWS[view](), FIRST)


def test_values_under_vmap():
    assert torch.equal(torch.func.vmap(cube)(X), 2 * X**3)


def double_backward():
    x = X.clone().requires_grad_()
    (dx,) = torch.autograd.grad(total(x), x, create_graph=True)
    return torch.autograd.grad(dx.sum(), x)[0]


SECONDS = {
    "double backward": double_backward,
    "grad of grad": lambda: torch.func.grad(lambda x: torch.func.grad(total)(x).sum())(X),
    "jacrev of grad": lambda: torch.func.jacrev(torch.func.grad(total))(X).reshape(6, 6).diagonal().reshape(2, 3),
}


@pytest.mark.parametrize("view", SECONDS)
def test_second_derivative(view):
    assert torch.equal(SECONDS[view](), SECOND)


def test_third_derivatives_are_refused_by_name():
    x = X.clone().requires_grad_()
    (dx,) = torch.autograd.grad(total(x), x, create_graph=True)
    (ddx,) = torch.autograd.grad(dx.sum(), x, create_graph=True)
    assert torch.equal(ddx, SECOND), "asking for a graph alone is no error"
    with pytest.raises(UnsupportedError, match="cube: third derivatives are not supported"):
        ddx.sum().backward()
    grad = torch.func.grad
    with pytest.raises(UnsupportedError, match="cube: third derivatives are not supported"):
        grad(lambda x: grad(lambda x: grad(total)(x).sum())(x).sum())(X)


def dual(x):
    with torch.autograd.forward_ad.dual_level():
        return cube(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))


FORWARD_MODE = {
    "jvp": lambda: torch.func.jvp(cube, (X,), (torch.ones_like(X),)),
    "jacfwd": lambda: torch.func.jacfwd(cube)(X),
    "hessian": lambda: torch.func.hessian(total)(X),
    "dual numbers": lambda: dual(X),
    "dual numbers that require a gradient": lambda: dual(X.clone().requires_grad_()),
}


@pytest.mark.parametrize("view", FORWARD_MODE)
def test_forward_mode_is_refused_by_name(view):
    with pytest.raises(UnsupportedError, match="cube: forward-mode derivatives"):
        FORWARD_MODE[view]()


def test_without_gradients_nothing_is_recorded():
    x = X.clone().requires_grad_()
    with torch.no_grad():
        assert cube(x).grad_fn is None
    with torch.inference_mode():
        assert torch.equal(cube(x), 2 * X**3)
    assert cube(X).grad_fn is None


def test_without_gradient():
    """Nothing is recorded, and what autograd, torch.func and opcheck see is a constant."""
    x = X.clone().requires_grad_()
    assert not ops.sign(x).requires_grad and torch.equal(ops.sign(x), X.sign())
    assert torch.equal(torch.func.grad(lambda x: (ops.sign(x) * x).sum())(X), X.sign())
    assert torch.equal(torch.func.vmap(ops.sign)(X), X.sign())
    torch.library.opcheck(ops.sign.default, (x,))


def test_opcheck():
    torch.library.opcheck(ops.cube.default, (X.clone().requires_grad_(), 2.0))
