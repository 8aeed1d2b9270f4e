# SPDX-License-Identifier: MIT
"""Checks of modules: what training code does to parameters, state and hooks."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from turbo_core import UnsupportedError
from turbo_testing.metrics import assert_close, assert_snr
from turbo_testing.training.cases import ModuleCase, Step, as_tuple, assert_same, is_wide, seeds_of

__all__ = ["CHECKS"]


def _made(case: ModuleCase, device: torch.device) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(31)
        return case.make(device)


def _inputs(case: ModuleCase, device: torch.device) -> tuple[torch.Tensor, ...]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(32)
        tensors = case.inputs(device)
    return tuple(t.detach().requires_grad_(is_wide(t)) for t in tensors)


def _step(module: Callable[..., Any], inputs: tuple[torch.Tensor, ...], parameters: dict[str, Any]) -> Step:
    """Outputs, gradients of the inputs by number and of the parameters by name."""
    outputs = [output for output in as_tuple(module(*inputs)) if output.requires_grad]
    wanted = {str(n): t for n, t in enumerate(inputs) if t.requires_grad}
    wanted |= {name: p for name, p in parameters.items() if p.requires_grad}
    found = torch.autograd.grad(outputs, list(wanted.values()), seeds_of(outputs), allow_unused=True)
    return Step(tuple(output.detach() for output in outputs), dict(zip(wanted, found)))


def _of(case: ModuleCase, module: torch.nn.Module, device: torch.device) -> Step:
    return _step(module, _inputs(case, device), dict(module.named_parameters()))


def stock(case: ModuleCase, device: torch.device) -> None:
    """The same state dict in torch's own module: the same outputs and gradients, within rounding or the SNR."""
    module, other = _made(case, device), case.stock(device)  # type: ignore[misc]
    other.load_state_dict(module.state_dict())
    assert {n: (p.shape, p.dtype) for n, p in module.named_parameters()} == {
        n: (p.shape, p.dtype) for n, p in other.named_parameters()
    }
    found, expected = _of(case, module, device), _of(case, other, device)
    pairs = {**{f"output {n}": p for n, p in enumerate(zip(found.outputs, expected.outputs, strict=True))}}
    pairs |= {n: (found.gradients[n], value) for n, value in expected.gradients.items()}
    for name, (one, value) in pairs.items():
        assert one is not None and value is not None, name
        if case.snr is None:
            assert_close(one, value, rtol=1e-4, atol=1e-4, what=name)
        else:
            assert_snr(one, value, case.snr, name)


def copies(case: ModuleCase, device: torch.device) -> None:
    """deepcopy, pickle and torch.save make modules that compute the same and share nothing."""
    module = _made(case, device)
    expected = _of(case, module, device)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    made = {
        "deepcopy": copy.deepcopy(module),
        "pickle": pickle.loads(pickle.dumps(module)),
        "torch.save": torch.load(buffer, weights_only=False),
    }
    for what, other in made.items():
        assert type(other) is type(module) and repr(other) == repr(module), what
        assert_same(_of(case, other, device), expected, what)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert_same(_of(case, module, device), expected, f"the module after its {what} was changed")


def state_dicts(case: ModuleCase, device: torch.device) -> None:
    """save, load strictly (copied and assigned), weights only."""
    module = _made(case, device)
    expected = _of(case, module, device)
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    for assign in (False, True):
        other = case.make(device)
        other.load_state_dict(state, strict=True, assign=assign)
        assert_same(_of(case, other, device), expected, f"load_state_dict(assign={assign})")


def meta_materialisation(case: ModuleCase, device: torch.device) -> None:
    """Made on meta, run there for shapes, then materialised and loaded."""
    module = _made(case, device)
    expected = _of(case, module, device)
    empty = case.make(torch.device("meta"))
    inputs = tuple(t.detach().to("meta").requires_grad_(t.requires_grad) for t in _inputs(case, device))
    shapes = [(o.shape, o.dtype) for o in as_tuple(empty(*inputs)) if o.requires_grad]
    assert shapes == [(o.shape, o.dtype) for o in expected.outputs], f"on meta: {shapes}"
    empty.to_empty(device=device)
    if hasattr(empty, "reset_parameters"):
        empty.reset_parameters()
        assert all(bool(torch.isfinite(p).all()) for p in empty.parameters())
    empty.load_state_dict(module.state_dict())
    assert_same(_of(case, empty, device), expected, "materialised")


