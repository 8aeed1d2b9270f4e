# SPDX-License-Identifier: MIT
"""`gemm_fp8_impl`: a product of FP8 or MXFP8 payloads and their scales."""

from __future__ import annotations

import torch

from primus_turbo.pytorch.kernels.arguments import check_backend, granularity_of
from turbo_core import BackendType
from turbo_core.low_precision import BLOCK_SIZE, ScalingGranularity
from turbo_gemm.developer import multiply_payloads

__all__ = ["gemm_fp8_impl"]


def gemm_fp8_impl(
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    trans_a: bool,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    trans_b: bool,
    out_dtype: torch.dtype,
    trans_c: bool,
    granularity: ScalingGranularity | str | int,
    default_backend: BackendType | int | None = None,
    *,
    block_size: int = BLOCK_SIZE,
) -> torch.Tensor:
    """C = op(a a_scale_inv) op(b b_scale_inv), or its transpose with ``trans_c``; a constant to autograd.

    Args:
        a, a_scale_inv, trans_a, b, b_scale_inv, trans_b, out_dtype, block_size: as for
            `turbo_gemm.developer.multiply_payloads`.
        trans_c: C^T [N,M] instead of C [M,N], contiguous.
        granularity: a ScalingGranularity, its value or its number, from 1.
        default_backend: a backend or its number, checked and not heeded: the user's settings and the measured default
            of each device decide.

    Raises:
        as `turbo_gemm.developer.multiply_payloads`.
    """
    check_backend("gemm_fp8_impl", default_backend)
    kind = granularity_of("gemm_fp8_impl", granularity)
    first, second = (a, a_scale_inv), (b, b_scale_inv)
    if trans_c:
        first, trans_a, second, trans_b = second, not trans_b, first, not trans_a
    c: torch.Tensor = multiply_payloads(*first, *second, trans_a, trans_b, out_dtype, kind, block_size=block_size)
    return c
