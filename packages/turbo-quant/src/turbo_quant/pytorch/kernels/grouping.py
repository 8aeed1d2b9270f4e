# SPDX-License-Identifier: MIT
"""Rows of groups that are padded one by one: who sits where, computed on the device without a host sync."""

from __future__ import annotations

import torch

from turbo_core.low_precision import MX_PADDING
from turbo_quant.calls import PaddedGroups, QuantizeFloatCall, QuantizeMxCall

__all__ = ["gather_groups", "only_rows_of_groups", "pad_groups", "padded_groups", "row_of_padded_row", "rows_of_groups"]


def pad_groups(group_lens: torch.Tensor, multiple: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(lens [G], offs [G+1]) of the groups, each rounded up to ``multiple``; int64."""
    lens = (group_lens.long() + multiple - 1) // multiple * multiple
    return lens, torch.cat((lens.new_zeros(1), lens.cumsum(0)))


def padded_groups(
    group_lens: torch.Tensor, group_offs: torch.Tensor | None, rows: int, multiple: int = MX_PADDING
) -> PaddedGroups:
    """Where the groups of ``rows`` rows begin, and where with each group's rows rounded up to ``multiple``.

    Args:
        group_lens: [G], int64 or int32.
        group_offs: [G+1], likewise, ascending; None: the groups lie one after the other from row 0.
        rows: what the groups say beyond them is cut off, so that the padded groups end by
            ``rows + G * (multiple - 1)`` rounded up to ``multiple``.
    """
    lens = group_lens.long().clamp(0, rows)
    zero = lens.new_zeros(1)
    offs = torch.cat((zero, lens.cumsum(0))) if group_offs is None else group_offs.long().cummax(0).values
    offs = offs.clamp(0, rows)
    inside = torch.minimum(lens, offs[1:] - offs[:-1])
    return PaddedGroups(offs, torch.cat((zero, ((inside + multiple - 1) // multiple * multiple).cumsum(0))))


def row_of_padded_row(
    group_offs: torch.Tensor,
    group_offs_padded: torch.Tensor,
    padded_rows: int,
    rows: int,
    group_lens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row of the padded array its row in the tight one, and whether there is one (else the row is 0).

    rows: of the tight array; what the groups say beyond them is cut off.
    """
    row = torch.arange(padded_rows, device=group_offs.device)
    if group_offs.shape[0] == 1:
        return torch.zeros_like(row), torch.zeros_like(row, dtype=torch.bool)
    group = torch.searchsorted(group_offs_padded[1:].contiguous(), row, right=True)
    inside = group < group_offs.shape[0] - 1
    group = torch.where(inside, group, 0)
    begin, end = group_offs[group].clamp(0, rows), group_offs[group + 1].clamp(max=rows)
    if group_lens is not None:
        end = torch.minimum(end, begin + group_lens[group])
    source = row - group_offs_padded[group] + begin
    inside = inside & (source < end)
    return torch.where(inside, source, 0), inside


def rows_of_groups(call: QuantizeFloatCall | QuantizeMxCall) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row of the padded groups of ``call`` its row in x, and whether there is one (else the row is 0)."""
    R, index = call.x.shape[1], call.row_idx
    rows = R if index is None else index.shape[0]
    source, inside = row_of_padded_row(
        call.group_offs, call.group_offs_padded, call.column_rows(), rows, call.group_lens
    )
    if index is None or rows == 0:
        return source, inside
    named = index.long()[source]
    inside = inside & (named >= 0) & (named < R)
    return torch.where(inside, named, 0), inside


def only_rows_of_groups(x: torch.Tensor, source: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """x [R,C] with zeros for rows that no padded row comes from."""
    R = x.shape[0]
    counts = torch.zeros(R + 1, dtype=torch.bool, device=x.device)
    counts[torch.where(inside, source, R)] = True
    return torch.where(counts[:R, None], x, 0)


def gather_groups(x: torch.Tensor, source: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """x [R,C] with its groups padded by zeros, from what `rows_of_groups` says. Other rows of x are not read."""
    return torch.where(inside[:, None], x[source], 0)
