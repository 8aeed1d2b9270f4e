# SPDX-License-Identifier: MIT
"""`gemm_impl`: `turbo_gemm.gemm` in the call form of a kernel."""

from __future__ import annotations

import torch

from primus_turbo.pytorch.kernels.arguments import check_backend
from turbo_core import BackendType
from turbo_core.autocast import without_autocast
from turbo_gemm import gemm

__all__ = ["gemm_impl"]


def gemm_impl(
    a: torch.Tensor,
    trans_a: bool,
    b: torch.Tensor,
    trans_b: bool,
    out_dtype: torch.dtype,
    trans_c: bool,
    default_backend: BackendType | int | None = None,
) -> torch.Tensor:
    """C = op(a) op(b), or its transpose with ``trans_c``; a constant to autograd, which autocast leaves alone.

    Args:
        a, trans_a, b, trans_b, out_dtype: as for `turbo_gemm.gemm`.
        trans_c: C^T [N,M] instead of C [M,N], contiguous.
        default_backend: a backend or its number, checked and not heeded: the user's settings and the measured default
            of each device decide.

    Raises:
        as `turbo_gemm.gemm`.
    """
    check_backend("gemm_impl", default_backend)
    if trans_c:
        a, trans_a, b, trans_b = b, not trans_b, a, not trans_a
    with torch.no_grad(), without_autocast(a.device):
        c: torch.Tensor = gemm(a, b, trans_a, trans_b, out_dtype)
    return c
