# SPDX-License-Identifier: MIT
"""Runs a function on several ranks, each its own process: gloo on the CPU, NCCL or RCCL with one GPU a rank.

    def exchange(rank, world_size, n):
        t = torch.full((n,), float(rank))
        dist.all_reduce(t)
        return t

    def test_exchange():
        assert run_ranks(exchange, 2, 8)[1].sum() == 8

The function lives at the top of a module; it may be a test module, which a child cannot import by name under pytest's
importlib mode: the child loads it by path. Processes come from a fork server that has torch loaded: 0.1 s for two
ranks, where spawn takes 2.7 s, and plain fork hangs once OpenMP has run. Ranks meet through a file, so no port is raced
for. The first failure ends the run and is raised with its rank and traceback, a rank that dies or hangs is named, and
for a hang the stacks of all ranks are shown.
"""

from __future__ import annotations

import datetime
import faulthandler
import importlib
import importlib.util
import inspect
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from turbo_testing import interpreter

_GRACE = 2.0
"""Seconds that the other ranks get to report after the first failure, before they are ended."""


class RankError(RuntimeError):
    """A rank raised, died or hung. `.rank` says which, `.__cause__` is its exception where it could be sent."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class _Job(NamedTuple):
    """What a child is told; `call` is pickled separately, after the function's module is loaded."""

    module: str
    path: str
    qualname: str
    call: bytes
    world_size: int
    backend: str
    timeout: float
    folder: str
    environ: dict[str, str]
    cuda: bool


def _resolve(module: str, path: str, qualname: str) -> Callable[..., Any]:
    """The function, from its module imported by name where that gives the same file, else loaded by path."""
    from turbo_testing.cases import load_file

    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin and Path(spec.origin).resolve() == Path(path).resolve():
        found: Any = importlib.import_module(module)
    else:
        found = load_file(Path(path), module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def _child(rank: int, job: _Job, pipe: multiprocessing.connection.Connection) -> None:
    """One rank: set up, call, send ("ok", result), ("skip", reason) or ("error", exception or None, text)."""
    answer: tuple[Any, ...]
    with open(os.path.join(job.folder, f"stack{rank}"), "w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        try:
            answer = ("ok", _run(rank, job))
        except pytest.skip.Exception as skipped:  # itself it does not survive pickling
            answer = ("skip", str(skipped))
        except BaseException as error:  # SystemExit too
            answer = ("error", error, "".join(traceback.format_exception(error)))
        try:
            data = pickle.dumps(answer)
            pickle.loads(data)  # an exception may pickle and then refuse to come back
        except Exception as error:
            text = answer[2] if answer[0] == "error" else f"the result cannot be pickled: {error!r}"
            data = pickle.dumps(("error", None, text))
        pipe.send_bytes(data)
        pipe.close()


def _run(rank: int, job: _Job) -> Any:
    os.environ.clear()
    os.environ.update(job.environ)
    import torch
    import torch.distributed as dist

    interpreter.install_if_requested()
    torch.set_num_threads(1)
    if job.cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        job.backend,
        init_method=Path(job.folder, "store").as_uri(),
        rank=rank,
        world_size=job.world_size,
        timeout=datetime.timedelta(seconds=job.timeout),
    )
    function = _resolve(job.module, job.path, job.qualname)
    result = function(rank, job.world_size, *pickle.loads(job.call))
    dist.destroy_process_group()
    return result


def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    modules = ["torch", "torch.distributed", "pytest"]
    if interpreter.requested():
        modules.append("triton.runtime.interpreter")
    context.set_forkserver_preload(modules)  # what is not installed is passed over
    return context


def run_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, backend: str = "gloo", timeout: float = 60
) -> list[Any]:
    """Calls fn(rank, world_size, *args) on every rank inside a process group; returns the results by rank.

    Arguments and results are pickled. Children see this process's environment as it is now. With backend "nccl" rank r
    uses GPU r. Raises RankError; a pytest.skip in a rank skips the test.
    """
    path = inspect.getsourcefile(fn)
    if path is None or "<" in fn.__qualname__:
        raise ValueError(f"run_ranks: {fn!r} must be a function at the top of a module, a child has to find it")
    cuda = "nccl" in backend
    if cuda:
        import torch

        if torch.cuda.device_count() < world_size:
            raise ValueError(
                f"run_ranks: {world_size} ranks need as many GPUs, {torch.cuda.device_count()} are visible"
            )
    environ = dict(os.environ)
    if sys.platform == "linux":
        environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # needs no resolvable host name
    context = _context()
    with tempfile.TemporaryDirectory(prefix="turbo_ranks_") as folder:
        job = _Job(
            fn.__module__,
            path,
            fn.__qualname__,
            pickle.dumps(args),
            world_size,
            backend,
            timeout,
            folder,
            environ,
            cuda,
        )
        pipes, processes = [], []
        try:
            for rank in range(world_size):
                receive, send = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(rank, job, send), daemon=True, name=f"rank{rank}")
                process.start()
                send.close()
                pipes.append(receive)
                processes.append(process)
            return _collect(pipes, processes, timeout, folder)
        finally:
            for process in processes:
                _end(process)
            for pipe in pipes:
                pipe.close()


