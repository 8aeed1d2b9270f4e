# SPDX-License-Identifier: MIT
"""`grouped_gemm`: rows times the matrix of their group, with all gradients.

Its gradients (`grouped_library`) are made of the same ops, so that they have gradients in turn.
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import OpInfo
from turbo_core.autocast import autocast_dtype
from turbo_core.sharding import shardable
from turbo_gemm.developer import check_main_grad, gradient_operand, into_main_grad
from turbo_grouped_gemm.calls import GroupedGemmCall
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_impl import GroupedGemmDispatcher
from turbo_grouped_gemm.pytorch.ops.grouped_arguments import Rows, checked_rows
from turbo_grouped_gemm.pytorch.ops.grouped_gradients import rows_gradient_call, wgrad_call
from turbo_grouped_gemm.pytorch.ops.grouped_library import grouped_gemm_op
from turbo_grouped_gemm.pytorch.ops.grouped_main_grad import grouped_gemm_into_main_grad
from turbo_grouped_gemm.pytorch.ops.grouped_sharding import REPLICATED, grouped_gemm_rules

__all__ = ["GROUPED_GEMM", "grouped_gemm"]

# --- the public function --------------------------------------------------------------------------------------------


@shardable(grouped_gemm_rules, replicated=REPLICATED)
def grouped_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None = None,
    trans_b: bool = False,
    num_cu: int | None = None,
    schedule: str = "static",
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    a_idx: torch.Tensor | None = None,
    out_idx: torch.Tensor | None = None,
    out_rows: int | None = None,
) -> torch.Tensor:
    """C[r] = a[r] op(b[g]) + bias[g] for each row r of group g; differentiable in a, b and bias.

    Groups are known to the device alone: nothing waits for their sizes, and no other number of rows compiles anything.
    Group g has the rows group_offs[g] to group_offs[g] + group_lens[g] - 1. Rows of no group (behind the last, and
    where offsets leave gaps) may hold anything, NaN included: they change no result, and are zeros in C and in the
    gradient of a. A group without rows gets a gradient of zeros.

    Sums are in float32 and rounded once. All strides and zero sizes are accepted. Under ``torch.autocast`` a and b are
    cast to its dtype first. Gradients have the dtypes of their inputs; a float32 gradient of C meets 16-bit operands
    in their dtype.

    Args:
        a: [R,K]; bfloat16, float16 or float32. Or [G,M,K], of which group g has the first group_lens[g] rows of a[g].
        b: [G,K,N], or [G,N,K] with ``trans_b``; likewise, and not necessarily the dtype of a.
        group_lens: [G], int64 or int32, on the device of a: rows of each group, 0 included.
        group_offs: [G+1], likewise, ascending: where each group begins and the last must end; None: groups lie one
            after the other from row 0 (`group_offs_from_lens` says where). None where a is [G,M,K].
        trans_b: each matrix of b is stored transposed (the layout of ``torch.nn.Linear.weight``).
        num_cu: the most compute units that a kernel may use; None: all.
        schedule: ``"static"``: each program of a kernel has its part of the work; ``"work_steal"``: a program that is
            done takes the next part. Results are the same; ``num_cu`` is None with it.
        fuse_bgrad_accum_pattern: ``"megatron"`` adds the gradient of b to ``b.main_grad`` inside its product; autograd
            gets zeros for b. b needs ``main_grad`` and ``grad_added_to_main_grad``, which is set in the forward.
        bias: [G,N], added before rounding.
        out_dtype: dtype of C; default ``torch.promote_types(a.dtype, b.dtype)``.
        a_idx: [S], int64 or int32: the groups are of S rows, of which row s is a[a_idx[s]]. A row of a may be named
            any number of times; its gradient is the sum over them, in float32.
        out_idx: [S], likewise: row s of the groups goes to C[out_idx[s]]; no two to one. Rows of C that none goes to
            are zeros.
        out_rows: rows of C; without ``out_idx`` those of the groups, with it S where it is None.

    Returns:
        C [R,N], or [G,M,N], contiguous.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed. Values of group_lens, group_offs
            and indices are read with PRIMUS_TURBO_CHECK_INDICES=1 alone; otherwise wrong ones give wrong numbers,
            never memory of others.
        BackendUnavailableError: the backend named in code or by PRIMUS_TURBO_GROUPED_GEMM_BACKEND cannot take the
            call.

    Bit-equal from run to run on one backend and device. ``turbo_core.explain("grouped_gemm", ...)`` tells which
    backend runs.
    """
    trans_b = bool(trans_b)
    rows = checked_rows(
        "grouped_gemm", a, b, group_lens, group_offs, trans_b, out_dtype, num_cu, bias, schedule, a_idx, out_idx,
        out_rows,
    )  # fmt: skip
    if fuse_bgrad_accum_pattern is not None:
        check_main_grad(b, fuse_bgrad_accum_pattern, "grouped_gemm")
    call = _call(rows, b, trans_b, num_cu, schedule, bias, out_dtype, a_idx, out_idx)
    if into_main_grad("grouped_gemm", b, fuse_bgrad_accum_pattern):
        c = grouped_gemm_into_main_grad(call._replace(b=call.b.detach()), b)
        # said here, not in the backward, which a compiler traces as a function without side effects on attributes
        b.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    else:
        c = grouped_gemm_op(call)
    return rows.shaped(c)


def _call(
    rows: Rows,
    b: torch.Tensor,
    trans_b: bool,
    num_cu: int | None,
    schedule: str,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    a_idx: torch.Tensor | None,
    out_idx: torch.Tensor | None,
) -> GroupedGemmCall:
    """The call of checked arguments, cast as autocast wants them."""
    a = rows.a
    cast_to = autocast_dtype(a.device)
    if cast_to is not None:
        a, b = a.to(cast_to), b.to(cast_to)
    if out_dtype is None:
        out_dtype = torch.promote_types(a.dtype, b.dtype)
    return GroupedGemmCall(a, b, bias, rows.groups, trans_b, out_dtype, a_idx, out_idx, rows.out_rows, num_cu, schedule)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(
    a: torch.Tensor,
    b: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None = None,
    trans_b: bool = False,
    num_cu: int | None = None,
    schedule: str = "static",
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    a_idx: torch.Tensor | None = None,
    out_idx: torch.Tensor | None = None,
    out_rows: int | None = None,
) -> dict[str, Any]:
    """The three products that `grouped_gemm` with these arguments and its backward come to."""
    trans_b, main_grad = bool(trans_b), None
    rows = checked_rows(
        "grouped_gemm", a, b, group_lens, group_offs, trans_b, out_dtype, num_cu, bias, schedule, a_idx, out_idx,
        out_rows,
    )  # fmt: skip
    if fuse_bgrad_accum_pattern is not None:
        check_main_grad(b, fuse_bgrad_accum_pattern, "grouped_gemm")
        main_grad = b.main_grad
    with torch.no_grad():
        forward = _call(rows, b, trans_b, num_cu, schedule, bias, out_dtype, a_idx, out_idx)
    settings = (num_cu, schedule)
    c = torch.empty(forward.out_rows, forward.sizes()[2], dtype=forward.out_dtype, device=forward.a.device)
    grad_out = gradient_operand(c, forward.a.dtype, forward.b.dtype)  # only its metadata are read
    count = forward.a.shape[0]
    dgrad = rows_gradient_call(
        grad_out, forward.b, not forward.trans_b, forward.groups, out_idx, a_idx, count, forward.a.dtype, *settings
    )
    dtype = forward.b.dtype if main_grad is None else main_grad.dtype
    wgrad = wgrad_call(
        grad_out, forward.a, forward.groups, forward.trans_b, a_idx, out_idx, dtype, *settings, main_grad
    )
    return {"forward": forward, "dgrad": dgrad, "wgrad": wgrad}


def _example(device: torch.device) -> dict[str, Any]:
    a, b = (torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in ((8 * 512, 2048), (8, 4096, 2048)))
    return _calls(a, b, torch.empty(8, dtype=torch.int64, device=device), trans_b=True)


GROUPED_GEMM = OpInfo("grouped_gemm", GroupedGemmDispatcher, _calls, _example)
