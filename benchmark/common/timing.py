# SPDX-License-Identifier: MIT
"""Timing: the median of many calls, several functions side by side.

The functions take turns in short rounds, so a change of clocks hits all of them and their ratio stands. A GPU is timed
with events around each call, a CPU with the host's clock. Every function gets the number of the call and picks its
inputs by it, so that it can rotate among sets of inputs that do not fit into a cache together.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

ROUNDS = 5


@dataclass(frozen=True)
class Budget:
    """How long to measure one function: ``timed`` calls after ``warm_up``, fewer where they exceed ``seconds``.

    ``settle``: seconds of untimed calls before each turn. Under load a GPU lowers its clocks to keep to its power, a
    few tens of milliseconds later; without this a function has the clocks that the one before it left.
    """

    warm_up: int = 20
    timed: int = 100
    seconds: float = 1.0
    least: int = ROUNDS
    settle: float = 0.0


@dataclass(frozen=True)
class Measurement:
    """Median time of a call, and of how many."""

    milliseconds: float
    calls: int


def measure(
    functions: Mapping[str, Callable[[int], object]], device: torch.device, budget: Budget
) -> dict[str, Measurement]:
    """Median time of each function by its name."""
    calls = {name: _warm_up(function, device, budget) for name, function in functions.items()}
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(ROUNDS):
        for name, function in functions.items():
            share = calls[name] * (turn + 1) // ROUNDS - calls[name] * turn // ROUNDS
            _settle(function, device, budget.settle)
            times[name] += _time_calls(function, len(times[name]), share, device)
    return {name: Measurement(statistics.median(values), len(values)) for name, values in times.items()}


def host_microseconds(
    functions: Mapping[str, Callable[[int], object]], device: torch.device, calls: int = 20
) -> dict[str, float]:
    """Median time until a call returns, by name; on a GPU its work may then still be to do. The device is idle before
    each call, so that none waits for room in its queue."""
    found = {}
    for name, function in functions.items():
        times = []
        for number in range(calls):
            _wait(device)
            start = time.perf_counter()
            function(number)
            times.append(1e6 * (time.perf_counter() - start))
        found[name] = statistics.median(times)
    _wait(device)
    return found


def input_sets(bytes_per_set: int, cache_bytes: int, most: int = 16) -> int:
    """How many sets of inputs to rotate among, so that a call finds none of its inputs in the cache."""
    if bytes_per_set > 2 * cache_bytes:
        return 1
    return max(2, min(most, -(-3 * cache_bytes // max(1, bytes_per_set))))


def _warm_up(function: Callable[[int], object], device: torch.device, budget: Budget) -> int:
    """Call the function until it is warm; returns how many timed calls the budget allows."""
    function(0)  # compiles, loads, allocates
    _wait(device)
    start = time.perf_counter()
    done = 0
    while done < budget.warm_up and (done < 2 or time.perf_counter() - start < budget.seconds / 4):
        function(done)
        done += 1
        if done <= 2:
            _wait(device)  # launches are quick even where the work is not
    _wait(device)
    each = (time.perf_counter() - start) / done
    return max(budget.least, min(budget.timed, int(budget.seconds / max(each, 1e-9))))


def _settle(function: Callable[[int], object], device: torch.device, seconds: float) -> None:
    start, number = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(4):
            function(number)
            number += 1
        _wait(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _time_calls(function: Callable[[int], object], first: int, count: int, device: torch.device) -> list[float]:
    """Milliseconds of each of ``count`` calls."""
    if device.type != "cuda":
        times = []
        for number in range(first, first + count):
            start = time.perf_counter()
            function(number)
            times.append(1e3 * (time.perf_counter() - start))
        return times
    with torch.cuda.device(device):
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
        for number, (begin, end) in zip(range(first, first + count), events):
            begin.record()
            function(number)
            end.record()
        torch.cuda.synchronize(device)
    return [begin.elapsed_time(end) for begin, end in events]
