# SPDX-License-Identifier: MIT
"""Backend TORCH of grouped_gemm_fp8 and grouped_gemm_fp4 in plain PyTorch: dequantise to float32 and multiply."""

from __future__ import annotations

import torch

from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.developer import mx_format
from turbo_grouped_gemm.calls import (
    GroupedGemmCall,
    GroupedGemmFp8Call,
    GroupedOperand,
    GroupedWgradCall,
    GroupedWgradFp8Call,
    Groups,
)
from turbo_grouped_gemm.pytorch.kernels import grouped_gemm_reference
from turbo_quant.developer import DequantizeFloatCall, DequantizeMxCall, dequantize_float, dequantize_mx

__all__ = ["run", "why_not"]

Call = GroupedGemmFp8Call | GroupedWgradFp8Call


def why_not(call: Call) -> str | None:
    """Every call is accepted."""
    return None


def run(call: Call) -> torch.Tensor:
    """Compute the call in float32, rounded once."""
    return _gemm(call) if isinstance(call, GroupedGemmFp8Call) else _wgrad(call)


def _gemm(call: GroupedGemmFp8Call) -> torch.Tensor:
    a_RK, b_GNK = _dequantized(call, call.a), _dequantized(call, call.b)
    return grouped_gemm_reference.run(
        GroupedGemmCall(
            a_RK, b_GNK, call.bias, call.groups, True, call.out_dtype, call.a_idx, call.out_idx, call.out_rows
        )
    )


def _wgrad(call: GroupedWgradFp8Call) -> torch.Tensor:
    x_XP, y_YP = (_of_columns(call, operand) for operand in (call.x, call.y))
    groups = Groups(call.offs[1:] - call.offs[:-1], call.offs)
    return grouped_gemm_reference.run(
        GroupedWgradCall(x_XP.t(), y_YP.t(), groups, call.out_dtype, None, None, call.out)
    )


def _dequantized(call: Call, x: GroupedOperand) -> torch.Tensor:
    """An operand in float32, its scales as those of a, or of b for which there are three dimensions."""
    data, scale, dims = x.data, x.scale_inv, x.data.dim()
    if dims == 2:
        data, scale = data[None], scale if scale.dim() == 0 else scale[None]
    if call.is_mx():
        size = data.shape[2] * (2 if mx_format(data) == "e2m1" else 1)
        values = dequantize_mx(DequantizeMxCall(data, scale, mx_format(data), size, False, False, 0, torch.float32))
    else:
        tiles = dims == 3 and call.granularity is ScalingGranularity.BLOCKWISE
        axis = 0 if tiles else 2
        values = dequantize_float(
            DequantizeFloatCall(data, scale, call.granularity, call.block_size, axis, torch.float32)
        )
    return values[0] if dims == 2 else values


def _of_columns(call: GroupedWgradFp8Call, x: GroupedOperand) -> torch.Tensor:
    """[X,P] of an operand whose ROWWISE scales [G,X] are one for each of its rows in each group."""
    if call.granularity is not ScalingGranularity.ROWWISE:
        return _dequantized(call, x)
    column = torch.arange(x.data.shape[1], device=x.data.device)
    group = torch.searchsorted(call.offs[1:].contiguous(), column, right=True)
    scale = x.scale_inv[group.clamp(max=x.scale_inv.shape[0] - 1)].t()
    return x.data.float() * scale
