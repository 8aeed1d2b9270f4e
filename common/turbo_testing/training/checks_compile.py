# SPDX-License-Identifier: MIT
"""Checks of compilers and of tensors without data: compile, make_fx, export, meta, fake, opcheck."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from turbo_testing.training.cases import (
    OpCase,
    Step,
    Tensors,
    as_tuple,
    assert_same,
    is_wide,
    leaves,
    plain,
    seeds_of,
    step,
)

__all__ = ["CHECKS"]

# of opcheck; compilation itself is checked above with the public function, gradients and shapes that change
OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


class _Counter:
    """The compiler backend ``aot_eager``, counting graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.graphs += 1
        return lookup_backend("aot_eager")(module, inputs)


def _strides(outputs: Any) -> list[tuple[int, ...]]:
    return [output.stride() for output in as_tuple(outputs)]


def compile_static(case: OpCase, device: torch.device) -> None:
    """fullgraph: the bits and the strides of eager, forward and backward."""
    torch.compiler.reset()
    inputs = case.inputs(device)
    compiled = torch.compile(case.run, fullgraph=True, dynamic=False, backend="aot_eager")
    assert_same(step(case, leaves(case, inputs), run=compiled), plain(case, device), "compiled")
    numbers = case.first_numbers()
    assert _strides(compiled(**leaves(case, inputs), **numbers)) == _strides(
        case.run(**leaves(case, inputs), **numbers)
    )
    with torch.no_grad():
        assert_same(
            step(case, leaves(case, inputs, ()), run=compiled), step(case, leaves(case, inputs, ())), "no gradients"
        )


def compile_dynamic(case: OpCase, device: torch.device) -> None:
    """Other numbers of rows need no other graph."""
    torch.compiler.reset()
    counter = _Counter()
    compiled = torch.compile(case.run, fullgraph=True, dynamic=True, backend=counter)
    graphs = []
    for rows in (case.rows, 2 * case.rows + 1, 3 * case.rows):
        inputs = case.inputs(device, rows=rows)
        found = step(case, leaves(case, inputs), run=compiled)
        assert_same(found, step(case, leaves(case, inputs)), f"{rows} rows")
        graphs.append(counter.graphs)
    assert graphs[-1] - graphs[0] <= case.recompilations, f"graphs after each of three numbers of rows: {graphs}"


