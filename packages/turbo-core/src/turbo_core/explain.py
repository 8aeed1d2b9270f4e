# SPDX-License-Identifier: MIT
"""`explain`: for a call, what each backend answers and which one would run. Nothing is computed."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from turbo_core.autocast import without_autocast
from turbo_core.backend import BackendType
from turbo_core.calls import device_of
from turbo_core.dispatch import AutoKernelDispatcher
from turbo_core.errors import BackendUnavailableError, UnsupportedError
from turbo_core.installed import entry_points, unnamed

if TYPE_CHECKING:
    import torch

__all__ = ["Explanation", "ExplanationEntry", "OpInfo", "explain", "find_ops"]

ENTRY_POINT_GROUP = "turbo_core.ops"


@dataclass(frozen=True)
class OpInfo:
    """What `explain` and the doctor need of an op; a wheel names its own in the entry points ``turbo_core.ops``.

    Attributes:
        name: the public function's name.
        dispatcher: who chooses for it.
        calls: the public function's arguments -> the dispatcher's calls by role, forward first.
        example: a device -> calls of a typical size there (memory may be allocated, nothing is computed).
    """

    name: str
    dispatcher: type[AutoKernelDispatcher]
    calls: Callable[..., Mapping[str, Any]]
    example: Callable[[torch.device], Mapping[str, Any]]


@dataclass(frozen=True)
class ExplanationEntry:
    """One role of the op: the backend that would run (None if none would), why, and each backend's answer."""

    role: str
    call: str
    backend: BackendType | None
    reason: str
    answers: Mapping[BackendType, str | None]


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`; ``str()`` of it is the text."""

    op: str
    entries: tuple[ExplanationEntry, ...]

    def __str__(self) -> str:
        lines = [f"{self.op}:"]
        for entry in self.entries:
            chosen = "no backend" if entry.backend is None else entry.backend.name
            lines.append(f"  {entry.role}: {chosen} ({entry.reason})")
            lines.append(f"    call: {entry.call}")
            for backend, why_not in entry.answers.items():
                mark = "->" if backend is entry.backend else "  "
                lines.append(f"    {mark} {backend.name:<10} {'can take it' if why_not is None else why_not}")
        return "\n".join(lines)


def find_ops() -> dict[str, EntryPoint]:
    """Ops of all wheels that are here by name, none of them imported yet."""
    return entry_points(ENTRY_POINT_GROUP)


def explain_calls(info: OpInfo, calls: Mapping[str, Any]) -> Explanation:
    """What `explain` says of ready-made calls."""
    entries = []
    for role, call in calls.items():
        device = device_of(call)
        try:
            with contextlib.nullcontext() if device is None else without_autocast(device):  # it may tune
                decision = info.dispatcher.resolve(call)
            backend, reason = decision.backend, decision.reason
        except BackendUnavailableError as error:
            backend, reason = None, str(error)
        entries.append(
            ExplanationEntry(role, info.dispatcher.describe(call), backend, reason, info.dispatcher.answers(call))
        )
    return Explanation(info.name, tuple(entries))


def explain(op: str, *args: Any, **kwargs: Any) -> Explanation:
    """Print and return, for a call of ``op`` with these arguments, every backend's answer and which one would run.

    Args:
        op: name of a public function, like ``"gemm"``.
        *args, **kwargs: its arguments; tensors are not read, only their shapes, strides, dtypes and devices.

    Raises:
        UnsupportedError: no installed wheel has the op, or the op itself refuses the arguments.
    """
    ops = find_ops()
    if op not in ops:
        raise UnsupportedError(f"explain: op={op!r} is not an op of an installed wheel; {where_ops_are(ops)}")
    info: OpInfo = ops[op].load()
    function = getattr(importlib.import_module(ops[op].module.partition(".")[0]), info.name, info.calls)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise UnsupportedError(f"explain: {error}; {op} takes {_parameters(function)}") from None
    explanation = explain_calls(info, info.calls(*args, **kwargs))
    print(explanation)
    return explanation


def where_ops_are(known: Collection[str]) -> str:
    """Which ops there are, and what is wrong where there should be more."""
    text = f"there are: {', '.join(known)}" if known else "there are none: no wheel with ops is installed"
    if folders := unnamed():
        text += (
            f". Nothing says which ops are in {', '.join(folders)}: no metadata of an installed wheel, and no "
            "pyproject.toml beside its folder src; install the wheel, or put src of a checkout on the path"
        )
    return text


def _parameters(function: Callable[..., Any]) -> str:
    """A function's parameters with their defaults, and no annotations."""
    signature = inspect.signature(function)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(plain))
