# SPDX-License-Identifier: MIT
"""The GEMM of quantised operands in plain PyTorch: dequantise to float32 and multiply."""

from __future__ import annotations

import torch

from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.pytorch.kernels.quant_gemm_call import QuantGemmCall, mx_format
from turbo_gemm.pytorch.kernels.reference import gemm_reference
from turbo_quant.developer import (
    DequantizeFloatCall,
    DequantizeMxCall,
    dequantize_float,
    dequantize_mx,
    unshuffle_scale_bytes,
    unshuffle_weight_bytes,
)

__all__ = ["quant_gemm_reference"]


def quant_gemm_reference(call: QuantGemmCall) -> torch.Tensor:
    """C[M,N] = A[M,K] B[K,N] (+ bias[N]) (+ out[M,N]) of the dequantised operands, in float32, rounded once."""
    if call.is_mx():
        a_MK, b_NK = _dequantize_mx(call)
        return gemm_reference(a_MK, b_NK.t(), call.bias, call.out_dtype, call.out)
    a = _dequantize(call, call.a, call.a_scale_inv, 1 if call.trans_a else 2, call.a_tiles)
    b = _dequantize(call, call.b, call.b_scale_inv, 2 if call.trans_b else 1, call.b_tiles)
    return gemm_reference(
        a.t() if call.trans_a else a, b.t() if call.trans_b else b, call.bias, call.out_dtype, call.out
    )


def _dequantize(call: QuantGemmCall, q: torch.Tensor, scale_inv: torch.Tensor, axis: int, tiles: bool) -> torch.Tensor:
    """float32, in the order in which q is stored; its scales lie along ``axis`` of [1,R,C]."""
    scales = scale_inv if call.granularity is ScalingGranularity.TENSORWISE else scale_inv[None]
    wanted = DequantizeFloatCall(
        q[None], scales, call.granularity, call.block_size, 0 if tiles else axis, torch.float32
    )
    return dequantize_float(wanted)[0]


def _dequantize_mx(call: QuantGemmCall) -> tuple[torch.Tensor, torch.Tensor]:
    """A [M,Kp] and B^T [N,Kp] in float32."""
    k = call.sizes()[2]
    operands = []
    for payload, scale, is_b in ((call.a, call.a_scale_inv, False), (call.b, call.b_scale_inv, True)):
        if call.preshuffled:
            scale = unshuffle_scale_bytes(scale.view(torch.uint8), payload.shape[0], k // 32)
            if is_b:
                payload = unshuffle_weight_bytes(payload.view(torch.uint8)).view(payload.dtype)
        wanted = DequantizeMxCall(payload[None], scale[None], mx_format(payload), k, False, False, 0, torch.float32)
        operands.append(dequantize_mx(wanted)[0])
    return operands[0], operands[1]
