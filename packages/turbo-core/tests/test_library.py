# SPDX-License-Identifier: MIT
"""Gradients of registered ops under every transform: y = x^3, with a first and a second derivative and no third."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from turbo_core import UnsupportedError
from turbo_core.library import Gradient, Refused, register_op

library = torch.library.Library("turbo_core_test", "DEF")


def like(x, *_):
    return torch.empty_like(x)


def save(ctx, inputs, output):
    *saved, ctx.factor = inputs
    ctx.save_for_backward(*saved)


def backward(ctx, dy):
    assert ctx.needs_input_grad == (True, False), "one flag for each argument of the op"
    (x,) = ctx.saved_tensors
    return cube_backward(dy, x, ctx.factor), None


def second(ctx, ddx):
    return *cube_second(ddx, *ctx.saved_tensors, ctx.factor), None


cube_second = register_op(
    library,
    "cube_second(Tensor ddx, Tensor dy, Tensor x, float factor) -> (Tensor, Tensor)",
    lambda ddx, dy, x, factor: (3 * factor * ddx * x * x, 6 * factor * ddx * dy * x),
    lambda ddx, dy, x, factor: (torch.empty_like(x), torch.empty_like(x)),
    Refused("cube", "third derivatives"),
)
cube_backward = register_op(
    library,
    "cube_backward(Tensor dy, Tensor x, float factor) -> Tensor",
    lambda dy, x, factor: 3 * factor * dy * x * x,
    like,
    Gradient(second, save, "cube"),
)
cube_op = register_op(
    library,
    "cube(Tensor x, float factor) -> Tensor",
    lambda x, factor: factor * x**3,
    like,
    Gradient(backward, save, "cube"),
)
sign = register_op(library, "sign(Tensor x) -> Tensor", torch.sign, like)

ops = torch.ops.turbo_core_test


@pytest.fixture(params=["direct", "registered"], autouse=True)
def way(request):
    """Both ways to call the op: they must give the same."""
    global cube
    function = cube_op if request.param == "direct" else ops.cube
    cube = lambda x: function(x, 2.0)  # noqa: E731
    return request.param


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


def test_what_a_transform_leaves_behind_is_unwrapped(way):
    """The function that vjp returns runs when the transform is over, on tensors that it had wrapped."""
    seen = []

    def read(x):
        seen.append(x.data_ptr())  # as a kernel's launch does
        return x * 2.0

    name = f"read_{way}"
    op = register_op(library, f"{name}(Tensor x) -> Tensor", read, like)
    function = op if way == "direct" else getattr(ops, name)

    class Doubled(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * 1.0

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, dy):
            return dy * function(ctx.saved_tensors[0])

    pull = torch.func.vjp(Doubled.apply, X)[1]
    assert torch.equal(pull(torch.ones_like(X))[0], 2 * X) and seen and all(seen)


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


def test_a_constant(way):
    """Nothing is recorded, and what autograd, torch.func and opcheck see is a constant."""
    function = sign if way == "direct" else ops.sign
    x = X.clone().requires_grad_()
    assert not function(x).requires_grad and torch.equal(function(x), X.sign())
    assert torch.equal(torch.func.grad(lambda x: (function(x) * x).sum())(X), X.sign())
    assert torch.equal(torch.func.vmap(function)(X), X.sign())
    torch.library.opcheck(ops.sign.default, (x,))


class Modes(TorchDispatchMode):
    """Which ops of this file a dispatch mode sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "turbo_core_test":
            self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


def dispatched(function):
    """The registered ops that went through torch's dispatcher."""
    with torch.profiler.profile() as profile:
        function()
    return [event.name for event in profile.events() if event.name.startswith("turbo_core_test::")]


def test_eager_calls_go_straight():
    x = X.clone().requires_grad_()
    assert dispatched(lambda: torch.autograd.grad(cube_op(x, 2.0).sum(), x)) == []
    assert dispatched(lambda: ops.cube(X, 2.0)), "the test sees the registered op where it is called"


class Wrapped(torch.Tensor):
    """A subclass that doubles the result of each op."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return 2 * func(*(a.inner if isinstance(a, Wrapped) else a for a in args), **(kwargs or {}))


def test_modes_subclasses_and_tensors_without_data_see_the_registered_op():
    with Modes() as modes:
        torch.autograd.grad(cube_op(leaf := X.clone().requires_grad_(), 2.0).sum(), leaf)
    assert modes.seen == ["turbo_core_test::cube", "turbo_core_test::cube_backward"]
    assert torch.equal(cube_op(Wrapped(X), 2.0), 4 * X**3)
    assert cube_op(X.to("meta"), 2.0).is_meta
    with FakeTensorMode() as mode:
        assert isinstance(cube_op(mode.from_tensor(X), 2.0), FakeTensor)


def test_opcheck():
    torch.library.opcheck(ops.cube.default, (X.clone().requires_grad_(), 2.0))
