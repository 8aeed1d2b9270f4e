# SPDX-License-Identifier: MIT
"""A Triton launch as a value: what a launcher starts, and what the audit compiles ahead of time, are the same object.

A launcher plans its launches from tensors' metadata alone. Given tensors on the meta device and a target's facts
(`turbo_core.arch_facts`), the plan is what that target would run, and `signature` turns it into what
``triton.compile`` asks for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turbo_core.bounded import BoundedDict
from turbo_core.calls import device_of
from turbo_core.device import device_facts
from turbo_core.requirements import require_torch, require_triton

if TYPE_CHECKING:
    import torch

__all__ = [
    "ALL",
    "ALWAYS",
    "Launch",
    "Signature",
    "bound",
    "fill_with_zeros",
    "fits_buffers",
    "on_device",
    "power_of_two",
    "start",
    "without_buffers",
]

# torch dtype -> Triton's pointer type; torch's types without one here go through a view as uint8
_POINTERS = {
    "bfloat16": "*bf16",
    "float16": "*fp16",
    "float32": "*fp32",
    "float8_e4m3fn": "*fp8e4nv",
    "float8_e5m2": "*fp8e5",
    "float8_e4m3fnuz": "*fp8e4b8",
    "float8_e5m2fnuz": "*fp8e5b16",
    "int64": "*i64",
    "int32": "*i32",
    "int16": "*i16",
    "int8": "*i8",
    "uint8": "*u8",
}

ALL = ("*",)  # as `Launch.unbuffered`: every tensor

# Kernels that were started on a device, by all that Triton specialises a compilation on: `Launch.run` starts them again
# by themselves, since Triton's own search takes longer than a small kernel runs.
_started: BoundedDict[tuple[Any, ...], tuple[Any, Any]] = BoundedDict()

# on every target, unless a launch's options say otherwise: a fused multiply-add rounds once, and so is never less exact
ALWAYS = {"enable_fp_fusion": True}


@dataclass(frozen=True)
class Signature:
    """What ``triton.compiler.ASTSource`` takes, with the specialisations that Triton makes at a launch."""

    types: dict[str, str]
    constants: dict[str, Any]
    attributes: dict[tuple[int, ...], list[list[Any]]]


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        kernel: the ``@triton.jit`` function.
        grid: number of programs along each axis.
        arguments: run-time arguments by name; tensors, integers, floats or None.
        constants: ``tl.constexpr`` arguments by name.
        options: launch options (num_warps, num_stages, and options of the target); they win over `ALWAYS`.
        unbuffered: names of tensors, or `ALL`, that an AMD kernel reads and writes by global instructions even where
            buffer instructions would reach them. Those take four scalar registers a tensor, and other schedules.
        zeroed: names of tensors that are zero when it starts, whatever they held.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    options: Mapping[str, int] = field(default_factory=dict)
    unbuffered: tuple[str, ...] = ()
    zeroed: tuple[str, ...] = ()

    def run(self, device: torch.device) -> Any:
        """Start it on the current stream of ``device``, which need not be the current device.

        Returns what Triton compiled; None but on a GPU: the interpreter compiles nothing, and a simulator may be
        switched on and off.
        """
        with on_device(device):
            for name in self.zeroed:
                fill_with_zeros(self.arguments[name])
            if device.type != "cuda":
                self._search(device)
                return None
            key = (id(self.kernel), device.index, *self._specialisation())
            _, compiled = _started.get(key, (None, None))
            if compiled is not None:
                compiled[self.whole_grid()](*self.by_position())
                return compiled
            compiled = self._search(device)
            _started.keep(key, (self.kernel, compiled))  # the kernel is kept, so that nothing else gets its id
            return compiled

    def whole_grid(self) -> tuple[int, ...]:
        """The grid with all three axes."""
        return (*self.grid, 1, 1)[:3]

    def _search(self, device: torch.device) -> Any:
        """Start it the way of Triton, which compiles it if need be, and returns what it started."""
        arguments = without_buffers(self.arguments, self.unbuffered, device)
        return self.kernel[self.grid](**arguments, **self.constants, **self.all_options())

    def all_options(self) -> dict[str, int]:
        """The launch options with those of every launch: what is started and what the audit compiles."""
        return {**ALWAYS, **self.options}

    def by_position(self) -> list[Any]:
        """All arguments in the kernel's order; None for constants that it has defaults for, which it does not read."""
        given = {**self.arguments, **self.constants}
        return [given.get(name) for name in self.kernel.arg_names]

    def _specialisation(self) -> tuple[Any, ...]:
        """What decides, for this kernel, which compilation Triton takes."""
        constants = tuple(self.constants.values())
        plain = self._unspecialised()
        return (
            *(_range(value) if name in plain else _specialise(value) for name, value in self.arguments.items()),
            constants, tuple(map(type, constants)),
            tuple(self.constants), tuple(self.arguments), tuple(self.options.items()), self.unbuffered
        )  # fmt: skip

    def _unspecialised(self) -> tuple[str, ...]:
        """Names of the integers that the kernel says not to specialise on (``do_not_specialize``)."""
        kernel = self.kernel  # an interpreted one keeps what it was declared with
        declared = getattr(kernel, "do_not_specialize", None) or getattr(kernel, "kwargs", {}).get("do_not_specialize")
        return tuple(declared or ())

    def signature(self) -> Signature:
        """The specialisation that `run` would compile for an AMD target.

        1 is a constant, and the compiler is told of multiples of 16 and of tensors that buffer instructions reach; of
        integers that the kernel says not to specialise on, neither.
        """
        torch = require_torch()
        types: dict[str, str] = {}
        constants: dict[str, Any] = {}
        attributes: dict[tuple[int, ...], list[list[Any]]] = {}
        given = {**self.arguments, **self.constants}
        plain = self._unspecialised()
        for position, name in enumerate(self.kernel.arg_names):
            if name not in given:
                continue  # a constant that the kernel has a default for
            value = given[name]
            if name in plain:
                types[name] = "i32" if _range(value)[0] else "i64"
                continue
            if name in self.constants or value is None or (isinstance(value, int) and value == 1):
                types[name], constants[name] = "constexpr", value
                continue
            if isinstance(value, torch.Tensor):
                types[name] = _POINTERS[str(value.dtype).removeprefix("torch.")]
                divisible = value.data_ptr() % 16 == 0  # on the meta device counted from 0
            elif isinstance(value, float):
                types[name], divisible = "fp32", False
            else:
                types[name] = "i32" if _range(value)[0] else "i64"
                divisible = value % 16 == 0
            known: list[list[Any]] = [["tt.divisibility", 16]] if divisible else []
            if isinstance(value, torch.Tensor) and fits_buffers(value) and not _names(self.unbuffered, name):
                known.append(["tt.pointer_range", 32])
            if known:
                attributes[(position,)] = known
        return Signature(types, constants, attributes)


