# SPDX-License-Identifier: MIT
"""pytest plugin (`-p tools.arch_plugin`): in the tests of Triton kernels CPU tensors stand for TURBO_TEST_ARCH.

So the interpreter runs with the tile and launch choices of that architecture. A test of a Triton kernel is one whose id
says so; the others, which are also about what plain CPU tensors get, run as they are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest


def _arch() -> str:
    arch = os.environ.get("TURBO_TEST_ARCH")
    if not arch:
        raise pytest.UsageError("tools.arch_plugin needs the variable TURBO_TEST_ARCH, such as gfx950")
    return arch


def pytest_report_header() -> str:
    return f"CPU tensors stand for {_arch()} in the tests of Triton kernels"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    from turbo_core import simulated_arch

    stands_for = simulated_arch(_arch()) if "triton" in item.nodeid.lower() else contextlib.nullcontext()
    with stands_for:
        return (yield)
