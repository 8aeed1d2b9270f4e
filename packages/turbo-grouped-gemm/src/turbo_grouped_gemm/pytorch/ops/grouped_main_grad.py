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


class Others(NamedTuple):
    """What the product reads besides a, b and bias; ``places`` [rows of C, 0] says how many there are with out_idx."""

    lens: torch.Tensor
    offs: torch.Tensor | None
    a_idx: torch.Tensor | None
    out_idx: torch.Tensor | None
    places: torch.Tensor | None

    def groups(self) -> Groups:
        return Groups(self.lens, self.offs)


class GroupedIntoMainGrad(NamedTuple):
    """A `GroupedGemmCall` without its tensors and sizes, for `product_into_main_grad`."""

    trans_b: bool
    out_dtype: torch.dtype
    num_cu: int | None
    schedule: str
    role: str

    def multiply(
        self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, *others: torch.Tensor | None
    ) -> torch.Tensor:
        of = _others(others)
        rows = a if of.a_idx is None else of.a_idx
        c: torch.Tensor = grouped_gemm_op(
            GroupedGemmCall(
                a, b, bias, of.groups(), self.trans_b, self.out_dtype, of.a_idx, of.out_idx,
                (rows if of.places is None else of.places).shape[0], self.num_cu, self.schedule, self.role,
            )
        )  # fmt: skip
        return c

    def grad_a(
        self,
        grad_out: torch.Tensor,
        b: torch.Tensor,
        dtypes: tuple[torch.dtype, ...],
        weight: torch.Tensor | None,
        a: torch.Tensor,
        *others: torch.Tensor | None,
    ) -> torch.Tensor:
        of, dtype, rows = _others(others), dtypes[0], a.shape[0]
        operand = gradient_operand(grad_out, dtype, dtypes[1])
        arguments: Any = (
            operand, b, not self.trans_b, of.groups(), of.out_idx, of.a_idx, rows, dtype, self.num_cu, self.schedule
        )  # fmt: skip
        if weight is None:
            return rows_gradient(*arguments)
        slots = grouped_gemm_into_main_grad(rows_gradient_call(*arguments), weight)
        return sum_of_slots(slots, of.groups(), of.a_idx, rows, dtype)

    def accumulate(
        self,
        grad_out: torch.Tensor,
        a: torch.Tensor,
        dtypes: tuple[torch.dtype, ...],
        out: torch.Tensor,
        *others: torch.Tensor | None,
    ) -> None:
        of, operand = _others(others), gradient_operand(grad_out, *dtypes[:2])
        settings = (out.dtype, self.num_cu, self.schedule, out)
        grouped_wgrad_accumulate(wgrad_call(operand, a, of.groups(), self.trans_b, of.a_idx, of.out_idx, *settings))

    def grad_bias(
        self, grad_out: torch.Tensor, dtypes: tuple[torch.dtype, ...], *others: torch.Tensor | None
    ) -> torch.Tensor:
        of = _others(others)
        return bias_gradient(grad_out, of.groups(), of.out_idx, dtypes[2], self.schedule)


def _others(tensors: Any) -> Others:
    return Others(*tensors)


def grouped_gemm_into_main_grad(call: GroupedGemmCall, weight: torch.Tensor) -> torch.Tensor:
    """C of ``call``, whose b is ``weight``, detached, in the dtype of the product."""
    product = GroupedIntoMainGrad(call.trans_b, call.out_dtype, call.num_cu, call.schedule, call.role)
    places = None if call.out_idx is None else call.a.new_empty((call.out_rows, 0))
    others = Others(*call.groups, call.a_idx, call.out_idx, places)
    c: torch.Tensor = product_into_main_grad(product, call.a, call.b, weight, call.bias, *others)
    return c
