# SPDX-License-Identifier: MIT
"""The matrix of training loops finds what it is there for: a sound op passes every check, each broken one fails."""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from turbo_core.autocast import without_autocast
from turbo_core.errors import UnsupportedError
from turbo_core.registration import Gradient, registered_op
from turbo_testing.training import MODULE_CHECKS, OP_CHECKS, ModuleCase, OpCase, floats, run_check
from turbo_testing.training.matrix import GPU, applies

CPU = torch.device("cpu")
WIDTH = 5

# --- y = x w + shift, as a registered op whose faults can be switched on ----------------------------------------------

FAULTS: set[str] = set()
library = torch.library.Library("turbo_fake", "DEF")


def multiply(x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x y in float32, rounded to ``dtype``; autocast is switched off inside."""
    with nullcontext() if "no autocast guard" in FAULTS else without_autocast(x.device):
        return (x.float() @ y.float()).to(dtype)


def forward(x: torch.Tensor, w: torch.Tensor, shift: float) -> torch.Tensor:
    if "writes to its input" in FAULTS and x.shape[0]:
        x[0].mul_(2.0)
    y = multiply(x, w, torch.float32) + shift
    if "constant of the default dtype" in FAULTS:
        y = y * torch.tensor(1.1, device="cpu")
    if "drops the last row" in FAULTS and x.shape[0] > 1:
        y[-1] = 0.0
    if "random" in FAULTS:
        y = y + torch.rand(())
    if "transposed output" in FAULTS:
        y = y.t().contiguous().t()
    return y.to(x.dtype)


def backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if "assumes a contiguous gradient" in FAULTS:
        dy = dy.as_strided(dy.shape, (dy.shape[1], 1)) if dy.untyped_storage().nbytes() >= 4 * dy.numel() else dy
    return multiply(dy, w.t(), x.dtype), multiply(x.t(), dy, w.dtype)


def save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    if "saved on the side" in FAULTS:
        ctx.tensors = inputs[:2]
    else:
        ctx.save_for_backward(*inputs[:2])


def gradient(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
    if "saved on the side" in FAULTS:
        x, w = ctx.tensors
    elif "saved tensors read twice" in FAULTS:
        x, w = ctx.saved_tensors[0], ctx.saved_tensors[1]
    else:
        x, w = ctx.saved_tensors
    if "second derivative forgotten" in FAULTS:
        x, w = x.detach(), w.detach()
    dx, dw = product_backward(dy, x, w)
    if "frozen weight" in FAULTS and not ctx.needs_input_grad[1]:
        dx = torch.zeros_like(dx)
    return dx if ctx.needs_input_grad[0] else None, dw if ctx.needs_input_grad[1] else None, None


def save_all(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def second(ctx: Any, ddx: torch.Tensor, ddw: torch.Tensor) -> tuple[torch.Tensor, ...]:
    dy, x, w = ctx.saved_tensors
    return ddx @ w + x @ ddw, dy @ ddw.t(), ddx.t() @ dy


def fake_forward(x: torch.Tensor, w: torch.Tensor, shift: float) -> torch.Tensor:
    return x.new_empty((x.shape[0], w.shape[1]))


def fake_backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), w.new_empty(w.shape)


product_backward = registered_op(
    library,
    "product_backward(Tensor dy, Tensor x, Tensor w) -> (Tensor, Tensor)",
    backward,
    fake_backward,
    Gradient(second, save_all, "product"),
)
product_op = registered_op(
    library,
    "product(Tensor x, Tensor w, float shift) -> Tensor",
    forward,
    fake_forward,
    Gradient(gradient, save, "product"),
)


class _Registered(torch.autograd.Function):
    """What torch.library's own registration does under forward mode: nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, shift: float) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return forward(x, w, shift)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        return *product_backward(dy, *ctx.saved_tensors), None

    @staticmethod
    def jvp(ctx: Any, dx: torch.Tensor | None, dw: torch.Tensor | None, _: None) -> torch.Tensor:
        return torch.zeros(6, WIDTH)


@functools.cache
def remembered(rows: int) -> list[float]:
    """Where a broken op keeps the first number that it was called with."""
    return []


def product(x: torch.Tensor, w: torch.Tensor, shift: Any = 0.25) -> torch.Tensor:
    """The public function: autocast decides the dtypes here."""
    if "keeps a default dtype" in FAULTS:
        torch.set_default_dtype(torch.float64)
    if "reads the host" in FAULTS and x.numel() and float(x.abs().amax()) > 1e30:
        raise UnsupportedError("product: x is too large")
    if "asks math for a number" in FAULTS and not math.isfinite(shift):
        raise UnsupportedError(f"product: shift={shift}")
    if "number of the first call" in FAULTS:
        seen = remembered(0)
        seen.append(shift)
        shift = seen[0]
    if "cast by nobody" not in FAULTS and torch.is_autocast_enabled("cpu") and x.device.type == "cpu":
        dtype = torch.get_autocast_dtype("cpu")
        x, w = x.to(dtype), w.to(dtype)
    if "specialised on rows" in FAULTS and x.shape[0] % 2:
        x = x * 1.0
    if "no forward mode" in FAULTS:
        return _Registered.apply(x, w, shift)
    return product_op(x, w, float(shift) if not torch.compiler.is_compiling() else shift)


def make(rows: int, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    return {
        "x": floats(rows, WIDTH + 2, dtype=dtype, device=device),
        "w": floats(WIDTH + 2, WIDTH, dtype=dtype, device=device),
    }


def reference(x: torch.Tensor, w: torch.Tensor, shift: float = 0.25) -> torch.Tensor:
    return x @ w + shift


CASE = OpCase(
    "product", product, make, ("x", "w"), reference, cast=("x", "w"), numbers={"shift": (0.25, 0.5)}, second=True
)


@pytest.fixture(autouse=True)
def sound() -> Any:
    FAULTS.clear()
    remembered.cache_clear()
    yield
    FAULTS.clear()
    torch.compiler.reset()


@pytest.mark.parametrize("check", [check for check in OP_CHECKS if check not in GPU and applies(check, CASE)])
def test_a_sound_op_passes(check):
    run_check(check, CASE, CPU)


BROKEN = {
    "saved tensors read twice": ["checkpoint_non_reentrant", "saved_tensors"],
    "saved on the side": ["saved_tensors", "writes_in_between"],
    "no autocast guard": ["autocast_inside"],
    "cast by nobody": ["autocast_casts"],
    "second derivative forgotten": ["second_derivatives"],
    "keeps a default dtype": ["values", "modes", "without_data"],
    "constant of the default dtype": ["values", "settings"],
    "assumes a contiguous gradient": ["gradient_layouts"],
    "frozen weight": ["subsets"],
    "reads the host": ["without_data", "compile_static", "fx", "export"],
    "writes to its input": ["input_layouts"],
    "drops the last row": ["values"],
    "random": ["repeat", "checkpoint_non_reentrant", "checkpoint_reentrant"],
    "transposed output": ["without_data", "opcheck"],
    "asks math for a number": ["compile_numbers"],
    "number of the first call": ["compile_numbers"],
    "specialised on rows": ["compile_dynamic"],
    "no forward mode": ["forward_mode", "func_grad", "vjp"],
}


@pytest.mark.parametrize("fault, check", [(fault, check) for fault, checks in BROKEN.items() for check in checks])
def test_a_broken_op_fails(fault, check):
    FAULTS.add(fault)
    with pytest.raises(Exception) as failure:
        run_check(check, CASE, CPU)
    assert not isinstance(failure.value, KeyError), "a check of that name"
    assert torch.get_default_dtype() is torch.float32, "the matrix puts back what the op left"


# --- modules ----------------------------------------------------------------------------------------------------------


class Layer(torch.nn.Linear):
    """A sound module whose faults can be switched on."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(WIDTH + 2, WIDTH, bias=False, device=device)
        if "parameter kept aside" in FAULTS:
            object.__setattr__(self, "kept", self.weight)

    def __deepcopy__(self, memo: Any) -> Any:
        if "copies share memory" not in FAULTS:
            made = Layer(self.weight.device)
            made.weight = torch.nn.Parameter(self.weight.detach().clone(), self.weight.requires_grad)
            return made
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor) or x.dim() == 0:
            raise UnsupportedError(f"Layer: x is {x!r}")
        weight = self.kept if "parameter kept aside" in FAULTS else self.weight
        if "data of the parameter" in FAULTS:
            weight = weight.data
        if "needs data" in FAULTS and float(weight.sum()) == 0.5:
            raise UnsupportedError("Layer: weight")
        return product(x, weight.t(), 0.0)


LAYER = ModuleCase(
    "Layer",
    Layer,
    lambda device: (floats(6, WIDTH + 2, dtype=torch.float32, device=device),),
    lambda device: torch.nn.Linear(WIDTH + 2, WIDTH, bias=False, device=device),
)


@pytest.mark.parametrize("check", MODULE_CHECKS)
def test_a_sound_module_passes(check):
    run_check(check, LAYER, CPU)


BROKEN_MODULES = {
    "parameter kept aside": ["functional", "meta_materialisation"],
    "copies share memory": ["copies"],
    "data of the parameter": ["stock", "hooks", "checkpointed"],
    "needs data": ["meta_materialisation"],
    "saved tensors read twice": ["checkpointed"],
}


@pytest.mark.parametrize("fault, check", [(f, check) for f, checks in BROKEN_MODULES.items() for check in checks])
def test_a_broken_module_fails(fault, check):
    FAULTS.add(fault)
    with pytest.raises(Exception) as failure:
        run_check(check, LAYER, CPU)
    assert not isinstance(failure.value, KeyError), "a check of that name"


def test_a_skip_must_name_a_check():
    from turbo_testing.training.matrix import _parameters

    case = OpCase("product", product, make, without={"no such check": "because"})
    with pytest.raises(ValueError, match="no such check"):
        list(_parameters([case], OP_CHECKS, ("default",)))
