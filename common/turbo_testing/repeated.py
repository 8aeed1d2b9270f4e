# SPDX-License-Identifier: MIT
"""What a GPU does with calls that repeat, on the CPU: launches are kept, and started again by Triton's interpreter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from turbo_core import AutoKernelDispatcher
from turbo_core.launch import Launch, fill_with_zeros

__all__ = ["calls_are_kept"]


class _Interpreted:
    """What stands for a compiled kernel: ``[grid]`` of it takes all arguments by position."""

    def __init__(self, launch: Launch, started: list[str]) -> None:
        self._kernel, self._started = launch.kernel, started
        self._given = {**launch.arguments, **launch.constants}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def start(*arguments: Any) -> None:
            self._started.append(self._kernel.fn.__name__)
            named = zip(self._kernel.arg_names, arguments, strict=True)
            self._kernel[grid](**{name: value for name, value in named if name in self._given})

        return start


@contextlib.contextmanager
def calls_are_kept() -> Iterator[list[str]]:
    """Inside, dispatchers keep what was decided of CPU calls, with launches; gives the kernels started from those."""
    started: list[str] = []
    dispatch, run = vars(AutoKernelDispatcher)["dispatch"], Launch.run

    def kept(cls: type[AutoKernelDispatcher], call: Any) -> Any:
        return cls._repeated(call, torch.device("cpu"))

    def run_and_keep(launch: Launch, device: torch.device) -> Any:
        for name in launch.zeroed:
            fill_with_zeros(launch.arguments[name])
        launch._search(device)
        return _Interpreted(launch, started)

    AutoKernelDispatcher.dispatch = classmethod(kept)  # type: ignore[method-assign, assignment]
    Launch.run = run_and_keep  # type: ignore[method-assign]
    try:
        yield started
    finally:
        AutoKernelDispatcher.dispatch, Launch.run = dispatch, run  # type: ignore[method-assign]
