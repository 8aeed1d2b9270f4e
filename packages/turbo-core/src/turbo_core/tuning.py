# SPDX-License-Identifier: MIT
"""Auto-tuning: time the backends that can take a call, keep the winner, and have all ranks agree on it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from turbo_core.backend import BackendType
from turbo_core.calls import device_of
from turbo_core.errors import UnsupportedError
from turbo_core.log import logger
from turbo_core.requirements import require_torch
from turbo_core.tune_cache import TuneEntry, key_text

if TYPE_CHECKING:
    from turbo_core.dispatch import AutoKernelDispatcher, Backend

__all__ = ["deterministic_mode", "measure_milliseconds", "set_tune_group", "tune", "why_not_tune"]

WARM_UP_CALLS = 3
TIMED_CALLS = 20
# A candidate stops being timed once it has used this much; a slow reference needs no twenty calls.
SECONDS_PER_CANDIDATE = 0.25
# A challenger must beat the candidate before it in the fixed order by this much, or noise would decide between equals.
MARGIN = 0.03

_tuning_lock = threading.RLock()
_group: Any = None


def set_tune_group(group: Any) -> None:
    """Ranks that make the same calls in the same order, and must choose alike (a torch.distributed process group).

    Rank 0 of the group tunes and broadcasts the winner; a call that differs between ranks is an error on each. Without
    a group, a job of several ranks does not tune: loaded winners and defaults are used. None takes the group back.

    Raises:
        UnsupportedError: this rank is not in the group.
    """
    global _group
    if group is not None and require_torch().distributed.get_rank(group) < 0:
        raise UnsupportedError("set_tune_group: group does not hold this rank; give a group that does, or None")
    _group = group


def deterministic_mode() -> bool:
    """Whether torch was told to use deterministic algorithms."""
    return bool(require_torch().are_deterministic_algorithms_enabled())


def why_not_tune() -> str | None:
    """Why nothing may be timed now; None when it may."""
    torch = require_torch()
    if deterministic_mode():
        return "torch is in deterministic mode"
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return "the call is being traced"
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return "a graph is being captured"
    distributed = torch.distributed
    if (
        _group is None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    ):
        return "the job has several ranks and set_tune_group was not called"
    return None


def measure_milliseconds(impl: Backend, call: Any) -> float:
    """Median time of ``impl.execute(call)``: device events on a GPU, the host clock on a CPU."""
    torch = require_torch()
    device = device_of(call)
    on_gpu = device is not None and device.type == "cuda"
    times: list[float] = []
    with torch.no_grad():
        for _ in range(WARM_UP_CALLS):
            impl.execute(call)
        if on_gpu:
            torch.cuda.synchronize(device)
            stream = torch.cuda.current_stream(device)  # of the tensors' device, which need not be the current one
        started = time.perf_counter()
        while len(times) < TIMED_CALLS and (not times or time.perf_counter() - started < SECONDS_PER_CANDIDATE):
            if on_gpu:
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record(stream)
                impl.execute(call)
                end.record(stream)
                end.synchronize()
                times.append(begin.elapsed_time(end))
            else:
                began = time.perf_counter()
                impl.execute(call)
                times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def tune(dispatcher: type[AutoKernelDispatcher], call: Any, key: Hashable) -> TuneEntry | None:
    """The winner for ``call``, put into the dispatcher's cache; None when nothing may or can be timed."""
    reason = why_not_tune()
    if reason is not None:
        logger.info("%s is not auto-tuned: %s", dispatcher.op, reason, once=True)
        return None
    with _tuning_lock:  # one thread times at a time, or they would time each other
        entry = dispatcher.cache.get(key)
        if entry is None:
            entry = _agree(dispatcher.op, key_text(key), lambda: _fastest(dispatcher, call))
            if entry is not None:
                dispatcher.cache.put(key, entry)
        return entry


def _fastest(dispatcher: type[AutoKernelDispatcher], call: Any) -> TuneEntry | None:
    """Time every candidate on scratch outputs, so that the caller's tensors stay as they are."""
    scratch = dispatcher.scratch(call)
    best: TuneEntry | None = None
    for backend, impl in dispatcher.backends.items():
        if not impl.tunable or impl.why_not(scratch) is not None:
            continue
        try:
            milliseconds = measure_milliseconds(impl, scratch)
        except Exception as error:  # a candidate that fails is out of the race, whatever it failed with
            logger.warning("auto-tune of %s: %s failed and is left out: %r", dispatcher.op, backend.name, error)
            continue
        if best is None or milliseconds < best.milliseconds * (1 - MARGIN):
            best = TuneEntry(backend, milliseconds)
    return best


def _agree(op: str, key: str, find: Callable[[], TuneEntry | None]) -> TuneEntry | None:
    """The winner that rank 0 of the tune group finds, on every rank of the group; without a group, this process's."""
    if _group is None:
        return find()
    import torch.distributed as distributed

    source = distributed.get_global_rank(_group, 0)
    found: TuneEntry | None = None
    message: list[Any] = [None]
    try:
        if distributed.get_rank() == source:
            found = find()
    finally:  # whatever happened to the one that looks, the others wait for its word
        message[0] = (op, key, None if found is None else (found.backend.name, found.milliseconds))
        distributed.broadcast_object_list(message, src=source, group=_group)
    agreed_op, agreed_key, winner = message[0]
    if (agreed_op, agreed_key) != (op, key):
        raise UnsupportedError(
            f"auto-tune: ranks of the tune group make different calls: {op} {key} here, {agreed_op} {agreed_key} on "
            "its rank 0; give set_tune_group ranks that make the same calls, or load a saved cache"
        )
    return None if winner is None else TuneEntry(BackendType[winner[0]], winner[1])
