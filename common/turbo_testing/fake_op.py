# SPDX-License-Identifier: MIT
"""A small op with made-up backends, for tests of turbo_core's dispatch that need no kernel."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch

from turbo_core import AutoKernelDispatcher, BackendType, KernelBackend, PrecisionType

__all__ = ["FakeCall", "make_backend", "make_dispatcher"]


class FakeCall(NamedTuple):
    """A call of the fake op: y = x, or out += x where ``out`` is given."""

    x: torch.Tensor
    out: torch.Tensor | None = None
    precision: PrecisionType = PrecisionType.BF16_FP16_FP32


def make_backend(
    name: str, *, refuses: str | None = None, fails: bool = False, tunable: bool = True
) -> type[KernelBackend]:
    """A backend that returns its own name; ``backend.reason`` can be changed later, ``backend.calls`` are kept."""

    class FakeBackend(KernelBackend):
        reason: str | None = refuses
        calls: list[FakeCall] = []

        @classmethod
        def why_not(cls, call: FakeCall) -> str | None:
            return cls.reason

        @classmethod
        def execute(cls, call: FakeCall) -> str:
            cls.calls.append(call)
            if fails:
                raise RuntimeError(f"{name} is broken")
            if call.out is not None:
                call.out.add_(call.x)
            return name

    FakeBackend.calls = []
    FakeBackend.tunable = tunable
    FakeBackend.__name__ = name
    return FakeBackend


def make_dispatcher(
    backends: dict[BackendType, type[KernelBackend]],
    *,
    name: str = "fake_op",
    default: BackendType = BackendType.HIPBLASLT,
) -> type[AutoKernelDispatcher]:
    """A dispatcher of the ``gemm`` family over ``backends``."""
    table = backends

    class FakeDispatcher(AutoKernelDispatcher):
        op = name
        family = "gemm"
        backends = table

        @classmethod
        def precision(cls, call: FakeCall) -> PrecisionType:
            return call.precision

        @classmethod
        def default_backend(cls, call: FakeCall) -> BackendType:
            return default

        @classmethod
        def make_key(cls, call: FakeCall) -> Hashable:
            return tuple(call.x.shape), call.x.dtype, call.out is None

        @classmethod
        def scratch(cls, call: FakeCall) -> FakeCall:
            return call if call.out is None else call._replace(out=torch.zeros_like(call.out))

        @classmethod
        def describe(cls, call: Any) -> str:
            return f"x {list(call.x.shape)}"

    return FakeDispatcher
