# SPDX-License-Identifier: MIT
"""gemm whose weight gradient its GEMM adds to ``weight.main_grad``."""

from __future__ import annotations

from typing import NamedTuple

import torch

from turbo_gemm.calls import GemmCall
from turbo_gemm.pytorch.ops.gemm_gradients import bias_gradient, dgrad_call, gradient_operand, wgrad_call
from turbo_gemm.pytorch.ops.gemm_library import gemm_accumulate, gemm_op
from turbo_gemm.pytorch.ops.main_grad import Dtypes, product_into_main_grad

__all__ = ["GemmIntoMainGrad"]


class GemmIntoMainGrad(NamedTuple):
    """op(a) op(b) + bias for `product_into_main_grad`; fields as those of `GemmCall`."""

    trans_a: bool
    trans_b: bool
    out_dtype: torch.dtype
    role: str = "forward"

    def multiply(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        c: torch.Tensor = gemm_op(GemmCall(a, b, bias, self.trans_a, self.trans_b, self.out_dtype, None, self.role))
        return c

    def grad_a(
        self, grad_out: torch.Tensor, b: torch.Tensor, dtypes: Dtypes, weight: torch.Tensor | None, a: torch.Tensor
    ) -> torch.Tensor:
        dtype_a, dtype_b, _ = dtypes
        operand = gradient_operand(grad_out, dtype_a, dtype_b)
        if weight is None:
            grad: torch.Tensor = gemm_op(dgrad_call(operand, b, self.trans_a, self.trans_b, dtype_a))
            return grad
        dgrad = GemmIntoMainGrad(False, not self.trans_b, dtype_a, "dgrad")
        grad = product_into_main_grad(dgrad, operand, b, weight, None)
        return grad.t() if self.trans_a else grad

    def accumulate(self, grad_out: torch.Tensor, a: torch.Tensor, dtypes: Dtypes, out: torch.Tensor) -> None:
        operand = gradient_operand(grad_out, *dtypes[:2])
        gemm_accumulate(wgrad_call(operand, a, self.trans_a, self.trans_b, out.dtype, out))

    def grad_bias(self, grad_out: torch.Tensor, dtypes: Dtypes) -> torch.Tensor:
        return bias_gradient(grad_out, dtypes[2])
