# SPDX-License-Identifier: MIT
"""Gradients of registered ops under every transform: y = x^3, with a first and a second derivative and no third."""

from __future__ import annotations

import enum
import warnings
from typing import NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from turbo_core import UnsupportedError
from turbo_core.calls import Spec
from turbo_core.library import Differentiable, OpLibrary, Refused

library = OpLibrary("turbo_core_test")


class Cube(NamedTuple):
    x: torch.Tensor
    factor: float


class CubeBackward(NamedTuple):
    dy: torch.Tensor
    x: torch.Tensor
    factor: float


class CubeSecond(NamedTuple):
    ddx: torch.Tensor
    dy: torch.Tensor
    x: torch.Tensor
    factor: float


class CubeGradients(NamedTuple):
    dy: torch.Tensor
    x: torch.Tensor


class Sign(NamedTuple):
    x: torch.Tensor


def like(call):
    return Spec(call.x.shape, call.x.dtype)


def run_second(call):
    ddx, dy, x, factor = call
    return CubeGradients(3 * factor * ddx * x * x, 6 * factor * ddx * dy * x)


def backward(saved, dy, needs):
    assert needs == Cube(True, False), "one flag for each field of the call"
    return {"x": cube_backward(CubeBackward(dy, *saved))}


def second(saved, ddx, needs):
    return cube_second(CubeSecond(ddx, *saved))._asdict()


cube_second = library.op(
    "cube_second",
    CubeSecond,
    run_second,
    lambda call: CubeGradients(like(call), like(call)),
    Refused("cube", "third derivatives"),
    result=CubeGradients,
)
cube_backward = library.op(
    "cube_backward",
    CubeBackward,
    lambda call: 3 * call.factor * call.dy * call.x * call.x,
    like,
    Differentiable(second, lambda call, result, needs: call, "cube"),
)
cube_call = library.op(
    "cube",
    Cube,
    lambda call: call.factor * call.x**3,
    like,
    Differentiable(backward, lambda call, result, needs: call, "cube"),
)
sign_call = library.op("sign", Sign, lambda call: torch.sign(call.x), like)


def cube_op(x, factor):
    return cube_call(Cube(x, factor))


def sign(x):
    return sign_call(Sign(x))


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

    def read(call):
        seen.append(call.x.data_ptr())  # as a kernel's launch does
        return call.x * 2.0

    name = f"read_{way}"
    op = library.op(name, Sign, read, like)
    function = (lambda x: op(Sign(x))) if way == "direct" else getattr(ops, name)

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


# --- fields and results -----------------------------------------------------------------------------------------------


class Kind(enum.Enum):
    PLAIN = "plain"
    NEGATED = "negated"


class Flags(NamedTuple):
    doubled: bool = False
    shifted: bool = True


class Pair(NamedTuple):
    x: torch.Tensor
    factor: float


class Everything(NamedTuple):
    """Each kind of field that a call may have."""

    pair: Pair
    y: torch.Tensor | None
    n: int
    kind: Kind
    flags: Flags | None
    dtype: torch.dtype | None = None
    out: torch.Tensor | None = None


class Both(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor | None


def run_everything(call):
    assert isinstance(call.kind, Kind) and isinstance(call.pair.factor, float)
    x = call.pair.x * call.pair.factor * call.n * (-1 if call.kind is Kind.NEGATED else 1)
    if call.flags is not None and call.flags.doubled:
        x = 2 * x
    if call.out is not None:
        call.out.add_(x)
    return Both(x, None if call.y is None else call.y + 1)


def specs_of_everything(call):
    return Both(like(call.pair), None if call.y is None else Spec(call.y.shape, call.y.dtype))


def everything_backward(saved, grads, needs):
    pair, n, kind, flags = saved
    dx = None
    if grads.x is not None and needs.pair.x:
        dx = everything(Everything(Pair(grads.x, pair.factor), None, n, kind, flags)).x
    return {"pair_x": dx, "y": grads.y}


everything = library.op(
    "everything",
    Everything,
    run_everything,
    specs_of_everything,
    Differentiable(
        everything_backward, lambda call, result, needs: (call.pair, call.n, call.kind, call.flags), "everything"
    ),
    result=Both,
    omits=("out",),
)
add_everything = library.op("add_everything", Everything, run_everything, None, writes="out")

CALL = Everything(Pair(X, 0.5), X + 1, 3, Kind.NEGATED, Flags(True))


def test_the_schema_comes_from_the_fields():
    fields = "Tensor pair_x, Scalar pair_factor, Tensor? y, SymInt n, str kind, bool[]? flags, ScalarType? dtype"
    assert str(ops.everything.default._schema) == f"turbo_core_test::everything({fields}) -> (Tensor x, Tensor y)"
    assert str(ops.add_everything.default._schema) == (
        f"turbo_core_test::add_everything({fields}, Tensor(a!) out) -> ()"
    )


@pytest.mark.parametrize("y", [X + 1, None], ids=["both", "one"])
def test_results_that_are_none_are_none_on_both_ways(y):
    call = CALL._replace(y=y)
    with Modes() as modes:
        registered = everything(call)
    direct = everything(call)
    assert modes.seen == ["turbo_core_test::everything"]
    for one, other in zip(direct, registered, strict=True):
        assert one is other is None or torch.equal(one, other)
    assert (direct.y is None) is (y is None)


def test_what_stands_for_none_has_no_gradient():
    x = X.clone().requires_grad_()
    found = ops.everything(x, 0.5, None, 3, "plain", None, None)
    assert [part.requires_grad for part in found] == [True, False]


def test_gradients_come_by_name_and_only_where_wanted():
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    result = everything(CALL._replace(pair=Pair(x, 0.5), y=y))
    dx, dy = torch.autograd.grad(result.x.sum() + result.y.sum(), (x, y))
    assert torch.equal(dx, torch.full_like(X, -3.0)) and torch.equal(dy, torch.ones_like(X))
    function = lambda x, y: tuple(everything(CALL._replace(pair=Pair(x, 0.5), y=y)))  # noqa: E731
    assert torch.autograd.gradcheck(function, (x, y)) and torch.autograd.gradgradcheck(function, (x, y))


def test_an_op_that_writes_a_field_returns_nothing():
    for way in (
        add_everything,
        lambda call: ops.add_everything(*call.pair, call.y, 3, "negated", [True, True], None, call.out),
    ):
        out = torch.ones_like(X)
        assert way(CALL._replace(out=out)) is None
        assert torch.equal(out, 1 - 3 * X)


def test_a_compiled_call_is_one_op_for_changing_numbers():
    compiled = torch.compile(
        lambda x, factor, n: everything(CALL._replace(pair=Pair(x, factor), n=n)).x, fullgraph=True, backend="aot_eager"
    )
    for factor, n in ((0.5, 3), (0.25, 4), (2.0, 5)):
        assert torch.equal(compiled(X, factor, n), -2 * factor * n * X)


def test_opcheck_of_everything():
    x = X.clone().requires_grad_()
    torch.library.opcheck(ops.everything.default, (x, 0.5, X + 1, 3, "plain", [True, False], None))


def test_a_field_that_no_op_can_take_is_an_error_when_the_op_is_registered():
    class Odd(NamedTuple):
        x: torch.Tensor
        names: dict

    with pytest.raises(TypeError, match="names: .*dict.* is no type of an argument"):
        library.op("odd", Odd, lambda call: call.x, like)
