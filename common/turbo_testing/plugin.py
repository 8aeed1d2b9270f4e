# SPDX-License-Identifier: MIT
"""The pytest plugin of the repository (loaded by the root conftest.py).

Options
    --deterministic-only   run only tests marked `deterministic`
    --dist-only            run only distributed tests; the two together are a usage error
    Without either, everything runs that can: a bit-for-bit repeat is worth checking in every run.
    --full                 what a run without a GPU thins: whole products (`covering`), the tests marked `full`
    --budgets              compare the CPU time of each wheel's tests with its budget: too much fails the run
    --aiter-wheel FILE     the amd-aiter wheel, whose kernels turbo-sim's tests run (nox fetches it)

Markers
    deterministic          the test compares repeated runs bit for bit
    dist                   the test runs several ranks (classes derived from torch's multi-process test cases count too)
    gpu(count=1)           needs that many GPUs, else it is skipped with the reason
    simulated              the test runs on simulated machine code too, where `nox -s test-<arch>` finds no card
    covering(strength=2)   of the product of its parameters, rows that hold every pair of values, where there is no GPU
    full                   repeats on more cases what another test shows: runs on a GPU, and with --full
    audit_full             the long half of the ahead-of-time compile audit: deselected unless -m names the marker
    long_build             builds C++ for minutes: likewise
    all_objects            disassembles what every other run takes a sample of: likewise

Devices
    Worker gwN of `pytest -n` takes GPU N % count through HIP_VISIBLE_DEVICES (CUDA_VISIBLE_DEVICES on CUDA) before
    torch initialises; a list that the caller set is respected. Distributed tests over GPUs need all of them: run
    `--dist-only` without -n (under -n with --dist-only workers are not pinned).
    Without a GPU, TRITON_INTERPRET=1 is set before triton is imported, unless the caller set the variable, and the
    interpreter's arithmetic is mended (turbo_core.interpreter).

Report
    The first header line says device, arch, versions and whether the interpreter is on. The summary ends with a table
    of skip reasons and their counts. Works without torch and without triton.
"""

from __future__ import annotations

import os
import random
import sys
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest

from turbo_core import GlobalBackendManager
from turbo_testing import budgets, devices, interpreter, selection
from turbo_testing.fake_hip import fake_hip, fake_hip_library  # noqa: F401  (fixtures)
from turbo_testing.poison import poisoned_allocations  # noqa: F401  (a fixture)

_COUNT = pytest.StashKey[int]()
_LEFT_OUT = pytest.StashKey["Counter[str]"]()


def _is_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the options. This hook is the first that runs here, before any other conftest can import triton."""
    group = parser.getgroup("turbo")
    group.addoption("--deterministic-only", action="store_true", help="run only tests marked deterministic")
    group.addoption("--dist-only", action="store_true", help="run only distributed tests")
    group.addoption("--full", action="store_true", help="run whole products, and the tests marked full")
    group.addoption("--budgets", action="store_true", help="check the CPU time of each wheel's tests")
    group.addoption(
        "--aiter-wheel", metavar="FILE", help="the amd-aiter wheel, whose kernels the simulator's tests run"
    )
    count = devices.gpu_count()
    os.environ[devices.COUNT_VARIABLE] = str(count)
    if count == 0:
        interpreter.request()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--deterministic-only") and config.getoption("--dist-only"):
        raise pytest.UsageError("--deterministic-only and --dist-only exclude each other")
    for line in selection.MARKERS:
        config.addinivalue_line("markers", line)
    count = int(os.environ[devices.COUNT_VARIABLE])
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    pinned = None
    if worker and not config.getoption("--dist-only"):
        pinned = devices.pin_worker(os.environ, worker, count, devices.is_rocm())
    if pinned is not None:
        count = 1
    config.stash[_COUNT] = count
    config.stash[_LEFT_OUT] = Counter()
    if config.getoption("--budgets"):
        checked = count == 0 and not config.getoption("--full") and not _is_worker()
        config.pluginmanager.register(budgets.Meter(checked), "turbo-budgets")
    interpreter.install_if_requested()


@pytest.hookimpl(trylast=True)  # pytest prints the answers in reverse: the last one called comes first
def pytest_report_header(config: pytest.Config) -> str:
    return _description(config)


def _description(config: pytest.Config) -> str:
    xdist = bool(getattr(config.option, "numprocesses", None) or getattr(config.option, "tx", None))
    return devices.describe(config.stash[_COUNT], initialise=not xdist or _is_worker())


@pytest.hookimpl(trylast=True)  # after -k and -m: what they leave of a product is thinned
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, config.stash[_LEFT_OUT] = selection.choose(config, items, config.stash[_COUNT])
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("gpu"):
        needed = marker.args[0] if marker.args else marker.kwargs.get("count", 1)
        count = item.config.stash[_COUNT]
        if count == 0:
            pytest.skip("needs a GPU; this run is on the CPU")
        if count < needed:
            pytest.skip(f"needs {needed} GPUs; this process sees {count}")


def skip_table(reasons: Counter[str]) -> list[str]:
    """Lines `count  reason`, most frequent first."""
    width = max((len(str(count)) for count in reasons.values()), default=0)
    return [f"{count:>{width}}  {reason}" for reason, count in sorted(reasons.items(), key=lambda kv: (-kv[1], kv[0]))]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        longrepr = report.longrepr
        reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
        reason = reason.removeprefix("Skipped: ").strip() or "no reason given"
        reasons[reason if report.when != "collect" else f"{reason} (whole module)"] += 1
    left_out = config.stash[_LEFT_OUT]
    if not reasons and not left_out:
        return
    terminalreporter.section("skipped, by reason", sep="-")
    terminalreporter.line(_description(config))
    for line in skip_table(reasons):
        terminalreporter.line(line)
    for line in skip_table(left_out):
        terminalreporter.line(f"{line} (deselected)")


@pytest.fixture
def device():  # type: ignore[no-untyped-def]
    """torch.device: "cuda" (also on ROCm) where there is a GPU, else "cpu"."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seeds random, numpy and torch from the test's id: the same numbers alone, in a run and on any worker.

    A library that is not loaded is not imported for it. Returns the seed.
    """
    value = zlib.crc32(request.node.nodeid.encode())
    random.seed(value)
    for name, attribute in (("numpy", "random.seed"), ("torch", "manual_seed")):
        function = sys.modules.get(name)
        for part in attribute.split("."):
            function = getattr(function, part, None)
        if function is not None:
            function(value)
    return value


@pytest.fixture(autouse=True)
def reset_backends() -> Iterator[None]:
    """Puts turbo_core's global backend choices back after each test."""
    yield
    GlobalBackendManager.reset()
