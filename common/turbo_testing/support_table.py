# SPDX-License-Identifier: MIT
"""The support table of a wheel's README, from the backends' own answers.

A README holds the table between two marker lines; a test of the wheel calls `check_readme`, which compares it with
what the backends answer today and, on a difference, prints the table to paste.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from turbo_core import AutoKernelDispatcher, BackendType, DeviceFacts, arch_facts, device, interpreter
from turbo_core.native import ARCHS, NativeLibrary

__all__ = ["PLACES", "check_readme", "standing_on", "support_table"]

BEGIN, END = "<!-- support table: begin -->", "<!-- support table: end -->"
_NVIDIA = DeviceFacts("sm_90", "nvidia", "NVIDIA H200", 132, 1, 32, 227 * 1024, False)
PLACES = {"gfx942": arch_facts("gfx942"), "gfx950": arch_facts("gfx950"), "NVIDIA": _NVIDIA, "CPU": None}


def _as_if_installed(library: NativeLibrary, where: torch.device, arch: str) -> tuple[str | None, bool]:
    """What a native library would find of a device where its kernels and a HIP run time are; not to be remembered."""
    return None if arch in ARCHS else f"the HIP kernels are for {' and '.join(ARCHS)}; {where} is {arch}", False


@contextmanager
def standing_on(facts: DeviceFacts | None) -> Iterator[torch.device]:
    """A device on which tensors of no memory can be made: a GPU with these facts, or the CPU."""
    where = torch.device("cpu" if facts is None else "cuda:0")
    # not `why_not` itself, which modules of wheels may have bound already, or would bind for good in here
    installed = mock.patch.object(NativeLibrary, "_find_reason", _as_if_installed)
    # not the variable itself: kernels that are imported in here must be like all others of the process
    compiled = mock.patch.object(interpreter, "requested", lambda: False)
    with FakeTensorMode(), compiled, installed:
        if facts is None:
            yield where
        else:
            with mock.patch.dict(device._facts, {where: facts}):
                yield where


def support_table(
    dispatcher: type[AutoKernelDispatcher],
    calls: Mapping[str, Callable[[torch.device], Any]],
    leave_out: Container[BackendType] = (),
) -> str:
    """Markdown: a row for each kind of call, a column for each backend, in it the places that backend serves.

    A place is bold where the backend is the one that serves the call when nobody has named one.

    ``leave_out``: backends whose answers depend on how the wheel was built.
    """
    backends = [backend for backend in dispatcher.backends if backend not in leave_out]
    lines = [f"| call | {' | '.join(backend.name for backend in backends)} |"]
    lines.append("|---" * (1 + len(backends)) + "|")
    for label, make in calls.items():
        served: dict[Any, list[str]] = {backend: [] for backend in backends}
        for place, facts in PLACES.items():
            with standing_on(facts) as where:
                call = make(where)
                chosen = dispatcher.resolve(call).backend
                for backend, why_not in dispatcher.answers(call).items():
                    if why_not is None and backend in served:
                        served[backend].append(f"**{place}**" if backend is chosen else place)
        lines.append(f"| {label} | {' | '.join(', '.join(places) or '-' for places in served.values())} |")
    return "\n".join(lines)


def check_readme(readme: Path, table: str, name: str = "") -> None:
    """Fail unless the README's table is ``table``; ``name`` tells several tables of one README apart."""
    begin, end = (mark.replace("table", f"table {name}".rstrip()) for mark in (BEGIN, END))
    _, found, rest = readme.read_text(encoding="utf-8").partition(begin)
    if not found or end not in rest:
        raise AssertionError(f"{readme}: no lines {begin} ... {end}; the table is:\n{table}")
    written = rest.partition(end)[0].strip()
    if written != table:
        raise AssertionError(f"{readme}: the support table is out of date; it should be:\n{table}")
