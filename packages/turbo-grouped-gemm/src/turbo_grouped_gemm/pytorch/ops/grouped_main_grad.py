# SPDX-License-Identifier: MIT
"""grouped_gemm whose weight gradient its product adds to ``weight.main_grad``."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_gemm.developer import gradient_operand, product_into_main_grad
from turbo_grouped_gemm.calls import GroupedGemmCall, Groups
from turbo_grouped_gemm.pytorch.ops.grouped_gradients import rows_gradient_call, sum_of_slots, wgrad_call
from turbo_grouped_gemm.pytorch.ops.grouped_library import (
    bias_gradient,
    grouped_gemm_op,
    grouped_wgrad_accumulate,
    rows_gradient,
)

__all__ = ["GroupedIntoMainGrad", "grouped_gemm_into_main_grad"]

Index = torch.Tensor | None


class GroupedIntoMainGrad(NamedTuple):
    """A `GroupedGemmCall` without its tensors, for `product_into_main_grad`; ``a_rows`` are the rows of a."""

    trans_b: bool
    out_dtype: torch.dtype
    out_rows: int
    a_rows: int
    num_cu: int | None
    schedule: str
    role: str

    def multiply(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        bias: Index,
        lens: torch.Tensor,
        offs: Index,
        a_idx: Index,
        out_idx: Index,
    ) -> torch.Tensor:
        groups = Groups(lens, offs)
        call = GroupedGemmCall(
            a, b, bias, groups, self.trans_b, self.out_dtype, a_idx, out_idx, self.out_rows, self.num_cu,
            self.schedule, self.role,
        )  # fmt: skip
        c: torch.Tensor = grouped_gemm_op(call)
        return c

    def grad_a(
        self,
        grad_out: torch.Tensor,
        b: torch.Tensor,
        dtypes: tuple[torch.dtype, ...],
        weight: torch.Tensor | None,
        lens: torch.Tensor,
        offs: Index,
        a_idx: Index,
        out_idx: Index,
    ) -> torch.Tensor:
        groups, dtype = Groups(lens, offs), dtypes[0]
        operand = gradient_operand(grad_out, dtype, dtypes[1])
        settings: tuple[Any, ...] = (self.a_rows, dtype, self.num_cu, self.schedule)
        if weight is None:
            return rows_gradient(operand, b, not self.trans_b, groups, out_idx, a_idx, *settings)
        call = rows_gradient_call(operand, b, not self.trans_b, groups, out_idx, a_idx, *settings)
        slots = grouped_gemm_into_main_grad(call, weight)
        return sum_of_slots(slots, groups, a_idx, self.a_rows, dtype)

    def accumulate(
        self,
        grad_out: torch.Tensor,
        a: torch.Tensor,
        dtypes: tuple[torch.dtype, ...],
        out: torch.Tensor,
        lens: torch.Tensor,
        offs: Index,
        a_idx: Index,
        out_idx: Index,
    ) -> None:
        operand, groups = gradient_operand(grad_out, *dtypes[:2]), Groups(lens, offs)
        settings = (out.dtype, self.num_cu, self.schedule, out)
        grouped_wgrad_accumulate(wgrad_call(operand, a, groups, self.trans_b, a_idx, out_idx, *settings))

    def grad_bias(
        self,
        grad_out: torch.Tensor,
        dtypes: tuple[torch.dtype, ...],
        lens: torch.Tensor,
        offs: Index,
        a_idx: Index,
        out_idx: Index,
    ) -> torch.Tensor:
        return bias_gradient(grad_out, Groups(lens, offs), out_idx, dtypes[2], self.schedule)


def grouped_gemm_into_main_grad(call: GroupedGemmCall, weight: torch.Tensor) -> torch.Tensor:
    """C of ``call``, whose b is ``weight``, detached, in the dtype of the product."""
    product = GroupedIntoMainGrad(
        call.trans_b, call.out_dtype, call.out_rows, call.a.shape[0], call.num_cu, call.schedule, call.role
    )
    others = (*call.groups, call.a_idx, call.out_idx)
    c: torch.Tensor = product_into_main_grad(product, call.a, call.b, weight, call.bias, *others)
    return c
