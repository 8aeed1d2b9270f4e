# SPDX-License-Identifier: MIT
"""`grouped_wgrad`: a contraction over the rows of each group, as the gradient of a weight is."""

from __future__ import annotations

import torch

from turbo_core import UnsupportedError
from turbo_gemm.developer import DTYPES
from turbo_grouped_gemm.calls import GroupedWgradCall, Groups
from turbo_grouped_gemm.pytorch.ops.grouped_checks import check_groups, check_out_dtype, check_schedule, what_is
from turbo_grouped_gemm.pytorch.ops.grouped_index_values import check_group_values
from turbo_grouped_gemm.pytorch.ops.grouped_library import grouped_wgrad_accumulate, grouped_wgrad_op

__all__ = ["grouped_wgrad"]


def grouped_wgrad(
    x: torch.Tensor,
    y: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    num_cu: int | None = None,
    schedule: str = "static",
) -> torch.Tensor:
    """C[g] = X_g^T Y_g [G,X,Y], zeros for a group without rows; differentiable in x and y, but not with ``out``.

    Args:
        x, y: [R,X] and [R,Y]; bfloat16, float16 or float32.
        group_lens, group_offs, num_cu, schedule: as for `turbo_grouped_gemm.grouped_gemm`.
        out_dtype: dtype of C; default ``torch.promote_types(x.dtype, y.dtype)``, with ``out`` its own.
        out: [G,X,Y] to which C is added, and which is returned.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
    """
    op = "grouped_wgrad"
    for name, tensor in (("x", x), ("y", y)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2 or tensor.dtype not in DTYPES:
            accepted = ", ".join(map(str, DTYPES))
            raise UnsupportedError(f"{op}: {name} is {what_is(tensor)}; a matrix in one of {accepted} is accepted")
    if y.shape[0] != x.shape[0] or y.device != x.device:
        raise UnsupportedError(f"{op}: y is {what_is(y)}; {x.shape[0]} rows on {x.device}, as of x, are accepted")
    count = group_lens.shape[0] if isinstance(group_lens, torch.Tensor) and group_lens.dim() == 1 else 0
    check_groups(op, group_lens, group_offs, count, x.device, False)
    check_schedule(op, num_cu, schedule)
    check_out_dtype(op, out_dtype)
    groups = Groups(group_lens, group_offs)
    check_group_values(op, groups, x.shape[0])
    if out is None:
        out_dtype = torch.promote_types(x.dtype, y.dtype) if out_dtype is None else out_dtype
        call = GroupedWgradCall(x, y, groups, out_dtype, None, None, None, num_cu, schedule)
        c: torch.Tensor = grouped_wgrad_op(call)
        return c
    shape = (count, x.shape[1], y.shape[1])
    fits = isinstance(out, torch.Tensor) and out.shape == shape and out.device == x.device and out.dtype in DTYPES
    if not fits or out_dtype not in (None, out.dtype):
        raise UnsupportedError(
            f"{op}: out is {what_is(out)}, out_dtype={out_dtype}; a tensor of shape {list(shape)} on {x.device}, of "
            "that dtype, is accepted"
        )
    grouped_wgrad_accumulate(GroupedWgradCall(x, y, groups, out.dtype, None, None, out, num_cu, schedule))
    return out
