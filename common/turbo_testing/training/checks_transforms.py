# SPDX-License-Identifier: MIT
"""Checks of torch.func, forward mode and second derivatives: right, or refused by an error that names the op."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from turbo_core import UnsupportedError
from turbo_testing.training.cases import (
    OpCase,
    Step,
    Tensors,
    as_tuple,
    assert_near,
    assert_same,
    is_wide,
    leaves,
    plain,
    seeds_of,
    step,
)

__all__ = ["CHECKS"]


def _refused(case: OpCase, compute: Callable[[], Any]) -> Any:
    """What ``compute`` gives; None where the op refuses by its name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # vmap by a loop
        try:
            return compute()
        except UnsupportedError as refusal:
            assert case.name in str(refusal), f"the refusal does not name {case.name}: {refusal}"
            return None


def _scalar(case: OpCase, run: Callable[..., Any], tensors: Tensors) -> Callable[..., torch.Tensor]:
    """The differentiable inputs -> sum of outputs times fixed numbers."""
    fixed = {name: tensor for name, tensor in tensors.items() if name not in case.gradients}
    outputs = as_tuple(case.run(**leaves(case, tensors), **case.first_numbers()))
    differentiable = [output.requires_grad for output in outputs]
    seeds = seeds_of([output for output in outputs if output.requires_grad])

    def scalar(*wanted: torch.Tensor) -> torch.Tensor:
        outputs = as_tuple(run(**dict(zip(case.gradients, wanted)), **fixed, **case.first_numbers()))
        found = [output for output, counts in zip(outputs, differentiable) if counts]
        return sum((output * seed).sum() for output, seed in zip(found, seeds))  # type: ignore[return-value]

    return scalar


def _arguments(case: OpCase, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    return tuple(tensors[name].detach() for name in case.gradients)


def func_grad(case: OpCase, device: torch.device) -> None:
    """torch.func.grad gives the gradients of backward."""
    inputs = case.inputs(device)
    positions = tuple(range(len(case.gradients)))
    found = _refused(
        case, lambda: torch.func.grad(_scalar(case, case.run, inputs), positions)(*_arguments(case, inputs))
    )
    if found is not None:
        expected = plain(case, device)
        assert_same(Step((), dict(zip(case.gradients, found))), Step((), expected.gradients), "torch.func.grad")


def vjp(case: OpCase, device: torch.device) -> None:
    """torch.func.vjp likewise."""
    inputs = case.inputs(device)

    def compute() -> Any:
        value, pull = torch.func.vjp(_scalar(case, case.run, inputs), *_arguments(case, inputs))
        return pull(torch.ones_like(value))

    found = _refused(case, compute)
    if found is not None:
        expected = plain(case, device)
        assert_same(Step((), dict(zip(case.gradients, found))), Step((), expected.gradients), "torch.func.vjp")


def vmap(case: OpCase, device: torch.device) -> None:
    """torch.func.vmap over two samples gives each sample's outputs."""
    inputs = case.inputs(device)
    floating = [name for name, tensor in inputs.items() if is_wide(tensor)]
    other = {name: inputs[name] * 0.5 if name in floating else inputs[name] for name in inputs}
    if not floating:
        return
    both = tuple(torch.stack([inputs[name], other[name]]) for name in floating)
    fixed = {name: tensor for name, tensor in inputs.items() if name not in floating}

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return as_tuple(case.run(**dict(zip(floating, tensors)), **fixed, **case.first_numbers()))

    found = _refused(case, lambda: torch.func.vmap(run)(*both))
    if found is not None:
        for number, sample in enumerate((inputs, other)):
            expected = run(*(sample[name] for name in floating))
            assert_near(case, Step(tuple(output[number] for output in found), {}), Step(expected, {}), torch.float32)


def forward_mode(case: OpCase, device: torch.device) -> None:
    """jvp and dual numbers: the tangents of the reference, never silent zeros."""
    inputs = case.inputs(device)
    names = case.gradients or [name for name, tensor in inputs.items() if is_wide(tensor)]
    if not names:
        return
    fixed = {name: tensor for name, tensor in inputs.items() if name not in names}
    arguments = tuple(inputs[name] for name in names)
    tangents = tuple(seeds_of(arguments))

    def of(run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *tensors: as_tuple(run(**dict(zip(names, tensors)), **fixed, **case.first_numbers()))

    def dual() -> Any:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(x, t) for x, t in zip(arguments, tangents)]
            outputs = [o for o in of(case.run)(*duals) if is_wide(o)]
            return [forward_ad.unpack_dual(output).tangent for output in outputs]

    for compute in (lambda: torch.func.jvp(of(case.run), arguments, tangents)[1], dual):
        found = _refused(case, compute)
        if found is None or case.reference is None:
            continue
        doubles = tuple(a.double() for a in arguments), tuple(t.double() for t in tangents)
        expected = torch.func.jvp(of(case.reference), *doubles)[1]
        assert None not in found, "an output without a tangent, where the reference has one"
        assert_near(case, Step(tuple(found), {}), Step(tuple(expected), {}), torch.float32)


def _second(case: OpCase, run: Callable[..., Any], arguments: Sequence[torch.Tensor], scalar: Any) -> Step:
    wanted = [argument.detach().clone().requires_grad_() for argument in arguments]
    first = torch.autograd.grad(scalar(*wanted), wanted, create_graph=True)
    total = sum((gradient.square() * seed).sum() for gradient, seed in zip(first, seeds_of(first)))
    second = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)  # type: ignore[arg-type]
    return Step(tuple(gradient.detach() for gradient in first), dict(zip(case.gradients, second)))


