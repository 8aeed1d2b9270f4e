# SPDX-License-Identifier: MIT
"""`gemm_fp4_impl`: a product of MXFP4 payloads and their scales."""

from __future__ import annotations

import torch

from primus_turbo.pytorch.kernels.arguments import check_backend, granularity_of
from turbo_core import BackendType, UnsupportedError
from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.developer import multiply_payloads

__all__ = ["gemm_fp4_impl"]


def gemm_fp4_impl(
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
    preshuffled: bool = False,
) -> torch.Tensor:
    """C = (a a_scale_inv) (b b_scale_inv)^T, or its transpose with ``trans_c``; a constant to autograd.

    Args:
        a, b: e2m1 [M,Kp/2] and [N,Kp/2], K padded to 128; trans_a False, trans_b True.
        a_scale_inv, b_scale_inv: E8M0 or uint8 [M,Kp/32] and [N,Kp/32].
        out_dtype: bfloat16, float16 or float32.
        trans_c: C^T [N,M] instead of C [M,N], contiguous; not with ``preshuffled``, where b alone is shuffled.
        granularity: MX_BLOCKWISE, its value or its number.
        default_backend: a backend or its number, checked and not heeded: the user's settings and the measured default
            of each device decide.
        preshuffled: scales, and the payload of b, are in the order of AITER's kernels.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
        BackendUnavailableError: the backend that the user named cannot take the call.
    """
    op = "gemm_fp4_impl"
    check_backend(op, default_backend)
    kind = granularity_of(op, granularity)
    if kind is not ScalingGranularity.MX_BLOCKWISE:
        raise UnsupportedError(f"{op}: granularity={granularity!r}; MX_BLOCKWISE is accepted")
    first, second = (a, a_scale_inv), (b, b_scale_inv)
    if trans_c:
        if preshuffled:
            raise UnsupportedError(f"{op}: trans_c=True with preshuffled=True; one of the two is accepted")
        first, trans_a, second, trans_b = second, not trans_b, first, not trans_a
    c: torch.Tensor = multiply_payloads(*first, *second, trans_a, trans_b, out_dtype, kind, preshuffled=preshuffled)
    return c
