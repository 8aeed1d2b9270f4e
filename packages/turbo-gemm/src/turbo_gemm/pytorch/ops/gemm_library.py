# SPDX-License-Identifier: MIT
"""The GEMMs as registered ops, ``turbo_gemm::gemm`` and ``gemm_accumulate``, and the gradients of the first."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.library import Gradient, register_op
from turbo_gemm.pytorch.kernels.gemm_impl import GemmCall, run
from turbo_gemm.pytorch.ops.gemm_gradients import bias_gradient, dgrad_operands, gradient_operand, wgrad_operands

__all__ = ["gemm_accumulate", "gemm_op"]


def _gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype,
    role: str,
) -> torch.Tensor:
    return run(GemmCall(a, b, bias, trans_a, trans_b, out_dtype, None, role))


def _gemm_fake(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype,
    role: str,
) -> torch.Tensor:
    return a.new_empty((a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]), dtype=out_dtype)


def _gemm_accumulate(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool) -> None:
    run(GemmCall(a, b, None, trans_a, trans_b, out.dtype, out, "wgrad"))


def _gemm_accumulate_fake(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool) -> None:
    return None


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, bias, ctx.trans_a, ctx.trans_b, _, _ = inputs
    ctx.save_for_backward(a if b.requires_grad else None, b if a.requires_grad else None)
    ctx.dtypes = a.dtype, b.dtype, None if bias is None else bias.dtype


def _backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    dtype_a, dtype_b, bias_dtype = ctx.dtypes
    layout = ctx.trans_a, ctx.trans_b
    grad_a = grad_b = grad_bias = None
    operand = gradient_operand(grad_out, dtype_a, dtype_b)
    if ctx.needs_input_grad[0]:
        grad_a = gemm_op(*dgrad_operands(operand, b, *layout), dtype_a, "dgrad")
    if ctx.needs_input_grad[1]:
        grad_b = gemm_op(*wgrad_operands(operand, a, *layout), dtype_b, "wgrad")
    if ctx.needs_input_grad[2]:
        grad_bias = bias_gradient(grad_out, bias_dtype)
    return grad_a, grad_b, grad_bias, None, None, None, None


_library = torch.library.Library("turbo_gemm", "DEF")
gemm_op = register_op(
    _library,
    "gemm(Tensor a, Tensor b, Tensor? bias, bool trans_a, bool trans_b, ScalarType out_dtype, str role) -> Tensor",
    _gemm,
    _gemm_fake,
    Gradient(_backward, _setup_context, "gemm"),
)
gemm_accumulate = register_op(
    _library,
    "gemm_accumulate(Tensor(a!) out, Tensor a, Tensor b, bool trans_a, bool trans_b) -> ()",
    _gemm_accumulate,
    _gemm_accumulate_fake,
)
