# SPDX-License-Identifier: MIT
"""pytest plugin (`-p tools.arch_plugin`): for the whole run CPU tensors stand for the architecture TURBO_TEST_ARCH."""

from __future__ import annotations

import contextlib
import os

import pytest

_run = contextlib.ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    arch = os.environ.get("TURBO_TEST_ARCH")
    if not arch:
        raise pytest.UsageError("tools.arch_plugin needs the variable TURBO_TEST_ARCH, such as gfx950")
    from turbo_core import simulated_arch

    _run.enter_context(simulated_arch(arch))


def pytest_unconfigure(config: pytest.Config) -> None:
    _run.close()
