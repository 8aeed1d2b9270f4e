# SPDX-License-Identifier: MIT
"""The arguments that all grouped products have, checked, with the rows of a in two dimensions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_grouped_gemm.calls import Groups
from turbo_grouped_gemm.pytorch.ops.grouped_checks import (
    AB,
    Names,
    check_bias,
    check_groups,
    check_operands,
    check_out_dtype,
    check_row_indices,
    check_schedule,
)
from turbo_grouped_gemm.pytorch.ops.grouped_index_values import check_group_values
from turbo_grouped_gemm.pytorch.ops.groups import masked_groups

__all__ = ["Rows", "checked_rows"]


class Rows(NamedTuple):
    """The rows of a call.

    Attributes:
        a: [R,K].
        groups: of the S rows.
        size: S.
        out_rows: rows of C.
        masked: None, or G and M where a was [G,M,K].
    """

    a: torch.Tensor
    groups: Groups
    size: int
    out_rows: int
    masked: tuple[int, int] | None

    def shaped(self, c: torch.Tensor) -> torch.Tensor:
        """C as a was: [G,M,N] for [G,M,K]."""
        return c if self.masked is None else c.view(*self.masked, c.shape[1])


def checked_rows(
    op: str,
    a: Any,
    b: Any,
    group_lens: Any,
    group_offs: Any,
    trans_b: bool,
    out_dtype: Any,
    num_cu: Any,
    bias: Any,
    schedule: Any,
    a_idx: Any,
    out_idx: Any,
    out_rows: Any,
    names: Names = AB,
) -> Rows:
    """The rows, where all arguments fit together; with PRIMUS_TURBO_CHECK_INDICES=1 their values as well."""
    check_operands(op, a, b, trans_b, names)
    device, masked, count = a.device, a.dim() == 3, b.shape[0]
    check_out_dtype(op, out_dtype)
    check_bias(op, bias, count, b.shape[1 if trans_b else 2], device)
    check_groups(op, group_lens, group_offs, count, device, masked, names.a)
    check_schedule(op, num_cu, schedule)
    groups, shape = Groups(group_lens, group_offs), None
    if masked:
        shape = (a.shape[0], a.shape[1])
        groups = masked_groups(group_lens, a.shape[1])
        a = a.reshape(a.shape[0] * a.shape[1], a.shape[2])
    out_rows = check_row_indices(op, a.shape[0], a_idx, out_idx, out_rows, device, masked, names.a)
    rows = a.shape[0] if a_idx is None else a_idx.shape[0]
    check_group_values(op, groups, rows, a_idx, a.shape[0], out_idx, out_rows)
    return Rows(a, groups, rows, out_rows, shape)
