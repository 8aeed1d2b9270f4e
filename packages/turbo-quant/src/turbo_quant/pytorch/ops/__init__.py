# SPDX-License-Identifier: MIT
"""The public functions."""

from turbo_quant.pytorch.ops.dequantize import dequantize_fp4, dequantize_fp8
from turbo_quant.pytorch.ops.quantize import (
    quantize_fp4,
    quantize_fp4_with_trans,
    quantize_fp8,
    quantize_fp8_with_trans,
)
from turbo_quant.pytorch.ops.random import hadamard_transform, random_sign_mask, rng_state

__all__ = [
    "dequantize_fp4",
    "dequantize_fp8",
    "hadamard_transform",
    "quantize_fp4",
    "quantize_fp4_with_trans",
    "quantize_fp8",
    "quantize_fp8_with_trans",
    "random_sign_mask",
    "rng_state",
]
