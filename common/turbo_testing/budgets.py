# SPDX-License-Identifier: MIT
"""What the tests of each wheel may cost, compared with what they cost (`--budgets`, which the nox sessions give).

The cost is CPU time, of a test's process and of those that it started: it depends little on what else the machine does.
A run fails when a wheel passes its budget by half. Machines differ, so that on a slower one than that of the
measurements budgets are longer by as much as a fixed piece of Python takes longer there.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["BUDGETS", "Budget", "Cost", "Meter", "over", "table", "wheel_of"]


@dataclass(frozen=True)
class Budget:
    """CPU seconds: what the tests may take, and what they took when it was set (empty caches, two workers)."""

    seconds: float
    measured: float


# x86-64 server, two cores, without a GPU, 2026-12-01: one run of all tests while other programs took a part of both
# cores, less what the short audits of turbo-quant and turbo-gemm have been cut by since.
BUDGETS: Mapping[str, Budget] = {
    "turbo-attention": Budget(360, measured=312),
    "turbo-core": Budget(33, measured=22),
    "turbo-gemm": Budget(440, measured=390),
    "turbo-grouped-gemm": Budget(540, measured=490),
    "turbo-norm-act": Budget(190, measured=158),
    "turbo-quant": Budget(600, measured=540),
    "turbo-sim": Budget(520, measured=493),
    "primus-turbo": Budget(45, measured=30),
    "of several wheels": Budget(820, measured=791),
}

FAILS_AT = 1.5  # times the budget
REFERENCE_PACE = 0.04  # CPU seconds of _pace() on the machine of the measurements


@dataclass
class Cost:
    """Tests that ran, and their CPU seconds."""

    tests: int = 0
    seconds: float = 0.0


def wheel_of(nodeid: str) -> str:
    """The wheel whose tests hold `nodeid`; tests outside of packages/ are of several wheels."""
    parts = nodeid.split("/")
    return parts[1] if parts[0] == "packages" and len(parts) > 2 else "of several wheels"


def over(costs: Mapping[str, Cost], budgets: Mapping[str, Budget] = BUDGETS, slower: float = 1.0) -> list[str]:
    """A sentence for each wheel that passed its budget by half, on a machine that is `slower` times slower."""
    limits = {name: budget.seconds * max(slower, 1.0) for name, budget in budgets.items()}
    return [
        f"the tests of {name} took {cost.seconds:.0f} s of CPU time, more than {FAILS_AT} times their budget of "
        f"{limits[name]:.0f} s"
        for name, cost in sorted(costs.items())
        if name in limits and cost.seconds > FAILS_AT * limits[name]
    ]


def table(costs: Mapping[str, Cost], budgets: Mapping[str, Budget] = BUDGETS, slower: float = 1.0) -> list[str]:
    """Lines: wheel, tests, CPU seconds, budget."""
    lines = [f"{'wheel':<18} {'tests':>6} {'CPU s':>6} {'budget':>6}"]
    for name, cost in sorted(costs.items()):
        limit = f"{budgets[name].seconds * max(slower, 1.0):.0f}" if name in budgets else "none"
        lines.append(f"{name:<18} {cost.tests:>6} {cost.seconds:>6.0f} {limit:>6}")
    total = Cost(sum(cost.tests for cost in costs.values()), sum(cost.seconds for cost in costs.values()))
    return [*lines, f"{'all':<18} {total.tests:>6} {total.seconds:>6.0f}"]


def _cpu() -> float:
    """CPU seconds of this process and its descendants: of those that it waited for, and on Linux of those that live."""
    return sum(os.times()[:4]) + sum(map(_cpu_of, _children(os.getpid())))


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # no Linux, or the process has ended
        return []


def _cpu_of(pid: int) -> float:
    """Of a process, of those that it waited for (a server that forks ranks lives as long as the session), and below."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # utime, stime, and both of what was waited for
    return own + sum(map(_cpu_of, _children(pid)))


def _pace() -> float:
    """CPU seconds of a fixed piece of Python; the least of a few, since a busy machine only adds."""

    def once() -> float:
        start = time.process_time()
        counts: Counter[int] = Counter()
        for number in range(200_000):
            counts[number & 255] += number
        return time.process_time() - start

    return min(once() for _ in range(5))


class Meter:
    """The plugin: each report carries its CPU seconds, and the process that prints adds them up.

    Args:
        checked: whether too much fails the run. A GPU runs more tests, at real shapes: there the table is only printed.
    """

    def __init__(self, checked: bool) -> None:
        self.checked = checked
        self.costs: defaultdict[str, Cost] = defaultdict(Cost)
        self.read = _cpu()
        self.slower = 1.0

    def pytest_collection_finish(self) -> None:
        """What follows is of tests."""
        self.read = _cpu()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Setup, call and teardown of a test have a report each."""
        report = yield
        now = _cpu()
        report.cpu_seconds = now - self.read  # type: ignore[attr-defined]
        self.read = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Here come the reports of all workers."""
        cost = self.costs[wheel_of(report.nodeid)]
        cost.seconds += getattr(report, "cpu_seconds", 0.0)
        cost.tests += report.when == "call"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A wheel far past its budget fails a run that passed."""
        if self.checked:
            self.slower = _pace() / REFERENCE_PACE
        if self.over() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def over(self) -> list[str]:
        """See `over`."""
        return over(self.costs, slower=self.slower) if self.checked else []

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, and what passed its budget."""
        if not self.costs:
            return
        terminalreporter.section("CPU time by wheel", sep="-")
        for line in table(self.costs, slower=self.slower):
            terminalreporter.line(line)
        for line in self.over():
            terminalreporter.line(line, red=True)