def _end(process: Any) -> None:
    """Ends a child that is still there: after success there is none, _collect has seen them leave."""
    if process.is_alive():
        process.terminate()
        process.join(_GRACE)
    if process.is_alive():
        process.kill()
        process.join()


def _collect(pipes: list[Any], processes: list[Any], timeout: float, folder: str) -> list[Any]:
    results: dict[int, Any] = {}
    # In the order in which they came, but a dead rank first: the others fail because it left, and may say so sooner.
    failures: list[tuple[int, BaseException | None, str]] = []
    waiting = dict(zip(pipes, range(len(pipes))))
    deadline = time.monotonic() + timeout
    while waiting:
        ready = multiprocessing.connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            rank = waiting.pop(pipe)
            try:
                answer = pickle.loads(pipe.recv_bytes())
            except EOFError:
                processes[rank].join(_GRACE)
                answer = ("died", None, f"the process died without a word, exit code {processes[rank].exitcode}")
            if answer[0] == "ok":
                results[rank] = answer[1]
                continue
            if answer[0] == "skip":
                pytest.skip(answer[1])
            if not failures:
                deadline = min(deadline, time.monotonic() + _GRACE)
            failures.insert(0 if answer[0] == "died" else len(failures), (rank, answer[1], answer[2]))
    if failures:
        _raise(failures, len(pipes))
    if waiting:
        hung = sorted(waiting.values())
        stacks = "".join(f"\nrank {rank}:\n{_stack(processes[rank], folder, rank)}" for rank in hung)
        raise RankError(hung[0], f"no answer from ranks {hung} of {len(pipes)} within {timeout:g} s{stacks}")
    for process in processes:
        process.join(_GRACE)
    return [results[rank] for rank in range(len(pipes))]


def _stack(process: Any, folder: str, rank: int) -> str:
    """Where a hanging child is: it writes its stack on SIGUSR1, whatever it is doing."""
    path = Path(folder, f"stack{rank}")
    if not path.exists():
        return "it has not started yet"
    os.kill(process.pid, signal.SIGUSR1)
    deadline = time.monotonic() + _GRACE
    while not path.read_text().endswith("\n") and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    return path.read_text()


def _raise(failures: list[tuple[int, BaseException | None, str]], world_size: int) -> None:
    """Raises the first failure (the others are mostly its consequences, and get a line each)."""
    rank, error, text = failures[0]
    others = "".join(f"\nrank {r} then failed: {t.strip().splitlines()[-1]}" for r, _, t in failures[1:])
    raise RankError(rank, f"rank {rank} of {world_size} failed\n{text.rstrip()}{others}") from error
