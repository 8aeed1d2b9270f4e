# SPDX-License-Identifier: MIT
"""The gradients of C = op(A) op(B) + bias, each one GEMM in the storage layout of its input.

    op(A)-grad = dC op(B)^T        op(B)-grad = op(A)^T dC        bias-grad = sum over rows of dC

Where the gradient of a transposed input is wanted, both sides are transposed and the operands swap places, so no
gradient needs a copy.
"""

from __future__ import annotations

import torch

from turbo_gemm.calls import GemmCall

__all__ = ["bias_gradient", "dgrad_call", "gradient_operand", "wgrad_call"]


def gradient_operand(grad_out: torch.Tensor, dtype_a: torch.dtype, dtype_b: torch.dtype) -> torch.Tensor:
    """dC as the two GEMMs read it: a float32 dC meets 16-bit operands in their dtype."""
    return grad_out.to(torch.promote_types(dtype_a, dtype_b))


def dgrad_call(grad_out: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool, dtype: torch.dtype) -> GemmCall:
    """dA: dC op(b)^T [M,K], or its transpose op(b) dC^T [K,M] when a is stored transposed."""
    if trans_a:
        return GemmCall(b, grad_out, None, trans_b, True, dtype, None, "dgrad")
    return GemmCall(grad_out, b, None, False, not trans_b, dtype, None, "dgrad")


def wgrad_call(
    grad_out: torch.Tensor,
    a: torch.Tensor,
    trans_a: bool,
    trans_b: bool,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
) -> GemmCall:
    """dB: op(a)^T dC [K,N], or its transpose dC^T op(a) [N,K] when b is stored transposed; added to ``out``."""
    if trans_b:
        return GemmCall(grad_out, a, None, True, trans_a, dtype, out, "wgrad")
    return GemmCall(a, grad_out, None, not trans_a, False, dtype, out, "wgrad")


def bias_gradient(grad_out: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The sum of dC over its rows, in float32 and rounded once."""
    return grad_out.sum(0, dtype=torch.float32).to(dtype)
