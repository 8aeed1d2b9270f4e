# SPDX-License-Identifier: MIT
"""Rows of groups that are padded one by one: who sits where, computed on the device without a host sync."""

from __future__ import annotations

import torch

__all__ = ["gather_groups", "pad_groups", "row_of_padded_row"]


def pad_groups(group_lens: torch.Tensor, multiple: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(lens [G], offs [G+1]) of the groups, each rounded up to ``multiple``; int64."""
    lens = (group_lens.long() + multiple - 1) // multiple * multiple
    return lens, torch.cat((lens.new_zeros(1), lens.cumsum(0)))


def row_of_padded_row(
    group_offs: torch.Tensor, group_offs_padded: torch.Tensor, padded_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row of the padded array its row in the tight one, and whether there is one (else the row is 0)."""
    row = torch.arange(padded_rows, device=group_offs.device)
    group = torch.searchsorted(group_offs_padded[1:].contiguous(), row, right=True)
    inside = group < group_offs.numel() - 1
    group = torch.where(inside, group, 0)
    source = row - group_offs_padded[group] + group_offs[group]
    inside = inside & (source < group_offs[group + 1])
    return torch.where(inside, source, 0), inside


def gather_groups(
    x: torch.Tensor, group_offs: torch.Tensor, group_offs_padded: torch.Tensor, padded_rows: int
) -> torch.Tensor:
    """x [R,C] with its groups padded by zeros: [padded_rows,C]. Rows of x that belong to no group are not read."""
    source, inside = row_of_padded_row(group_offs, group_offs_padded, padded_rows)
    return torch.where(inside[:, None], x[source], 0)
