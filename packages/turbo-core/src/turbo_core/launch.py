# SPDX-License-Identifier: MIT
"""A Triton launch as a value: what a launcher starts, and what the audit compiles ahead of time, are the same object.

A launcher plans its launches from tensors' metadata alone. Given tensors on the meta device and a target's facts
(`turbo_core.arch_facts`), the plan is what that target would run, and `signature` turns it into what
``triton.compile`` asks for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turbo_core.requirements import require_torch

if TYPE_CHECKING:
    import torch

__all__ = ["ALWAYS", "Launch", "Signature", "power_of_two"]

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

# on every target, unless a launch's options say otherwise: a fused multiply-add rounds once, and so is never less exact
ALWAYS = {"enable_fp_fusion": True}


@dataclass(frozen=True)
class Signature:
    """What ``triton.compiler.ASTSource`` takes, with the specialisations that Triton makes at a launch."""

    types: Mapping[str, str]
    constants: Mapping[str, Any]
    attributes: Mapping[tuple[int, ...], list[list[Any]]]


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        kernel: the ``@triton.jit`` function.
        grid: number of programs along each axis.
        arguments: run-time arguments by name; tensors, integers, floats or None.
        constants: ``tl.constexpr`` arguments by name.
        options: launch options (num_warps, num_stages, and options of the target); they win over `ALWAYS`.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    options: Mapping[str, int] = field(default_factory=dict)

    def run(self, device: torch.device) -> None:
        """Start it on the current stream of ``device``, which need not be the current device."""
        with _on_device(device):
            self.kernel[self.grid](**self.arguments, **self.constants, **{**ALWAYS, **self.options})

    def signature(self) -> Signature:
        """The specialisation that `run` would compile: 1 is a constant, multiples of 16 are told to the compiler."""
        torch = require_torch()
        types: dict[str, str] = {}
        constants: dict[str, Any] = {}
        attributes: dict[tuple[int, ...], list[list[Any]]] = {}
        given = {**self.arguments, **self.constants}
        for position, name in enumerate(self.kernel.arg_names):
            if name not in given:
                continue  # a constant that the kernel has a default for
            value = given[name]
            if name in self.constants or value is None or (isinstance(value, int) and value == 1):
                types[name], constants[name] = "constexpr", value
                continue
            if isinstance(value, torch.Tensor):
                types[name] = _POINTERS[str(value.dtype).removeprefix("torch.")]
                divisible = value.device.type == "meta" or value.data_ptr() % 16 == 0
            elif isinstance(value, float):
                types[name], divisible = "fp32", False
            else:
                types[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
                divisible = value % 16 == 0
            if divisible:
                attributes[(position,)] = [["tt.divisibility", 16]]
        return Signature(types, constants, attributes)


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()


def _on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    torch = require_torch()
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)
