# SPDX-License-Identifier: MIT
"""The formulas that the operators must equal, in float64 PyTorch.

No blocking, no scaling, no shortcuts: what is here is what the operator means. Inputs of any float dtype are widened
first, so a reference has no error of its own worth speaking of.

Letters: op(a) is A [M, K], op(b) is B [K, N]; `trans_a` says that a is stored as A^T [K, M], `trans_b` that b is
stored as B^T [N, K].
"""

from __future__ import annotations

import torch
from torch import Tensor


def _op(x: Tensor, trans: bool) -> Tensor:
    x64 = x.to(torch.float64)
    return x64.mT if trans else x64


def gemm(a: Tensor, b: Tensor, trans_a: bool = False, trans_b: bool = False, bias: Tensor | None = None) -> Tensor:
    """out[m, n] = sum_k A[m, k] * B[k, n] (+ bias[n]), float64 [M, N]. K = 0 gives zeros (or the bias)."""
    out = _op(a, trans_a) @ _op(b, trans_b)
    return out if bias is None else out + bias.to(torch.float64)


def gemm_backward(
    a: Tensor, b: Tensor, grad_out: Tensor, trans_a: bool = False, trans_b: bool = False
) -> tuple[Tensor, Tensor]:
    """Gradients of `gemm` for grad_out [M, N], float64, in the layouts in which a and b are stored.

    dA[m, k] = sum_n grad_out[m, n] * B[k, n]    (returned as [M, K], or [K, M] when trans_a)
    dB[k, n] = sum_m A[m, k] * grad_out[m, n]    (returned as [K, N], or [N, K] when trans_b)
    """
    grad = grad_out.detach().to(torch.float64)
    grad_a = grad @ _op(b.detach(), trans_b).mT
    grad_b = _op(a.detach(), trans_a).mT @ grad
    return (
        (grad_a.mT if trans_a else grad_a).contiguous(),
        (grad_b.mT if trans_b else grad_b).contiguous(),
    )


def gemm_bias_backward(grad_out: Tensor) -> Tensor:
    """dbias[n] = sum_m grad_out[m, n], float64 [N]."""
    return grad_out.detach().to(torch.float64).sum(dim=0)
