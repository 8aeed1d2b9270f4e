# SPDX-License-Identifier: MIT
"""Backend TORCH of grouped products: plain PyTorch in float32, what the other backends are judged by.

On a CPU the groups are read and each is one product. On a GPU nothing is read: each group is a product over all rows,
of which its own are taken. Slow, and right under graph capture.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from turbo_core.calls import empty
from turbo_gemm.developer import gemm_reference
from turbo_grouped_gemm.calls import GroupedGemmCall, GroupedWgradCall, Groups, gemm_specs, wgrad_specs

__all__ = ["add_bias", "gather_rows", "group_of_rows", "row_ranges", "run", "scatter_rows", "why_not"]


def why_not(call: GroupedGemmCall | GroupedWgradCall) -> str | None:
    """Every call is accepted."""
    return None


def run(call: GroupedGemmCall | GroupedWgradCall) -> torch.Tensor:
    """Compute the call."""
    return _gemm(call) if isinstance(call, GroupedGemmCall) else _wgrad(call)


def _gemm(call: GroupedGemmCall) -> torch.Tensor:
    G, S, N, _ = call.sizes()
    a = call.a if call.a_idx is None else gather_rows(call.a, call.a_idx)
    b_GKN = call.b.mT if call.trans_b else call.b
    owner = group_of_rows(call.groups, S, (call.a_idx, call.a.shape[0]))
    slots = torch.zeros(S, N, dtype=call.out_dtype, device=a.device)
    for g, rows in enumerate(_rows_of_groups(owner, G)):
        bias = None if call.bias is None else call.bias[g]
        if rows is None:
            product = gemm_reference(a, b_GKN[g], bias, call.out_dtype)
            slots = torch.where((owner == g)[:, None], product, slots)
        elif len(rows):
            slots[rows] = gemm_reference(a[rows], b_GKN[g], bias, call.out_dtype)
    if call.out_idx is None:
        return slots
    return scatter_rows(slots, call.out_idx, owner < G, empty(gemm_specs(call), a.device).zero_())


def _wgrad(call: GroupedWgradCall) -> torch.Tensor:
    G, S, _, _ = call.sizes()
    x = call.x if call.x_idx is None else gather_rows(call.x, call.x_idx)
    y = call.y if call.y_idx is None else gather_rows(call.y, call.y_idx)
    owner = group_of_rows(call.groups, S, (call.x_idx, call.x.shape[0]), (call.y_idx, call.y.shape[0]))
    c = empty(wgrad_specs(call), x.device) if call.out is None else call.out
    for g, rows in enumerate(_rows_of_groups(owner, G)):
        if rows is None:
            mine = (owner == g)[:, None]
            x_g, y_g = torch.where(mine, x, 0), torch.where(mine, y, 0)  # what others have may be NaN
        else:
            x_g, y_g = x[rows], y[rows]
        product = gemm_reference(x_g.t(), y_g, None, call.out_dtype, None if call.out is None else c[g])
        if call.out is None:
            c[g] = product
    return c


def _rows_of_groups(owner: torch.Tensor, count: int) -> Sequence[torch.Tensor | None]:
    """The rows of each group; None on a device that is not to be waited for."""
    if owner.device.type != "cpu":
        return [None] * count
    sizes = owner.bincount(minlength=count + 1).tolist()
    return owner.argsort(stable=True).split(sizes)[:count]


# --- groups ---------------------------------------------------------------------------------------------------------


def row_ranges(groups: Groups, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first row of each group and the one behind its last, int64 [G], cut off where ``rows`` end."""
    lens = groups.lens.to(torch.int64).clamp(min=0)
    if groups.offs is None:
        ends = lens.cumsum(0)
        starts = ends - lens
    else:
        offs = groups.offs.to(torch.int64)
        starts = offs[:-1].clamp(min=0)
        ends = torch.minimum(offs[:-1] + lens, offs[1:])
    return starts, ends.clamp(max=rows)


def group_of_rows(groups: Groups, rows: int, *taken: tuple[torch.Tensor | None, int]) -> torch.Tensor:
    """The group of each row, int64 [rows]; G where it has none.

    ``taken``: index tensors and how many rows they choose among; a row whose index is none of these belongs to no
    group either.
    """
    starts, ends = row_ranges(groups, rows)
    number = torch.arange(rows, device=starts.device)
    count = starts.shape[0]
    if not count:
        return torch.full_like(number, 0)
    # the last group that begins at or before the row: of those that begin together, only the last can have rows
    owner = torch.searchsorted(starts.contiguous(), number, right=True) - 1
    member = (owner >= 0) & (number < ends[owner.clamp(min=0)])
    for index, size in taken:
        if index is not None:
            member = member & (index >= 0) & (index < size)
    return torch.where(member, owner, count)


def gather_rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x[index]; indices that point outside of x give any of its rows."""
    if not x.shape[0]:
        return x.new_zeros(index.shape[0], x.shape[1])
    return x[index.clamp(0, x.shape[0] - 1)]


def scatter_rows(slots: torch.Tensor, index: torch.Tensor, member: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``out`` [R,N] with out[index[s]] = slots[s] for the ``member`` s whose index lies in it."""
    rows = out.shape[0]
    member = member & (index >= 0) & (index < rows)
    grown = torch.cat([out, out.new_empty(1, out.shape[1])])  # a last row for what has no place
    grown[torch.where(member, index, rows)] = slots.to(out.dtype)
    return grown[:rows].contiguous()


def add_bias(
    c: torch.Tensor,
    bias: torch.Tensor,
    groups: Groups,
    rows: int,
    out_idx: torch.Tensor | None,
) -> torch.Tensor:
    """What is left of C = A B + bias where K is 0: c, which is zeros, with the bias of each row's group."""
    if not groups.lens.shape[0] or not rows:
        return c
    owner = group_of_rows(groups, rows)
    member = owner < bias.shape[0]
    values = torch.where(member[:, None], bias[owner.clamp(max=bias.shape[0] - 1)].to(c.dtype), 0)
    return values if out_idx is None else scatter_rows(values, out_idx, member, c)
