# SPDX-License-Identifier: MIT
"""Grouped products of FP8 or MXFP8 payloads and their scales in the call form of kernels; constants to autograd."""

from __future__ import annotations

import torch

from primus_turbo.pytorch.kernels.arguments import check_backend, granularity_of
from turbo_core import BackendType, UnsupportedError
from turbo_core.low_precision import BLOCK_SIZE, ScalingGranularity
from turbo_grouped_gemm.developer import contract_grouped_payloads, multiply_grouped_payloads

__all__ = ["grouped_gemm_fp8_impl", "grouped_gemm_fp8_variable_k_impl"]


def grouped_gemm_fp8_impl(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity | str | int,
    num_cu: int | None = None,
    default_backend: BackendType | int | None = None,
    *,
    schedule: str = "static",
) -> torch.Tensor:
    """C[r] = a[r] op(b[g]) for each row r of group g, of values times their scales.

    Args:
        a, b, a_scales, b_scales, group_lens, group_offs, trans_b, out_dtype, num_cu, schedule: as for
            `turbo_grouped_gemm.developer.multiply_grouped_payloads`; BLOCKWISE ``a_scales`` may be stored transposed,
            [ceil(K/128),R], as `quant_fp8_blockwise_segment_m_row_col_impl` gives them.
        trans_a: False; rows of groups are rows of a.
        granularity: a ScalingGranularity, its value or its number, from 1.
        default_backend: a backend or its number, checked and not heeded: the user's settings and the measured default
            of each device decide.

    Raises:
        as `turbo_grouped_gemm.developer.multiply_grouped_payloads`.
    """
    op = "grouped_gemm_fp8_impl"
    check_backend(op, default_backend)
    kind = granularity_of(op, granularity)
    if trans_a:
        raise UnsupportedError(f"{op}: trans_a={trans_a}; False is accepted")
    if kind is ScalingGranularity.BLOCKWISE and a_scales.shape == (-(-a.shape[1] // BLOCK_SIZE), a.shape[0]):
        a_scales = a_scales.t()
    groups = (group_lens, group_offs)
    c: torch.Tensor = multiply_grouped_payloads(
        a, a_scales, b, b_scales, *groups, trans_b, out_dtype, kind, num_cu=num_cu, schedule=schedule
    )
    return c


def grouped_gemm_fp8_variable_k_impl(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None,
    trans_a: bool,
    trans_b: bool,
    trans_c: bool,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity | str | int,
    num_cu: int | None = None,
    default_backend: BackendType | int | None = None,
    *,
    schedule: str = "static",
) -> torch.Tensor:
    """C[g] [G,A,B], a contraction over the rows of each group, of values times their scales.

    Args:
        a, b, a_scales, b_scales, group_lens, group_offs, out_dtype, num_cu, schedule: as x, y and so on for
            `turbo_grouped_gemm.developer.contract_grouped_payloads`.
        trans_a, trans_b: True and False, the contraction is over rows; MX: False and False, over what comes last.
        trans_c: C[g]^T, [G,B,A], contiguous.
        granularity, default_backend: see `grouped_gemm_fp8_impl`.

    Raises:
        as `turbo_grouped_gemm.developer.contract_grouped_payloads`.
    """
    op = "grouped_gemm_fp8_variable_k_impl"
    check_backend(op, default_backend)
    kind = granularity_of(op, granularity)
    wanted = kind is not ScalingGranularity.MX_BLOCKWISE
    if bool(trans_a) is not wanted or trans_b:
        raise UnsupportedError(
            f"{op}: trans_a={trans_a}, trans_b={trans_b} with {kind.name}; {wanted} and False are accepted"
        )
    first, second = (a, a_scales), (b, b_scales)
    if trans_c:
        first, second = second, first
    c: torch.Tensor = contract_grouped_payloads(
        *first, *second, group_lens, group_offs, out_dtype, kind, num_cu=num_cu, schedule=schedule
    )
    return c
