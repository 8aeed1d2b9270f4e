# SPDX-License-Identifier: MIT
"""Memory that a call takes."""

from __future__ import annotations

from collections.abc import Callable

import torch


def peak_mib(function: Callable[[], object], device: torch.device) -> float | None:
    """The most MiB in use at any time of a call, beyond what was in use before it; None where torch does not count."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = function()  # kept until the peak is read
    torch.cuda.synchronize(device)
    peak = (torch.cuda.max_memory_allocated(device) - before) / 2**20
    del result
    return peak
