# SPDX-License-Identifier: MIT
"""Where groups of rows begin: from their lengths, or from the layout of their matrices."""

from __future__ import annotations

import torch

from turbo_core import UnsupportedError
from turbo_grouped_gemm.calls import Groups

__all__ = ["group_offs_from_lens", "masked_groups"]


def group_offs_from_lens(group_lens: torch.Tensor) -> torch.Tensor:
    """int64 [G+1], on the device of ``group_lens``: where each group begins and the last ends; no sync.

    Args:
        group_lens: [G], int64 or int32, rows of each group.

    Raises:
        UnsupportedError: it is something else.
    """
    vector = isinstance(group_lens, torch.Tensor) and group_lens.dim() == 1
    if not vector or group_lens.dtype not in (torch.int64, torch.int32):
        what = f"shape {list(group_lens.shape)}, {group_lens.dtype}" if vector else f"a {type(group_lens).__name__}"
        raise UnsupportedError(f"group_offs_from_lens: group_lens is {what}; an int64 or int32 vector is accepted")
    return torch.nn.functional.pad(group_lens.cumsum(0, dtype=torch.int64), (1, 0))


def masked_groups(counts: torch.Tensor, room: int) -> Groups:
    """The groups of [G,room,K] as [G*room,K]: group g has the first counts[g] rows of its ``room``."""
    return Groups(counts, torch.arange(counts.shape[0] + 1, device=counts.device) * room)