def second_derivatives(case: OpCase, device: torch.device) -> None:
    """A gradient penalty: right where the case says so, else refused by name; asking for a graph alone is no error."""
    inputs = case.inputs(device)
    arguments = _arguments(case, inputs)
    tensors = [argument.clone().requires_grad_() for argument in arguments]
    scalar = _scalar(case, case.run, inputs)
    with_graph = torch.autograd.grad(scalar(*tensors), tensors, create_graph=True)
    expected = plain(case, device)
    found = dict(zip(case.gradients, (gradient.detach() for gradient in with_graph)))
    assert_same(Step((), found), Step((), expected.gradients), "create_graph=True")
    second = _refused(case, lambda: _second(case, case.run, arguments, scalar))
    assert (second is not None) == case.second, f"second derivatives: {'given' if second else 'refused'}"
    if second is None or case.reference is None:
        return
    doubled = {name: t.double() if is_wide(t) else t for name, t in inputs.items()}
    seeds = seeds_of([o for o in as_tuple(case.run(**leaves(case, inputs), **case.first_numbers())) if o.requires_grad])

    def reference(*wanted: torch.Tensor) -> torch.Tensor:
        fixed = {name: tensor for name, tensor in doubled.items() if name not in case.gradients}
        outputs = as_tuple(case.reference(**dict(zip(case.gradients, wanted)), **fixed, **case.first_numbers()))  # type: ignore[misc]
        return sum((output * seed.double()).sum() for output, seed in zip(outputs, seeds))  # type: ignore[return-value]

    exact = _second(case, case.run, _arguments(case, doubled), reference)
    assert_near(case, second, exact, torch.float32, factor=10)


def per_sample_gradients(case: OpCase, device: torch.device) -> None:
    """vmap of grad over two samples."""
    inputs = case.inputs(device)
    both = tuple(torch.stack([inputs[name], inputs[name] * 0.5]) for name in case.gradients)
    positions = tuple(range(len(case.gradients)))
    scalar = _scalar(case, case.run, inputs)
    found = _refused(case, lambda: torch.func.vmap(torch.func.grad(scalar, positions))(*both))
    if found is None:
        return
    for number, factor in enumerate((1.0, 0.5)):
        sample = {name: t * factor if name in case.gradients else t for name, t in inputs.items()}
        expected = step(case, leaves(case, sample)).gradients
        sample_gradients = {n: g[number] for n, g in zip(case.gradients, found)}
        assert_near(case, Step((), sample_gradients), Step((), expected), torch.float32)


CHECKS: dict[str, Callable[[OpCase, torch.device], None]] = {
    check.__name__: check for check in (func_grad, vjp, vmap, forward_mode, second_derivatives, per_sample_gradients)
}
