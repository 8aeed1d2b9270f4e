# SPDX-License-Identifier: MIT
"""Backend TORCH of gemm_fp8 and gemm_fp4 in plain PyTorch: dequantise to float32 and multiply."""

from __future__ import annotations

import torch

from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.calls import GemmFp8Call, Operand, mx_format
from turbo_gemm.pytorch.kernels.gemm_reference import gemm_reference
from turbo_quant.developer import (
    DequantizeFloatCall,
    DequantizeMxCall,
    dequantize_float,
    dequantize_mx,
    unshuffle_scale_bytes,
    unshuffle_weight_bytes,
)

__all__ = ["run", "why_not"]


def why_not(call: GemmFp8Call) -> str | None:
    """Every call is accepted."""
    return None


def run(call: GemmFp8Call) -> torch.Tensor:
    """Compute the call in float32, rounded once."""
    dequantize = _dequantize_mx if call.is_mx() else _dequantize
    a_MK, b_KN = dequantize(call, call.a, False), dequantize(call, call.b, True)
    return gemm_reference(a_MK, b_KN, call.bias, call.out_dtype, call.out)


def _dequantize(call: GemmFp8Call, x: Operand, is_b: bool) -> torch.Tensor:
    """op(x) in float32."""
    scales = x.scale_inv if call.granularity is ScalingGranularity.TENSORWISE else x.scale_inv[None]
    axis = 0 if x.tiles else 2 if x.trans is is_b else 1  # of [1,R,C] as stored, along which the scales lie
    wanted = DequantizeFloatCall(x.data[None], scales, call.granularity, call.block_size, axis, torch.float32)
    values = dequantize_float(wanted)[0]
    return values.t() if x.trans else values


def _dequantize_mx(call: GemmFp8Call, x: Operand, is_b: bool) -> torch.Tensor:
    """A [M,Kp], or B [Kp,N], in float32."""
    payload, scale, k = x.data, x.scale_inv, call.sizes()[2]
    if call.preshuffled:
        scale = unshuffle_scale_bytes(scale.view(torch.uint8), payload.shape[0], k // 32)
        if is_b:
            payload = unshuffle_weight_bytes(payload.view(torch.uint8)).view(payload.dtype)
    wanted = DequantizeMxCall(payload[None], scale[None], mx_format(payload), k, False, False, 0, torch.float32)
    values = dequantize_mx(wanted)[0]
    return values.t() if is_b else values
