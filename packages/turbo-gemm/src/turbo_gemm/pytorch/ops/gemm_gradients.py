# SPDX-License-Identifier: MIT
"""The gradients of C = op(A) op(B) + bias, each one GEMM in the storage layout of its input.

    op(A)-grad = dC op(B)^T        op(B)-grad = op(A)^T dC        bias-grad = sum over rows of dC

Where the gradient of a transposed input is wanted, both sides are transposed and the operands swap places, so no
gradient needs a copy.
"""

from __future__ import annotations

import torch

__all__ = ["bias_gradient", "dgrad_operands", "gradient_operand", "wgrad_operands"]

# a, b, bias (none in a gradient), trans_a, trans_b
_Operands = tuple[torch.Tensor, torch.Tensor, None, bool, bool]


def gradient_operand(grad_out: torch.Tensor, dtype_a: torch.dtype, dtype_b: torch.dtype) -> torch.Tensor:
    """dC as the two GEMMs read it: a float32 dC meets 16-bit operands in their dtype."""
    return grad_out.to(torch.promote_types(dtype_a, dtype_b))


def dgrad_operands(grad_out: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool) -> _Operands:
    """Operands of dA: dC op(b)^T [M,K], or its transpose op(b) dC^T [K,M] when a is stored transposed."""
    return (b, grad_out, None, trans_b, True) if trans_a else (grad_out, b, None, False, not trans_b)


def wgrad_operands(grad_out: torch.Tensor, a: torch.Tensor, trans_a: bool, trans_b: bool) -> _Operands:
    """Operands of dB: op(a)^T dC [K,N], or its transpose dC^T op(a) [N,K] when b is stored transposed."""
    return (grad_out, a, None, True, trans_a) if trans_b else (a, grad_out, None, not trans_a, False)


def bias_gradient(grad_out: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The sum of dC over its rows, in float32 and rounded once."""
    return grad_out.sum(0, dtype=torch.float32).to(dtype)
