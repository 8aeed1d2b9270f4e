# SPDX-License-Identifier: MIT
"""The public functions."""

from turbo_quant.pytorch.ops.dequantize import dequantize_fp4, dequantize_fp8
from turbo_quant.pytorch.ops.grouped import (
    grouped_dequantize_fp4,
    grouped_dequantize_fp8,
    grouped_quantize_fp4,
    grouped_quantize_fp4_with_trans,
    grouped_quantize_fp8,
    grouped_quantize_fp8_with_trans,
)
from turbo_quant.pytorch.ops.quantize import (
    quantize_fp4,
    quantize_fp4_with_trans,
    quantize_fp8,
    quantize_fp8_with_trans,
)
from turbo_quant.pytorch.ops.random import hadamard_transform, random_sign_mask, rng_state
from turbo_quant.pytorch.ops.shuffle import shuffle_scale, shuffle_weight, unshuffle_scale, unshuffle_weight

__all__ = [
    "dequantize_fp4",
    "dequantize_fp8",
    "grouped_dequantize_fp4",
    "grouped_dequantize_fp8",
    "grouped_quantize_fp4",
    "grouped_quantize_fp4_with_trans",
    "grouped_quantize_fp8",
    "grouped_quantize_fp8_with_trans",
    "hadamard_transform",
    "quantize_fp4",
    "quantize_fp4_with_trans",
    "quantize_fp8",
    "quantize_fp8_with_trans",
    "random_sign_mask",
    "rng_state",
    "shuffle_scale",
    "shuffle_weight",
    "unshuffle_scale",
    "unshuffle_weight",
]
