# SPDX-License-Identifier: MIT
"""What can be said of any call: a NamedTuple whose fields are tensors, plain values and other NamedTuples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from turbo_core.requirements import require_torch

if TYPE_CHECKING:
    import torch

__all__ = ["device_of", "tensors"]


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
    first = next(tensors(call), None)
    return None if first is None else first.device
