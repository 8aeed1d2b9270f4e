# SPDX-License-Identifier: MIT
"""`padded_groups`: where groups of rows begin and where with their padding, for quantisation group by group.

One launch on a GPU: as torch operations on a few numbers it would be a dozen. It is no choice of a backend, since the
answer is integers that all would agree on.
"""

from __future__ import annotations

import torch

from turbo_core import why_no_triton
from turbo_core.launch import start
from turbo_core.low_precision import MX_PADDING
from turbo_quant.calls import PaddedGroups, PadGroupsCall, specs
from turbo_quant.pytorch.kernels import grouping
from turbo_quant.pytorch.ops.library import library

__all__ = ["padded_groups"]

_MAX_GROUPS = 4096  # that one program scans


def _pad_groups(call: PadGroupsCall) -> PaddedGroups:
    device, groups = call.lens.device, call.lens.shape[0]
    if device.type != "cuda" or not 0 < groups <= _MAX_GROUPS or why_no_triton(device) is not None:
        return grouping.padded_groups(*call)
    from turbo_quant.triton.padding_kernel import plan_pad_groups

    made: PaddedGroups = start(*plan_pad_groups(call))
    return made


_pad = library.op("pad_groups", PadGroupsCall, _pad_groups, specs, result=PaddedGroups)


def padded_groups(
    group_lens: torch.Tensor, group_offs: torch.Tensor | None, rows: int, multiple: int = MX_PADDING
) -> PaddedGroups:
    """Where the groups of ``rows`` rows begin, and where with each group's rows rounded up to ``multiple``.

    Args:
        group_lens, group_offs, rows, multiple: see `PadGroupsCall`. The padded groups end by
            ``rows + G * (multiple - 1)`` rounded up to ``multiple``.
    """
    groups: PaddedGroups = _pad(PadGroupsCall(group_lens, group_offs, rows, multiple))
    return groups
