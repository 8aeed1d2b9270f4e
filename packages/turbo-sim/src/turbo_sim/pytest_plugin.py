# SPDX-License-Identifier: MIT
"""pytest: fixtures, and an option that runs a whole session on a simulated device.

    def test_add(simulator):           # once per architecture; fixtures gfx942 and gfx950: on one
        ...                            # CPU tensors are that device's; simulator is a turbo_sim.Session

    TRITON_INTERPRET=0 pytest --simulate gfx950 packages/turbo-gemm/tests

Both need a process without Triton's interpreter: fixtures skip the test with the reason, the option is a usage error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from turbo_sim.session import Session

_STACK = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("turbo-sim")
    group.addoption(
        "--simulate",
        metavar="ARCH",
        choices=["gfx942", "gfx950"],
        help="run on a simulated gfx942 or gfx950: CPU tensors are its",
    )
    group.addoption("--simulate-checks", default="all", help="checks of the simulator: all, none or a list")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    arch = config.getoption("--simulate")
    if not arch:
        return
    from turbo_sim.session import use
    from turbo_sim.triton_driver import why_not

    reason = why_not()
    if reason is not None and "cannot be imported" not in reason:
        raise pytest.UsageError(f"--simulate: {reason}")
    checks = config.getoption("--simulate-checks")
    config.stash[_STACK] = ExitStack()
    config.stash[_STACK].enter_context(use(arch, checks=checks == "all" or (checks != "none" and checks.split(","))))


def pytest_unconfigure(config: pytest.Config) -> None:
    stack = config.stash.get(_STACK, None)
    if stack is not None:
        stack.close()


def pytest_report_header(config: pytest.Config) -> str | None:
    arch = config.getoption("--simulate")
    return f"turbo-sim: {arch} simulated on the CPU; checks: {config.getoption('--simulate-checks')}" if arch else None


def _session(arch: str) -> Iterator[Session]:
    from turbo_sim.session import use
    from turbo_sim.triton_driver import interpreting

    if interpreting():
        pytest.skip("Triton's interpreter is on (TRITON_INTERPRET): the simulator needs a process without it")
    with use(arch) as session:
        yield session


@pytest.fixture(params=["gfx942", "gfx950"])
def simulator(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A simulated device; the test runs on each."""
    yield from _session(request.param)


@pytest.fixture
def gfx942() -> Iterator[Session]:
    """A simulated MI300X."""
    yield from _session("gfx942")


@pytest.fixture
def gfx950() -> Iterator[Session]:
    """A simulated MI355X."""
    yield from _session("gfx950")
