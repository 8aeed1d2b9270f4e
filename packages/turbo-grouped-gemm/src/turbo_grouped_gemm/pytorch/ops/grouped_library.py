# SPDX-License-Identifier: MIT
"""Grouped products as registered ops, ``turbo_grouped_gemm::grouped_gemm``, ``grouped_wgrad`` and
``grouped_wgrad_accumulate``, and the gradients of the first two, which are made of them."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.library import Differentiable, OpLibrary
from turbo_gemm.developer import gradient_operand
from turbo_grouped_gemm.calls import GroupedGemmCall, GroupedWgradCall, Groups, gemm_specs, wgrad_specs
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_impl import GroupedGemmDispatcher
from turbo_grouped_gemm.pytorch.ops.grouped_gradients import (
    bias_gradient_call,
    rows_gradient_call,
    sum_of_slots,
    wgrad_call,
)

__all__ = ["bias_gradient", "grouped_gemm_op", "grouped_wgrad_accumulate", "grouped_wgrad_op", "rows_gradient"]


def rows_gradient(
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
) -> torch.Tensor:
    """The gradient of rows that were multiplied by a matrix of their group; see `rows_gradient_call`."""
    call = rows_gradient_call(rows, weights, trans, groups, rows_idx, target_idx, target_rows, dtype, num_cu, schedule)
    return sum_of_slots(grouped_gemm_op(call), groups, target_idx, target_rows, dtype)


def bias_gradient(
    grad_out: torch.Tensor, groups: Groups, out_idx: torch.Tensor | None, dtype: torch.dtype, schedule: str
) -> torch.Tensor:
    """The gradient [G,N] of a bias."""
    sums: torch.Tensor = grouped_wgrad_op(bias_gradient_call(grad_out, groups, out_idx, dtype, schedule))
    return sums.squeeze(1)


def _saves(call: GroupedGemmCall, c: torch.Tensor, needs: Any) -> tuple[Any, ...]:
    a, b, bias = call.a, call.b, call.bias
    tensors = (a if needs.b else None, b if needs.a else None, call.groups, call.a_idx, call.out_idx)
    dtypes = (a.dtype, b.dtype, None if bias is None else bias.dtype)
    return *tensors, call.trans_b, dtypes, a.shape[0], call.num_cu, call.schedule


def _backward(saved: tuple[Any, ...], grad_out: torch.Tensor, needs: Any) -> dict[str, torch.Tensor]:
    a, b, groups, a_idx, out_idx, trans_b, (dtype_a, dtype_b, bias_dtype), a_rows, num_cu, schedule = saved
    found: dict[str, torch.Tensor] = {}
    operand = gradient_operand(grad_out, dtype_a, dtype_b)
    if needs.a:
        found["a"] = rows_gradient(operand, b, not trans_b, groups, out_idx, a_idx, a_rows, dtype_a, num_cu, schedule)
    if needs.b:
        found["b"] = grouped_wgrad_op(
            wgrad_call(operand, a, groups, trans_b, a_idx, out_idx, dtype_b, num_cu, schedule)
        )
    if needs.bias:
        found["bias"] = bias_gradient(grad_out, groups, out_idx, bias_dtype, schedule)
    return found


def _wgrad_saves(call: GroupedWgradCall, c: torch.Tensor, needs: Any) -> tuple[Any, ...]:
    x, y = call.x, call.y
    tensors = (x if needs.y else None, y if needs.x else None, call.groups, call.x_idx, call.y_idx)
    return *tensors, (x.dtype, y.dtype), x.shape[0], y.shape[0], call.num_cu, call.schedule


def _wgrad_backward(saved: tuple[Any, ...], grad_out: torch.Tensor, needs: Any) -> dict[str, torch.Tensor]:
    """C[g] = X_g^T Y_g: X-grad = Y_g dC[g]^T and Y-grad = X_g dC[g], of the rows of the group."""
    x, y, groups, x_idx, y_idx, (dtype_x, dtype_y), x_rows, y_rows, num_cu, schedule = saved
    found: dict[str, torch.Tensor] = {}
    weights = gradient_operand(grad_out, dtype_x, dtype_y)
    if needs.x:
        found["x"] = rows_gradient(y, weights, True, groups, y_idx, x_idx, x_rows, dtype_x, num_cu, schedule)
    if needs.y:
        found["y"] = rows_gradient(x, weights, False, groups, x_idx, y_idx, y_rows, dtype_y, num_cu, schedule)
    return found


_library = OpLibrary("turbo_grouped_gemm")
_run, _name = GroupedGemmDispatcher.run, "grouped_gemm"
grouped_gemm_op = _library.op(
    "grouped_gemm", GroupedGemmCall, _run, gemm_specs, Differentiable(_backward, _saves, _name)
)
grouped_wgrad_op = _library.op(
    "grouped_wgrad",
    GroupedWgradCall,
    _run,
    wgrad_specs,
    Differentiable(_wgrad_backward, _wgrad_saves, _name),
    omits=("out",),
)
grouped_wgrad_accumulate = _library.op("grouped_wgrad_accumulate", GroupedWgradCall, _run, None, writes="out")
