# SPDX-License-Identifier: MIT
"""`padded_groups`: where groups of rows begin and where with their padding, for quantisation group by group."""

from __future__ import annotations

import torch

from turbo_core.low_precision import MX_PADDING
from turbo_quant.calls import PaddedGroups, PadGroupsCall, specs
from turbo_quant.pytorch.kernels.padding import pad_groups
from turbo_quant.pytorch.ops.library import library

__all__ = ["padded_groups"]

_pad = library.op("pad_groups", PadGroupsCall, pad_groups, specs, result=PaddedGroups)


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