def compile_numbers(case: OpCase, device: torch.device) -> None:
    """Float arguments that change from step to step."""
    inputs = case.inputs(device)
    for dynamic in (True, None):
        torch.compiler.reset()
        compiled = torch.compile(case.run, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for index in (0, 1, 0):
            numbers = {name: values[index] for name, values in case.numbers.items()}
            found = step(case, leaves(case, inputs), numbers, run=compiled)
            assert_same(found, step(case, leaves(case, inputs), numbers), f"{numbers}")


def number_types(case: OpCase, device: torch.device) -> None:
    """A number may be of numpy, or a tensor of no dimensions on the CPU: what float() takes."""
    inputs = case.inputs(device)
    for name, values in case.numbers.items():
        rounded = float(numpy.float32(values[1]))
        expected = step(case, leaves(case, inputs), {**case.first_numbers(), name: rounded})
        for number in (numpy.float32(rounded), numpy.float64(rounded), torch.tensor(rounded, device="cpu")):
            found = step(case, leaves(case, inputs), {**case.first_numbers(), name: number})
            assert_same(found, expected, f"{name}={number!r}")


def compiled_autograd(case: OpCase, device: torch.device) -> None:
    """The backward compiled as a graph of its own."""
    torch.compiler.reset()
    tensors = leaves(case, case.inputs(device))
    outputs = [o for o in as_tuple(case.run(**tensors, **case.first_numbers())) if o.requires_grad]
    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    with torch._dynamo.compiled_autograd._enable(compiler):
        torch.autograd.backward(outputs, seeds_of(outputs))
    found = {name: tensors[name].grad for name in case.gradients}
    assert_same(Step((), found), Step((), plain(case, device).gradients), "compiled autograd")


def compile_step(case: OpCase, device: torch.device) -> None:
    """Checkpointed and under autocast inside of the compiled function, as models are."""
    from torch.utils.checkpoint import checkpoint

    torch.compiler.reset()
    inputs = case.inputs(device)
    names = list(inputs)

    def model(*arguments: torch.Tensor) -> Any:
        with torch.autocast(device.type, torch.bfloat16):
            return checkpoint(
                lambda *a: case.run(**dict(zip(names, a)), **case.first_numbers()), *arguments, use_reentrant=False
            )

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")

    def run(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **arguments: function(*(arguments[name] for name in names))

    found = step(case, leaves(case, inputs), {}, run=run(compiled))
    assert_same(found, step(case, leaves(case, inputs), {}, run=run(model)), "a compiled, checkpointed, autocast step")


def fx(case: OpCase, device: torch.device) -> None:
    """make_fx over forward and backward, with real, fake and symbolic tensors."""
    inputs = case.inputs(device)
    names = list(inputs)

    outputs = as_tuple(case.run(**leaves(case, inputs), **case.first_numbers()))
    seeds = seeds_of([output for output in outputs if output.requires_grad])

    def function(seeds: list[torch.Tensor], *arguments: torch.Tensor) -> list[torch.Tensor]:
        tensors = {name: value.detach().requires_grad_(name in case.gradients) for name, value in zip(names, arguments)}
        outputs, gradients = step(case, tensors, seeds=lambda _: seeds)
        return [*outputs, *(gradients[name] for name in case.gradients)]  # type: ignore[list-item]

    expected = function(seeds, *inputs.values())
    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(function, tracing_mode=mode)(seeds, *inputs.values())
        found = graph(seeds, *(tensor.clone() for tensor in inputs.values()))
        assert_same(Step(tuple(found), {}), Step(tuple(expected), {}), f"make_fx, {mode}")


def export(case: OpCase, device: torch.device) -> None:
    """torch.export of the forward."""

    class Module(torch.nn.Module):
        def forward(self, **tensors: torch.Tensor) -> Any:
            return case.run(**tensors, **case.first_numbers())

    inputs = case.inputs(device)
    program = torch.export.export(Module(), (), inputs, strict=False)
    found = as_tuple(program.module()(**inputs))
    assert_same(Step(found, {}), Step(plain(case, device).outputs, {}), "exported")


def _like(outputs: Any) -> list[Any]:
    return [(list(output.shape), output.dtype, output.stride()) for output in as_tuple(outputs)]


def without_data(case: OpCase, device: torch.device) -> None:
    """meta and fake tensors, outputs and gradients: the shapes, dtypes and strides of real ones."""
    inputs = case.inputs(device)
    real = leaves(case, inputs)
    outputs = as_tuple(case.run(**real, **case.first_numbers()))
    gradients = plain(case, device).gradients

    def check(tensors: Tensors, what: str) -> None:
        found = as_tuple(case.run(**tensors, **case.first_numbers()))
        assert _like(found) == _like(outputs), f"{what}: {_like(found)} instead of {_like(outputs)}"
        sources = [output for output in found if output.requires_grad]
        assert len(sources) == sum(output.requires_grad for output in outputs), f"{what}: other outputs have gradients"
        if sources:
            wanted = [tensors[name] for name in case.gradients]
            made = torch.autograd.grad(sources, wanted, [torch.empty_like(source) for source in sources])
            pairs = zip(case.gradients, made)
            wrong = [n for n, g in pairs if (g.shape, g.dtype) != (gradients[n].shape, gradients[n].dtype)]
            assert not wrong, f"{what}: gradients of {wrong}"

    meta = {name: tensor.detach().to("meta").requires_grad_(tensor.requires_grad) for name, tensor in real.items()}
    check(meta, "meta")
    with FakeTensorMode() as mode:
        check({name: mode.from_tensor(tensor) for name, tensor in real.items()}, "fake")


class _Recorder(TorchDispatchMode):
    """Keeps the registered ops of ours that ran, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, tuple[Any, dict[str, Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace.startswith("turbo") and func not in self.calls:
            copied = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in args]
            self.calls[func] = tuple(copied), dict(kwargs or {})
        return func(*args, **(kwargs or {}))


def opcheck(case: OpCase, device: torch.device) -> None:
    """torch.library.opcheck of every registered op that forward and backward come to."""
    with _Recorder() as recorder:
        plain(case, device)
    assert recorder.calls, "no registered op ran"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op, (args, kwargs) in recorder.calls.items():
            tensors = [value for value in args if isinstance(value, torch.Tensor)]
            floating = [v.requires_grad_() if isinstance(v, torch.Tensor) and is_wide(v) else v for v in args]
            # its comparison of arguments before and after does not know the types of 8 and 4 bits
            narrow = any(tensor.is_floating_point() and not is_wide(tensor) for tensor in tensors)
            utils = [util for util in OPCHECKS if not (narrow and util == "test_schema")]
            torch.library.opcheck(op, tuple(args if op._schema.is_mutable else floating), kwargs, test_utils=utils)


CHECKS: dict[str, Callable[[OpCase, torch.device], None]] = {
    check.__name__: check
    for check in (
        compile_static, compile_dynamic, compile_numbers, number_types, compiled_autograd, compile_step, fx, export,
        without_data, opcheck,
    )
}  # fmt: skip
