# SPDX-License-Identifier: MIT
"""pytest fixtures, loaded by an entry point: `simulator` runs a test once per architecture, `gfx942` and `gfx950` on one.

    def test_add(simulator):
        assert simulator.arch in ("gfx942", "gfx950")
        ...                            # CPU tensors are that device's

Tests that use them are skipped with the reason where Triton's interpreter is on (TRITON_INTERPRET=1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from turbo_sim.session import Session


def _session(arch: str) -> Iterator[Session]:
    from turbo_sim.session import use
    from turbo_sim.triton_driver import loaded, why_not

    reason = why_not() if loaded() else None
    if reason is not None:
        pytest.skip(reason)
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
