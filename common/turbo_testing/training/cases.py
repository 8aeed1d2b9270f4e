# SPDX-License-Identifier: MIT
"""The cases of the matrix, and the forward and backward step that all checks are made of."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from turbo_testing.metrics import assert_close, assert_snr

__all__ = [
    "ModuleCase",
    "OpCase",
    "Step",
    "as_tuple",
    "assert_near",
    "assert_same",
    "floats",
    "is_wide",
    "leaves",
    "plain",
    "seeds_of",
    "step",
]

Tensors = dict[str, torch.Tensor]

# of results against the float64 reference: rtol = atol
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}


_DRAWING = threading.Lock()  # numbers are drawn from the global generator, which is put back


@dataclass(frozen=True)
class OpCase:
    """An op with small inputs.

    Attributes:
        name: the public function, as its refusals name it.
        run: (**tensors, **numbers) -> a tensor or a tuple of them.
        make: (rows, dtype, device) -> inputs by name. ``rows`` is a size that a training loop changes (tokens), 0
            included; ``dtype`` is that of the inputs in ``cast`` and ``mixed``, or of all floating ones.
        gradients: the inputs that have a gradient.
        reference: what ``run`` computes, in plain torch, for any floating dtype. None: only what needs none is checked.
        label: tells apart several cases of one op.
        cast: the inputs that autocast casts (products and attention).
        mixed: the inputs whose dtypes may differ, in and out of autocast (elementwise ops); the widest is taken.
        numbers: two values of each float argument.
        dtypes: of the inputs, for the comparison with the reference.
        snr: dB of the outputs and gradients against the reference, in place of a tolerance (quantised ops).
        second: whether second derivatives are right; otherwise they must be refused.
        rows: of the example.
        recompilations: how many more graphs a compiler may make for two other numbers of rows.
        without: checks that do not apply, with the reason.
    """

    name: str
    run: Callable[..., Any]
    make: Callable[[int, torch.dtype, torch.device], Tensors]
    gradients: Sequence[str] = ()
    reference: Callable[..., Any] | None = None
    label: str = ""
    cast: Sequence[str] = ()
    mixed: Sequence[str] = ()
    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16)
    snr: float | None = None
    second: bool = False
    rows: int = 6
    recompilations: int = 0
    without: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The name with the label."""
        return f"{self.name}-{self.label}" if self.label else self.name

    def inputs(self, device: torch.device, dtype: torch.dtype = torch.float32, rows: int | None = None) -> Tensors:
        """The same numbers each time, whatever the state of the global generators and default dtype."""
        with _DRAWING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(20)
            return self.make(self.rows if rows is None else rows, dtype, device)

    def first_numbers(self) -> dict[str, float]:
        """The first value of each float argument."""
        return {name: values[0] for name, values in self.numbers.items()}


@dataclass(frozen=True)
class ModuleCase:
    """A module with a small input.

    Attributes:
        name: the class.
        make: (device) -> the module; device may be meta.
        inputs: (device) -> positional inputs, floating ones all differentiable.
        stock: (device) -> a torch.nn module with the same state dict that computes the same, or None.
        snr: dB against the stock module, in place of the tolerance of float32.
        without: checks that do not apply, with the reason.
    """

    name: str
    make: Callable[[torch.device], torch.nn.Module]
    inputs: Callable[[torch.device], tuple[torch.Tensor, ...]]
    stock: Callable[[torch.device], torch.nn.Module] | None = None
    snr: float | None = None
    label: str = ""
    without: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The name with the label."""
        return f"{self.name}-{self.label}" if self.label else self.name


def floats(*shape: int, dtype: torch.dtype, device: torch.device, scale: float = 1.0) -> torch.Tensor:
    """Normal numbers, drawn in float32 on the CPU so that they are the same on every device."""
    drawn = torch.randn(shape, dtype=torch.float32, device="cpu") * scale
    return drawn.to(device=device, dtype=dtype)


class Step(NamedTuple):
    """What one forward and backward gave; a gradient that autograd did not make is None."""

    outputs: tuple[torch.Tensor, ...]
    gradients: dict[str, torch.Tensor | None]


def is_wide(tensor: torch.Tensor) -> bool:
    """Whether its numbers are of a type that one calculates with; payloads of 8 and 4 bits are not."""
    return tensor.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def as_tuple(outputs: Any) -> tuple[torch.Tensor, ...]:
    """One tensor or several as a tuple."""
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def leaves(case: OpCase, inputs: Tensors, wanted: Sequence[str] | None = None) -> Tensors:
    """Fresh copies of the inputs, with the strides that they had; those ``wanted`` require a gradient."""
    names = case.gradients if wanted is None else wanted
    return {name: tensor.detach().clone().requires_grad_(name in names) for name, tensor in inputs.items()}


def seeds_of(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients that come back: the same numbers for outputs of the same shapes."""
    generator = torch.Generator(device="cpu").manual_seed(7)
    return [
        torch.randn(output.shape, generator=generator, dtype=torch.float32, device="cpu").to(
            device=output.device, dtype=output.dtype
        )
        for output in outputs
    ]


