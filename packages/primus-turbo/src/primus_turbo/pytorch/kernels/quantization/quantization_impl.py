# SPDX-License-Identifier: MIT
"""BLOCKWISE quantisation in the call forms of its kernels: `turbo_quant`'s functions, their options as names.

Scales are scale_inv, float32: x is about q * scale_inv.
"""

from __future__ import annotations

import torch

from turbo_core.low_precision import BLOCK_SIZE, ScalingGranularity, ScalingRecipe
from turbo_quant import (
    dequantize_fp8,
    grouped_quantize_fp8_with_trans,
    quantize_fp8,
    quantize_fp8_with_trans,
)

__all__ = [
    "dequant_fp8_blockwise_for_weight_impl",
    "dequant_fp8_blockwise_impl",
    "quant_fp8_blockwise_dual_impl",
    "quant_fp8_blockwise_for_weight_impl",
    "quant_fp8_blockwise_impl",
    "quant_fp8_blockwise_segment_m_row_col_impl",
]

_BLOCKWISE = ScalingGranularity.BLOCKWISE
_TILES = ScalingRecipe(use_2d_block=True)
_Pair = tuple[torch.Tensor, torch.Tensor]
_Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def quant_fp8_blockwise_impl(x: torch.Tensor, dtype: torch.dtype, axis: int, block_size: int = BLOCK_SIZE) -> _Pair:
    """(q, scale) of x [M,N] with a scale for ``block_size`` elements along ``axis``: [M,ceil(N/b)] or [ceil(M/b),N]."""
    return quantize_fp8(x, dtype, _BLOCKWISE, block_size=block_size, axis=axis)


def quant_fp8_blockwise_dual_impl(x: torch.Tensor, dtype: torch.dtype, block_size: int = BLOCK_SIZE) -> _Four:
    """(q_row, scale_row, q_col, scale_col) in one pass: `quant_fp8_blockwise_impl` along axis 1 and along axis 0."""
    return quantize_fp8_with_trans(x, dtype, _BLOCKWISE, block_size=block_size)


def quant_fp8_blockwise_for_weight_impl(w: torch.Tensor, dtype: torch.dtype, block_size: int = BLOCK_SIZE) -> _Pair:
    """(q, scale) of w [M,N] or [B,M,N] with a scale per tile: [..,ceil(M/b),ceil(N/b)]."""
    return quantize_fp8(w, dtype, _BLOCKWISE, block_size=block_size, scaling_recipe=_TILES)


def quant_fp8_blockwise_segment_m_row_col_impl(
    x: torch.Tensor,
    dtype: torch.dtype,
    block_size: int,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor,
    gemm_other_dim: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both copies of x [M,N], whose rows belong to G groups, in one pass.

    Args:
        x, dtype, block_size: as for `quant_fp8_blockwise_impl`.
        group_lens, group_offs: [G] and [G+1], int64 or int32 on x's device.
        gemm_other_dim: taken for the call form; the choice of a kernel does not depend on it.

    Returns:
        (q_row, q_col, scale_row, scale_col, lens, offs). q_row [M,N] with scale_row stored transposed,
        [ceil(N/b),M]. In q_col each group's rows begin at a multiple of the block: [M + G b,N] with scale_col
        [ceil((M + G b)/b),N], zeros between; lens [G] and offs [G+1] are int64, of the groups so padded.
    """
    q_row, row, q_col, column, _, _, lens, offs = grouped_quantize_fp8_with_trans(
        x, dtype, _BLOCKWISE, group_lens, group_offs, block_size=block_size
    )
    return q_row, q_col, row.t().contiguous(), column, lens, offs


def dequant_fp8_blockwise_impl(
    q: torch.Tensor, scale_inv: torch.Tensor, out_dtype: torch.dtype, axis: int, block_size: int = BLOCK_SIZE
) -> torch.Tensor:
    """The inverse of `quant_fp8_blockwise_impl`."""
    return dequantize_fp8(q, out_dtype, _BLOCKWISE, block_size=block_size, axis=axis, scale_inv=scale_inv)


def dequant_fp8_blockwise_for_weight_impl(
    q: torch.Tensor, scale_inv: torch.Tensor, out_dtype: torch.dtype, block_size: int = BLOCK_SIZE
) -> torch.Tensor:
    """The inverse of `quant_fp8_blockwise_for_weight_impl`."""
    return dequantize_fp8(q, out_dtype, _BLOCKWISE, block_size=block_size, scale_inv=scale_inv, scaling_recipe=_TILES)
