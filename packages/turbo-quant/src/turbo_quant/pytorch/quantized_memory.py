# SPDX-License-Identifier: MIT
"""What a `QuantizedTensor` answers about memory: it has none of its own, only that of its payload and its scales.

torch reaches a tensor's memory past its dispatcher: such a method would read from a null pointer, or answer for a
tensor that is not there. Here each of them works on payload and scales, or refuses.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from turbo_core import UnsupportedError

__all__ = ["MemoryOfParts", "guard_memory"]

_REFUSED = (
    "__array__",
    "__dlpack__",
    "_typed_storage",
    "apply_",
    "const_data_ptr",
    "data_ptr",
    "map2_",
    "map_",
    "mutable_data_ptr",
    "numpy",
    "storage",
    "tolist",
)

# from here on torch raises where one of its functions asks for the address of the wrapper's own elements
_throw_on_address: Callable[[torch.Tensor], None] | None = getattr(torch._C, "_set_throw_on_mutable_data_ptr", None)


def guard_memory(x: torch.Tensor) -> None:
    """Have torch's C functions raise instead of reading memory that ``x`` does not have."""
    if _throw_on_address is not None and not torch.compiler.is_compiling():
        _throw_on_address(x)


class MemoryOfParts:
    """The part of `QuantizedTensor` that is about memory."""

    __dlpack_c_exchange_api__ = None

    def parts_in_memory(self) -> list[torch.Tensor]:
        """Payload, scales, and what there is of groups."""
        names, _ = self.__tensor_flatten__()  # type: ignore[attr-defined]
        return [getattr(self, name) for name in names]

    @property
    def __cuda_array_interface__(self) -> NoReturn:
        raise AttributeError("a QuantizedTensor has no memory of its own; call dequantize() on it first")

    def untyped_storage(self) -> torch.UntypedStorage:
        """For torch's own code alone, which asks what shares a storage (to trace a call): to read it is to crash."""
        if not sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            raise _unsupported("untyped_storage")
        return torch.Tensor.untyped_storage(self)  # type: ignore[arg-type]

    def share_memory_(self) -> Any:
        """Moves payload, scales and groups to shared memory."""
        for part in self.parts_in_memory():
            part.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Whether all of it lies in shared memory."""
        return all(part.is_shared() for part in self.parts_in_memory())

    @property
    def data(self) -> Any:
        """The same tensor without its history. What is assigned must be a `QuantizedTensor` of the same kind."""
        return self.detach()  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: Any) -> None:
        def kind(x: Any) -> tuple[Any, ...]:
            return x.shape, x.stride(), x.dtype, x.device, x.quantized_axis, x._constants()

        if not isinstance(value, MemoryOfParts) or kind(value) != kind(self):
            raise UnsupportedError(
                f"QuantizedTensor.data: {value!r} is assigned to {self!r}; one of its kind is accepted"
            )
        names = {*value.__tensor_flatten__()[0], *self.__tensor_flatten__()[0]}  # type: ignore[attr-defined]
        for name in names:
            setattr(self, name, getattr(value, name))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:  # type: ignore[attr-defined]
            raise RuntimeError(
                "deepcopy of a QuantizedTensor that is the result of a differentiable function; detach it"
            )
        copied = self.detach()  # type: ignore[attr-defined]
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        copied.requires_grad_(self.requires_grad)  # type: ignore[attr-defined]
        copied.grad = copy.deepcopy(self.grad, memo)  # type: ignore[attr-defined]
        return copied


def _unsupported(name: str) -> UnsupportedError:
    return UnsupportedError(f"{name} is not defined for a QuantizedTensor; call dequantize() on it first")


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refused(self: Any, *arguments: Any, **keywords: Any) -> NoReturn:
        raise _unsupported(name)

    refused.__name__ = name
    return refused


for _name in _REFUSED:
    setattr(MemoryOfParts, _name, _refusal(_name))