def step(
    case: OpCase,
    tensors: Tensors,
    numbers: Mapping[str, Any] | None = None,
    run: Callable[..., Any] | None = None,
    backward_in: contextlib.AbstractContextManager[Any] | None = None,
    seeds: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] = seeds_of,
    accumulate: bool = False,
) -> Step:
    """``run`` (the case's) on ``tensors`` and its backward for those that require a gradient.

    With ``accumulate`` the gradients go to ``.grad``, as `backward` puts them.
    """
    outputs = as_tuple((run or case.run)(**tensors, **(case.first_numbers() if numbers is None else numbers)))
    wanted = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    sources = [output for output in outputs if output.requires_grad]
    if not sources or not wanted:
        return Step(tuple(output.detach() for output in outputs), dict.fromkeys(wanted))
    with backward_in or contextlib.nullcontext():
        if accumulate:
            torch.autograd.backward(sources, list(seeds(sources)))
            return Step(tuple(output.detach() for output in outputs), {n: t.grad for n, t in wanted.items()})
        found = torch.autograd.grad(sources, list(wanted.values()), list(seeds(sources)), allow_unused=True)
    return Step(tuple(output.detach() for output in outputs), dict(zip(wanted, found)))


def plain(case: OpCase, device: torch.device, dtype: torch.dtype = torch.float32) -> Step:
    """What every other way to call the op is compared with."""
    return step(case, leaves(case, case.inputs(device, dtype)))


def _difference(found: torch.Tensor | None, expected: torch.Tensor | None) -> str | None:
    if found is None or expected is None:
        return None if found is expected else f"{_what(found)} instead of {_what(expected)}"
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{_what(found)} instead of {_what(expected)}"
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.element_size()]
    same = found.contiguous().view(bits) == expected.contiguous().view(bits)
    if bool(same.all()):
        return None
    difference = f"{int((~same).sum())} of {same.numel()} elements differ"
    if is_wide(found):
        difference += f", by {float((found.double() - expected.double()).abs().max()):.3g} at most"
    return difference


def _what(tensor: torch.Tensor | None) -> str:
    return "no tensor" if tensor is None else f"{list(tensor.shape)} {tensor.dtype}"


def assert_same(found: Step, expected: Step, what: str = "") -> None:
    """Equal to the bit, shapes and dtypes included."""
    problems = []
    if len(found.outputs) != len(expected.outputs):
        problems.append(f"{len(found.outputs)} outputs instead of {len(expected.outputs)}")
    for number, (one, other) in enumerate(zip(found.outputs, expected.outputs)):
        if difference := _difference(one, other):
            problems.append(f"output {number}: {difference}")
    for name in {**found.gradients, **expected.gradients}:
        if difference := _difference(found.gradients.get(name), expected.gradients.get(name)):
            problems.append(f"gradient of {name}: {difference}")
    assert not problems, f"{what}: " + "; ".join(problems)


def assert_near(case: OpCase, found: Step, expected: Step, dtype: torch.dtype, factor: float = 1.0) -> None:
    """Within the case's tolerance of what the reference gave; gradients that nobody got are None on both sides."""
    pairs = [(f"output {n}", *pair) for n, pair in enumerate(zip(found.outputs, expected.outputs, strict=True))]
    pairs += [(f"gradient of {n}", found.gradients[n], value) for n, value in expected.gradients.items()]
    for name, one, other in pairs:
        assert (one is None) == (other is None), f"{name}: {_what(one)} instead of {_what(other)}"
        if one is None or other is None or not one.numel():
            continue
        assert one.shape == other.shape, f"{name}: {_what(one)} instead of {_what(other)}"
        if not is_wide(one):
            difference = _difference(one, other)
            assert not difference, f"{name}: {difference}"
        elif case.snr is not None:
            assert_snr(one, other, case.snr - 20 * (factor > 1), name)
        else:
            scale = max(1.0, float(other.abs().max()))  # sums cancel: an element is judged by the size of its tensor
            tolerance = TOLERANCES[dtype] * factor
            assert_close(one.double() / scale, other.double() / scale, rtol=tolerance, atol=tolerance, what=name)