def moves(case: ModuleCase, device: torch.device) -> None:
    """.to(dtype) and back, .data, share_memory_, swap_tensors, half of the parameters frozen."""
    module = _made(case, device)
    expected = _of(case, module, device)
    half = copy.deepcopy(module).to(torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in half.parameters())
    outputs = as_tuple(half(*(t.detach().to(torch.bfloat16) if is_wide(t) else t for t in _inputs(case, device))))
    assert all(o.dtype == torch.bfloat16 for o in outputs if is_wide(o))
    back = copy.deepcopy(module).to(torch.float64).to(torch.float32)
    assert_same(_of(case, back, device), expected, "to float64 and back")
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()
    assert_same(_of(case, module, device), expected, ".data assigned")
    if device.type == "cpu":
        assert_same(_of(case, module.share_memory(), device), expected, "share_memory")
    for _, parameter in list(module.named_parameters()):
        twin = torch.nn.Parameter(parameter.detach().clone())
        torch.utils.swap_tensors(parameter, twin)
    assert_same(_of(case, module, device), expected, "swap_tensors")
    for name, parameter in module.named_parameters():
        frozen = copy.deepcopy(module)
        frozen.get_parameter(name).requires_grad_(False)
        kept = {n: g for n, g in expected.gradients.items() if n != name}
        assert_same(_of(case, frozen, device), Step(expected.outputs, kept), f"{name} {list(parameter.shape)} frozen")


def hooks(case: ModuleCase, device: torch.device) -> None:
    """Forward and backward hooks of modules run once and may change what passes."""
    module = _made(case, device)
    expected = _of(case, module, device)
    seen: list[str] = []
    module.register_forward_pre_hook(lambda m, args: seen.append("pre"))
    module.register_forward_hook(lambda m, args, output: seen.append("forward"))
    module.register_full_backward_pre_hook(lambda m, grads: seen.append("backward pre"))
    module.register_full_backward_hook(lambda m, given, received: seen.append("backward"))
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    inputs = _inputs(case, device)
    outputs = [output for output in as_tuple(module(*inputs)) if output.requires_grad]
    torch.autograd.backward(outputs, seeds_of(outputs))
    count = len(list(module.parameters()))
    assert sorted(seen) == sorted(["pre", "forward", "backward pre", "backward", *["accumulated"] * count]), seen
    found = {str(n): t.grad for n, t in enumerate(inputs) if t.requires_grad}
    found |= {name: p.grad for name, p in module.named_parameters()}
    assert_same(Step(tuple(o.detach() for o in outputs), found), expected, "under hooks")


def functional(case: ModuleCase, device: torch.device) -> None:
    """functional_call with other parameters, and a parametrisation that changes nothing."""
    module = _made(case, device)
    expected = _of(case, module, device)
    given = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    found = _step(lambda *a: torch.func.functional_call(module, given, a), _inputs(case, device), given)
    assert_same(found, expected, "functional_call")
    module = _made(case, device)
    names = [name for name, _ in module.named_parameters(recurse=False)]
    for name in names:
        parametrize.register_parametrization(module, name, torch.nn.Identity())
    renamed = {n: getattr(module.parametrizations, n).original for n in names}
    rest = {n: p for n, p in module.named_parameters() if not n.startswith("parametrizations.")}
    assert_same(_step(module, _inputs(case, device), {**renamed, **rest}), expected, "parametrised")


def checkpointed(case: ModuleCase, device: torch.device) -> None:
    """Checkpointed both ways, offloaded, compiled; under autocast as without modules."""
    module = _made(case, device)
    expected = _of(case, module, device)
    parameters = dict(module.named_parameters())
    for reentrant in (False, True):
        run = lambda *a, r=reentrant: checkpoint(module, *a, use_reentrant=r)  # noqa: E731
        if reentrant:  # it forbids autograd.grad; .backward() it is
            inputs = _inputs(case, device)
            module.zero_grad()
            outputs = [o for o in as_tuple(run(*inputs)) if o.requires_grad]
            torch.autograd.backward(outputs, seeds_of(outputs))
            found = {str(n): t.grad for n, t in enumerate(inputs) if t.requires_grad}
            found |= {n: p.grad for n, p in parameters.items()}
            assert_same(Step(tuple(o.detach() for o in outputs), found), expected, "reentrant checkpoint")
        else:
            assert_same(_step(run, _inputs(case, device), parameters), expected, "checkpoint")
    with torch.autograd.graph.save_on_cpu():
        assert_same(_of(case, module, device), expected, "save_on_cpu")
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_same(_step(compiled, _inputs(case, device), parameters), expected, "compiled")
    with torch.autocast(device.type, torch.bfloat16):
        inside = _of(case, module, device)
    assert all(g is not None and bool(torch.isfinite(g).all()) for g in inside.gradients.values())
    for name, gradient in inside.gradients.items():
        value = expected.gradients[name]
        if gradient is not None and value is not None and value.count_nonzero():
            assert_snr(gradient, value, 8.0 if case.snr is not None else 30.0, f"gradient of {name} under autocast")


def wrong_inputs(case: ModuleCase, device: torch.device) -> None:
    """An input without dimensions, and none at all, are refused by name."""
    module = _made(case, device)
    count = len(_inputs(case, device))
    for bad in (torch.zeros((), device=device), None):
        try:
            module(*[bad] * count)
        except UnsupportedError as refusal:
            assert str(refusal)
        else:
            raise AssertionError(f"{case.name} took {bad!r}")


CHECKS: dict[str, Callable[[ModuleCase, torch.device], None]] = {
    check.__name__: check
    for check in (
        stock, copies, state_dicts, meta_materialisation, moves, hooks, functional, checkpointed, wrong_inputs
    )
}  # fmt: skip
