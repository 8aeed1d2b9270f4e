# SPDX-License-Identifier: MIT
"""The gradients of grouped products, each a grouped product in the storage layout of its input.

    C[out(s)] = A[in(s)] op(B[g])      A-grad[in(s)] += dC[out(s)] op(B[g])^T      op(B)-grad[g] = A_g^T dC_g

Rows that came by indices go back by the same ones. Where several rows of the groups are one row of A, their gradients
are products of their own first, in float32, which are then added in a fixed order.
"""

from __future__ import annotations

import torch

from turbo_grouped_gemm.calls import GroupedGemmCall, GroupedWgradCall, Groups
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_reference import group_of_rows

__all__ = ["bias_gradient_call", "rows_gradient_call", "sum_of_slots", "wgrad_call"]


def rows_gradient_call(
    rows: torch.Tensor,
    weights: torch.Tensor,
    trans: bool,
    groups: Groups,
    rows_idx: torch.Tensor | None,
    target_idx: torch.Tensor | None,
    target_rows: int,
    dtype: torch.dtype,
    num_cu: int | None,
    schedule: str,
) -> GroupedGemmCall:
    """rows [.,K] op(weights) for each row of the groups; `sum_of_slots` makes the gradient of it.

    Args:
        rows_idx: [S], which of the ``rows`` they are, or None.
        target_idx: [S], which of the ``target_rows`` the gradient belongs to, or None: theirs in order.
    """
    slots = target_rows if target_idx is None else target_idx.shape[0]
    out_dtype = dtype if target_idx is None else torch.float32
    return GroupedGemmCall(
        rows, weights, None, groups, trans, out_dtype, rows_idx, None, slots, num_cu, schedule, "dgrad"
    )


def sum_of_slots(
    slots: torch.Tensor, groups: Groups, target_idx: torch.Tensor | None, target_rows: int, dtype: torch.dtype
) -> torch.Tensor:
    """The gradient [R,K] of what was gathered: row r is the sum of the slots s with target_idx[s] = r.

    Slots of no group are zeros, and their indices say nothing: they are spread over all rows, so that none gets many.
    """
    if target_idx is None:
        return slots
    total = torch.zeros(target_rows, slots.shape[1], dtype=slots.dtype, device=slots.device)
    count = slots.shape[0]
    if target_rows == 0 or count == 0:
        return total.to(dtype)
    owner = group_of_rows(groups, count, (target_idx, target_rows))
    anywhere = torch.arange(count, device=slots.device) % target_rows
    index = torch.where(owner < groups.lens.shape[0], target_idx.to(torch.int64), anywhere)
    if slots.device.type == "cpu":
        return total.index_add(0, index, slots).to(dtype)  # in the order of the slots
    return total.index_put((index,), slots, accumulate=True).to(dtype)  # which sorts; index_add would race


def wgrad_call(
    grad_out: torch.Tensor,
    a: torch.Tensor,
    groups: Groups,
    trans_b: bool,
    a_idx: torch.Tensor | None,
    out_idx: torch.Tensor | None,
    dtype: torch.dtype,
    num_cu: int | None,
    schedule: str,
    out: torch.Tensor | None = None,
) -> GroupedWgradCall:
    """dB: A_g^T dC_g [G,K,N], or its transpose [G,N,K] when b is stored transposed; added to ``out``."""
    if trans_b:
        return GroupedWgradCall(grad_out, a, groups, dtype, out_idx, a_idx, out, num_cu, schedule)
    return GroupedWgradCall(a, grad_out, groups, dtype, a_idx, out_idx, out, num_cu, schedule)


def bias_gradient_call(
    grad_out: torch.Tensor, groups: Groups, out_idx: torch.Tensor | None, dtype: torch.dtype, schedule: str
) -> GroupedWgradCall:
    """The sum of dC over the rows of each group as a product with ones, [G,1,N]."""
    count = grad_out.shape[0] if out_idx is None else out_idx.shape[0]
    ones = torch.ones(1, 1, dtype=grad_out.dtype, device=grad_out.device).expand(count, 1)
    return GroupedWgradCall(ones, grad_out, groups, dtype, None, out_idx, None, None, schedule)