def start(result: Any, launches: list[Launch]) -> Any:
    """Start a plan's launches on the device of its result, which is returned."""
    device: Any = device_of((result,))  # a launch may have no tensor among its arguments, but descriptors of them
    for launch in launches:
        launch.run(device)
    return result


def bound(compiled: Any, grid: tuple[int, ...], device: torch.device) -> Callable[..., None]:
    """Starts a compiled kernel with arguments by position on the current stream of ``device``.

    It is ``compiled[grid]`` without what that prepares for hooks (5 microseconds), unless there are any. Triton's own
    ``run`` behind it has had the same arguments since 3.0.
    """
    slow = compiled[grid]
    if device.type != "cuda" or not hasattr(compiled, "packed_metadata"):
        return slow
    current_stream = require_torch()._C._cuda_getCurrentRawStream
    knobs = require_triton().knobs.runtime
    run, function, metadata, index = compiled.run, compiled.function, compiled.packed_metadata, device.index
    x, y, z = grid

    def start(*arguments: Any) -> None:
        if _is_set(knobs.launch_enter_hook) or _is_set(knobs.launch_exit_hook):
            slow(*arguments)
        else:
            run(x, y, z, current_stream(index), function, metadata, None, None, None, *arguments)

    return start


def _is_set(hook: Any) -> bool:
    """A hook is a function or None; since triton 3.5 a chain of functions, which may be empty."""
    return hook is not None and bool(getattr(hook, "calls", True))


def without_buffers(arguments: Mapping[str, Any], names: tuple[str, ...], device: torch.device) -> Mapping[str, Any]:
    """The arguments as Triton shall see them: of a tensor named (or of `ALL`) it learns no size, on AMD's devices."""
    if not names or device_facts(device).vendor != "amd":
        return arguments
    reinterpret, torch = require_triton().reinterpret, require_torch()
    return {
        name: reinterpret(value, value.dtype) if isinstance(value, torch.Tensor) and _names(names, name) else value
        for name, value in arguments.items()
    }


def _names(names: tuple[str, ...], name: str) -> bool:
    return names == ALL or name in names


def fits_buffers(tensor: torch.Tensor) -> bool:
    """Whether AMD's buffer instructions reach all of it; past 2 GiB Triton compiles another kernel there."""
    return bool(tensor.untyped_storage().nbytes() < 2**31)


def fill_with_zeros(tensor: torch.Tensor) -> None:
    """Zero all bytes; types of one byte need not have a zero."""
    (tensor if tensor.dtype.itemsize > 1 else tensor.view(require_torch().uint8)).zero_()


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()


def _specialise(value: Any) -> Any:
    """What Triton tells argument values apart by; on no account less."""
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return type(value)
    if isinstance(value, int):
        return value if value == 1 else (value % 16 == 0, *_range(value))
    if hasattr(value, "block_shape"):  # a tensor descriptor
        return (value.base.dtype, tuple(value.block_shape), value.padding)
    return (value.dtype, value.data_ptr() % 16 == 0, fits_buffers(value))


def _range(value: int) -> tuple[bool, bool]:
    """Which type an integer gets: 32 or 64 bits, signed or not."""
    return -(2**31) <= value < 2**31, value >= 2**63


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Makes ``device`` the current one: Triton launches on that, which need not be the tensors'."""
    torch = require_torch()
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)
