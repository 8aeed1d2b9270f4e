# SPDX-License-Identifier: MIT
"""`group_offs_from_lens`: where groups of rows begin."""

from __future__ import annotations

import torch

from turbo_core import UnsupportedError

__all__ = ["group_offs_from_lens"]


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
