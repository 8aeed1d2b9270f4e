# SPDX-License-Identifier: MIT
"""Launches of calls that repeat: planned once, after that only memory is allocated and tensors are filled in.

A plan (see `turbo_core.launch`) depends on a call's tensors through their sizes, strides, dtypes, device and alignment
alone. A call that repeats these needs neither the plan nor Triton's search for the compiled kernel again, which take
several times as long as a small kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from turbo_core.calls import PLAIN
from turbo_core.launch import Launch, bound, fill_with_zeros
from turbo_core.low_precision import memory_dtype
from turbo_core.requirements import require_torch

if TYPE_CHECKING:
    import torch

__all__ = [
    "ALIGNMENT",
    "Prepared",
    "Signature",
    "first_run",
    "signature",
]

ALIGNMENT = 16  # bytes: Triton's own test for aligned pointers

Plan = tuple[Any, list[Launch]]


class _Start(NamedTuple):
    """One kernel.

    Attributes:
        start: takes all arguments by position.
        arguments: by position, but tensors and descriptors.
        tensors: (position, number of the tensor).
        descriptors: (position, number of its tensor, its type, its other fields).
        zeroed: numbers of tensors that are zero when it starts.
    """

    start: Callable[..., Any]
    arguments: list[Any]
    tensors: list[tuple[int, int]]
    descriptors: list[tuple[int, int, type, dict[str, Any]]]
    zeroed: list[int]


class Prepared(NamedTuple):
    """A call without its tensors. Tensors are numbered: inputs, then outputs, then scratch memory.

    Attributes:
        allocations: size, stride, dtype to allocate and dtype to view as, of outputs and scratch memory.
        make: the outputs from their tensors, None where there is none; None: there is one output.
        outputs: numbers of the outputs, None where there is none.
        starts: in order.
    """

    allocations: list[tuple[torch.Size, tuple[int, ...], torch.dtype, torch.dtype]]
    make: Callable[[Iterable[Any]], Any] | None
    outputs: list[int | None]
    starts: list[_Start]

    def repeat(self, tensors: list[Any], device: torch.device) -> Any:
        """Start it with other ``tensors`` of a call of the same `signature` and return the outputs.

        The list is used up: outputs and scratch memory are added to it.
        """
        torch = require_torch()
        if device.type == "cuda" and device.index != torch._C._cuda_getDevice():
            with torch.cuda.device(device):
                return self.repeat(tensors, device)
        allocations, make, outputs, starts = self
        for size, stride, raw, dtype in allocations:
            tensor = torch.empty_strided(size, stride, dtype=raw, device=device)
            tensors.append(tensor if raw is dtype else tensor.view(dtype))
        for start, given, positions, descriptors, zeroed in starts:
            for number in zeroed:
                fill_with_zeros(tensors[number])
            arguments = given.copy()
            for position, number in positions:
                arguments[position] = tensors[number]
            for position, number, kind, fields in descriptors:
                # without its constructor's checks (4 microseconds), which its fields have passed
                descriptor: Any = object.__new__(kind)
                arguments[position] = descriptor
                descriptor.__dict__.update(fields, base=tensors[number])
            start(*arguments)
        if make is None:
            return tensors[outputs[0]]  # type: ignore[index]
        return make([None if number is None else tensors[number] for number in outputs])


class Signature(NamedTuple):
    """What a plan, and what Triton compiles for it, may depend on of a call; its tensors beside it."""

    key: tuple[Any, ...]
    tensors: list[Any]


def signature(call: tuple[Any, ...]) -> Signature:
    """Everything in ``call`` but its tensors' addresses and contents: where two are equal, so are their plans.

    How large the memory of a tensor is, which buffer instructions ask, need not be known: where one tensor of some
    sizes and strides was in their reach, the next one is.
    """
    tensor_type: Any = require_torch().Tensor
    tensors: list[Any] = []
    addresses: list[int] = []
    parts: list[Any] = [type(call)]
    _describe(call, tensor_type, tensors, addresses, parts)
    if len(set(addresses)) < len(addresses):  # which tensors are one is then part of it
        parts.append(tuple(map(addresses.index, addresses)))
    return Signature(tuple(parts), tensors)


def _describe(
    call: tuple[Any, ...], tensor_type: Any, tensors: list[Any], addresses: list[int], parts: list[Any]
) -> None:
    for value in call:
        if type(value) in PLAIN:
            parts.append(value)
        elif isinstance(value, tensor_type):
            address = value.data_ptr()
            tensors.append(value)
            addresses.append(address)
            parts.append((value.shape, value.stride(), value.dtype, address % ALIGNMENT))
        elif isinstance(value, tuple):
            parts.append(len(value))
            _describe(value, tensor_type, tensors, addresses, parts)
        else:
            parts.append(value)


def first_run(plan: Plan, tensors: list[Any], device: torch.device) -> tuple[Any, Prepared | None]:
    """Start a plan's launches; its outputs, and what repeats it with other tensors where that can be.

    Args:
        plan: the outputs, one tensor or a named tuple of tensors and None, and the launches that write them. An output
            may be a tensor of the call. Planning read no tensor and filled none: what the launches need filled, they
            fill (`Launch.zeroed`).
        tensors: those of the call that was planned.
        device: where they are.
    """
    outputs, launches = plan
    compiled = [launch.run(device) for launch in launches]
    return outputs, None if None in compiled else _prepare(tensors, outputs, launches, compiled, device)


def _prepare(
    inputs: list[Any], outputs: Any, launches: list[Launch], compiled: list[Any], device: torch.device
) -> Prepared | None:
    """The call that was just run; None where its tensors cannot be told apart by their addresses."""
    torch = require_torch()
    one = isinstance(outputs, torch.Tensor)
    results = [outputs] if one else list(outputs)
    tensors, given = list(inputs), len(inputs)
    tensors += [x for x in results if x is not None and not any(x is tensor for tensor in inputs)]
    made = tensors[given:]
    numbers: dict[int, int] = {}  # address -> number
    for number, tensor in enumerate(tensors):
        numbers.setdefault(tensor.data_ptr(), number)
    apart = all(numbers[tensor.data_ptr()] == given + number for number, tensor in enumerate(made))
    if not apart or 0 in numbers or not all(map(_is_whole, made)):
        return None
    storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    starts = []
    for launch, kernel in zip(launches, compiled, strict=True):
        arguments = launch.by_position()
        start = _Start(bound(kernel, launch.whole_grid(), device), arguments, [], [], [])
        for position, value in enumerate(arguments):
            described = hasattr(value, "block_shape")
            tensor = value.base if described else value
            if not isinstance(tensor, torch.Tensor):
                continue
            address = tensor.data_ptr()
            if address not in numbers:
                if tensor.untyped_storage().data_ptr() in storages:
                    return None  # part of a tensor, from somewhere in it
                storages.add(tensor.untyped_storage().data_ptr())
                numbers[address] = len(tensors)
                tensors.append(tensor)
            if described:
                fields = {name: field for name, field in vars(value).items() if name != "base"}
                start.descriptors.append((position, numbers[address], type(value), fields))
            else:
                start.tensors.append((position, numbers[address]))
            arguments[position] = None
        start.zeroed.extend(numbers[launch.arguments[name].data_ptr()] for name in launch.zeroed)
        starts.append(start)
    allocations = [(t.shape, t.stride(), memory_dtype(t.dtype), t.dtype) for t in tensors[given:]]
    written = [None if x is None else _number(x, tensors) for x in results]
    return Prepared(allocations, None if one else type(outputs)._make, written, starts)


def _number(tensor: Any, tensors: list[Any]) -> int:
    """Where the tensor itself stands, not one that is equal."""
    return next(number for number, other in enumerate(tensors) if other is tensor)


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether the tensor, in any order of its dimensions, is all of its memory, as ``empty_strided`` would make it."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in strides)
    return extent == tensor.numel() and tensor.untyped_storage().nbytes() == extent * tensor.dtype.itemsize
