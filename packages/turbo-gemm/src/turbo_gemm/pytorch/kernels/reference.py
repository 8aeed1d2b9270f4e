# SPDX-License-Identifier: MIT
"""GEMM in plain PyTorch: what the other backends are judged by, and what runs where they cannot."""

from __future__ import annotations

import torch

__all__ = ["gemm_reference"]


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
    result = a_MK.float() @ b_KN.float()
    if bias is not None:
        result += bias.float()
    if accumulate_into is None:
        return result.to(out_dtype)
    result += accumulate_into
    return accumulate_into.copy_(result)
