# SPDX-License-Identifier: MIT
"""What can be said of any call: a NamedTuple whose fields are tensors, plain values and other NamedTuples."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from turbo_core.requirements import require_torch

if TYPE_CHECKING:
    import torch

__all__ = ["PLAIN", "Spec", "device_of", "empty", "key_of", "outputs", "tensors", "unit_strides"]

# Types of most values in calls beside tensors. To ask this first is quick: isinstance of a tensor goes through the
# metaclass of torch.Tensor for all that is none.
PLAIN = frozenset((int, float, bool, str, type(None)))

_Call = TypeVar("_Call", bound=tuple[Any, ...])


class Spec(NamedTuple):
    """What a tensor that does not exist yet looks like; ``stride`` None is contiguous."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...] | None = None


def empty(spec: Spec, device: torch.device) -> torch.Tensor:
    """A tensor of ``spec`` with any contents."""
    import torch  # by its name, which a compiler follows

    if spec.stride is None:
        return torch.empty(spec.shape, dtype=spec.dtype, device=device)
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=device)


def outputs(specs: _Call, device: torch.device) -> _Call:
    """``specs``, a NamedTuple of `Spec` and None, with a tensor of any contents in place of each Spec."""
    made: Any = [None if spec is None else empty(spec, device) for spec in specs]
    return type(specs)(*made)


def tensors(call: Any) -> Iterator[torch.Tensor]:
    """The tensors of ``call`` in the order of its fields, those of calls inside it included."""
    torch = require_torch()
    for value in call:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from tensors(value)


def device_of(call: Any) -> torch.device | None:
    """The device of the first tensor of ``call``; None where it has none."""
    tensor_type = require_torch().Tensor
    for value in call:
        if isinstance(value, tensor_type):
            device: torch.device = value.device
            return device
        if isinstance(value, tuple):
            inner = device_of(value)
            if inner is not None:
                return inner
    return None


def unit_strides(call: _Call, *names: str) -> _Call:
    """``call`` with the fields ``names`` of last stride 1, contiguous copies where they have another.

    The stride of a dimension of one element is never used, so there any will do. None stays None.
    """
    changed = {}
    for name in names:
        tensor = getattr(call, name)
        if tensor is not None and tensor.stride(-1) != 1 and tensor.shape[-1] != 1:
            changed[name] = tensor.contiguous()
    if not changed:
        return call
    replaced: _Call = call._replace(**changed)  # type: ignore[attr-defined]
    return replaced


def key_of(call: Any, role: str) -> Hashable:
    """A tuning key of everything in a call: the device, its part of the op, tensors by shape, strides and dtype."""
    from turbo_core.device import device_facts

    facts = device_facts(device_of(call))
    return facts.arch, facts.name, role, _described(call)


def _described(values: Iterable[Any]) -> tuple[Any, ...]:
    """No tensor itself: it would be kept alive, and equal to nothing but itself."""
    torch = require_torch()
    described: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            described.append((value.shape, value.stride(), value.dtype))
        else:
            described.append(_described(value) if isinstance(value, tuple) else value)
    return tuple(described)
