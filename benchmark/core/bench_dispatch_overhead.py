# SPDX-License-Identifier: MIT
"""What the dispatcher adds to a call: time over calling the backend's ``execute`` with the same call object, warm.

    python benchmark/core/bench_dispatch_overhead.py -o overhead.csv

The GEMM is tiny, so that its own noise is small. Direct and dispatched calls alternate in short blocks; each row is the
median over the blocks of the difference between neighbours, which other work on the machine disturbs little. Rows of
the dispatcher count against ``--limit-us``; the rows below them, which tell what the operator around it costs
(torch.library, argument checks, autograd's bookkeeping), do not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmark.common.machine import find_machine
from benchmark.common.results import format_table, write_csv
from turbo_core import GlobalBackendManager
from turbo_gemm import gemm
from turbo_gemm.calls import GemmCall
from turbo_gemm.pytorch.kernels.gemm_impl import GemmDispatcher

VARIABLE = "PRIMUS_TURBO_GEMM_BACKEND"
COLUMNS = ["What", "Backend", "Added (us)", "Direct (us)", "Counts", "Within limit"]


@dataclass(frozen=True)
class Scale:
    """How often to measure: blocks of calls, direct and dispatched in turn."""

    blocks: int = 1000
    calls: int = 20


@contextmanager
def setting(backend: str | None = None, variable: str | None = None, auto_tune: bool = False) -> Iterator[None]:
    """Exactly these settings for the block."""
    before = os.environ.pop(VARIABLE, None)
    try:
        GlobalBackendManager.reset()
        if variable is not None:
            os.environ[VARIABLE] = variable
        GlobalBackendManager.set_gemm_backend(backend)
        GlobalBackendManager.set_auto_tune(auto_tune)
        yield
    finally:
        GlobalBackendManager.reset()
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


def block_us(function: Callable[[], object], calls: int) -> float:
    """Microseconds of this thread's own time a call, over a block of calls: other work does not count."""
    start = time.thread_time()
    for _ in range(calls):
        function()
    return 1e6 * (time.thread_time() - start) / calls


def added_us(function: Callable[[], object], direct: Callable[[], object], scale: Scale) -> tuple[float, float]:
    """Microseconds that ``function`` takes more than ``direct``, and what ``direct`` takes."""
    for each in (function, direct):
        block_us(each, scale.calls)
    differences, base = [], []
    for _ in range(scale.blocks):
        base.append(block_us(direct, scale.calls))
        differences.append(block_us(function, scale.calls) - base[-1])
        wait()
    return statistics.median(differences), statistics.median(base)


def wait() -> None:
    """Keep the queue of a GPU short, so that launches never wait for it to drain."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_all(device: torch.device, scale: Scale) -> list[dict[str, object]]:
    """All rows."""
    a, b = (torch.randn(16, 16, device=device, dtype=torch.bfloat16) for _ in range(2))
    call = GemmCall(a, b, None, False, False, torch.bfloat16)
    served = GemmDispatcher.resolve(call)
    impl = served.impl
    rows: list[dict[str, object]] = []

    def row(what: str, function: Callable[[], object], counts: bool) -> None:
        added, direct = added_us(function, lambda: impl.execute(call), scale)
        rows.append(
            {"What": what, "Backend": served.backend.name, "Added (us)": added, "Direct (us)": direct, "Counts": counts}
        )

    def dispatch() -> object:
        return GemmDispatcher.dispatch(call)

    with setting():
        row("dispatcher, default choice", dispatch, True)
    with setting(backend=served.backend.name):
        row("dispatcher, backend named in code", dispatch, True)
    with setting(variable=served.backend.name):
        row("dispatcher, backend named by the variable", dispatch, True)
    with setting(auto_tune=True):
        impl = GemmDispatcher.resolve(call).impl  # tunes; another backend may win
        row("dispatcher, auto-tuned winner from the cache", dispatch, True)
    impl = served.impl
    with setting():
        op = torch.ops.turbo_gemm.gemm
        row("torch.ops.turbo_gemm.gemm", lambda: op(a, b, None, False, False, torch.bfloat16, "forward"), False)
        row("turbo_gemm.gemm", lambda: gemm(a, b), False)
        a.requires_grad_()
        row("turbo_gemm.gemm, recording for autograd", lambda: gemm(a, b), False)
    return rows


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--limit-us", type=float, help="fail if the dispatcher adds more microseconds a call")
    parser.add_argument("-o", "--output", type=Path, help="CSV file")
    parser.add_argument("--device", help="default: the first GPU, else the CPU")
    parser.add_argument("--smoke", action="store_true", help="few calls: shows that the benchmark works")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print; 0 unless a row that counts is above the limit."""
    args = parse_args(argv)
    machine = find_machine(args.device)
    rows = measure_all(machine.device, Scale(blocks=20) if args.smoke else Scale())
    limit = args.limit_us
    for row in rows:
        within = limit is None or not row["Counts"] or float(str(row["Added (us)"])) <= limit
        row["Within limit"] = "" if limit is None or not row["Counts"] else "yes" if within else "NO"
    print(f"{machine.platform}, {machine.name}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    print(format_table(COLUMNS, rows))
    if args.output:
        write_csv(args.output, COLUMNS, rows)
    return 1 if any(row["Within limit"] == "NO" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
