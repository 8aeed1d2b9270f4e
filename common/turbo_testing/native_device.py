# SPDX-License-Identifier: MIT
"""Where the tests of HIP kernels run: on the card, or on the simulator; else they are skipped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from turbo_core import device_facts
from turbo_core.device import simulated_arch_name


@contextlib.contextmanager
def native_device(arch: str) -> Iterator[torch.device]:
    """A device of that architecture for the block."""
    if torch.cuda.is_available() and device_facts("cuda").arch == arch:
        yield torch.device("cuda")
        return
    simulated = simulated_arch_name()
    if simulated == arch:
        yield torch.device("cpu")
        return
    if simulated is not None:
        pytest.skip(f"{simulated} is being simulated, the test is for {arch}")
    turbo_sim = pytest.importorskip("turbo_sim", reason=f"needs a {arch}, or turbo-sim")
    with turbo_sim.use(arch, triton=False):
        yield torch.device("cpu")
