# SPDX-License-Identifier: MIT
"""Backend TORCH of gemm: plain PyTorch, what the other backends are judged by and what runs where they cannot."""

from __future__ import annotations

import torch

from turbo_gemm.calls import GemmCall
from turbo_gemm.pytorch.kernels.blas_settings import BLAS_REACH, reach

__all__ = ["gemm_reference", "run", "why_not"]


def why_not(call: GemmCall) -> str | None:
    """Every call is accepted."""
    return None


def run(call: GemmCall) -> torch.Tensor:
    """Compute the call."""
    return gemm_reference(*call.operands(), call.bias, call.out_dtype, call.out)


def gemm_reference(
    a_MK: torch.Tensor,
    b_KN: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    accumulate_into: torch.Tensor | None = None,
) -> torch.Tensor:
    """C[M,N] = A[M,K] B[K,N] (+ bias[N]) (+ accumulate_into[M,N]), computed in float32 and rounded once.

    With ``accumulate_into`` the result is written there.
    """
    result = _product(a_MK, b_KN, BLAS_REACH)
    if bias is not None:
        result += bias.float()
    if accumulate_into is None:
        return result.to(out_dtype)
    result += accumulate_into
    return accumulate_into.copy_(result)


def _product(a_MK: torch.Tensor, b_KN: torch.Tensor, limit: int) -> torch.Tensor:
    """A B in float32 by matrices of at most ``limit`` elements: larger ones are halved along their longest side."""
    (m, k), n = a_MK.shape, b_KN.shape[1]
    if m * k <= limit and k * n <= limit:
        a, b = (x if reach(x) <= limit else x.contiguous() for x in (a_MK.float(), b_KN.float()))
        return a @ b
    if k >= max(m, n):
        half = k // 2
        return _product(a_MK[:, :half], b_KN[:half], limit).add_(_product(a_MK[:, half:], b_KN[half:], limit))
    if m >= n:
        half = m // 2
        return torch.cat([_product(part, b_KN, limit) for part in (a_MK[:half], a_MK[half:])])
    half = n // 2
    return torch.cat([_product(a_MK, part, limit) for part in (b_KN[:, :half], b_KN[:, half:])], 1)
