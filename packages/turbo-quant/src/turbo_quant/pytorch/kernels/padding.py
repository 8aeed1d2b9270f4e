# SPDX-License-Identifier: MIT
"""Answers a `PadGroupsCall`: by one launch on a GPU, where torch operations on a few numbers would be a dozen.

It is no choice of a backend, since the answer is integers that all would agree on.
"""

from __future__ import annotations

from turbo_core import why_no_triton
from turbo_core.launch import start
from turbo_quant.calls import PaddedGroups, PadGroupsCall
from turbo_quant.pytorch.kernels import grouping

__all__ = ["pad_groups"]

_MAX_GROUPS = 4096  # that one program scans


def pad_groups(call: PadGroupsCall) -> PaddedGroups:
    """Compute the call."""
    device, groups = call.lens.device, call.lens.shape[0]
    if device.type != "cuda" or not 0 < groups <= _MAX_GROUPS or why_no_triton(device) is not None:
        return grouping.padded_groups(*call)
    from turbo_quant.triton.padding_kernel import plan_pad_groups

    made: PaddedGroups = start(*plan_pad_groups(call))
    return made
