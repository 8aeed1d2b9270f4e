# SPDX-License-Identifier: MIT
"""The quant ops of Turbo. Importing it imports no torch until a name is used."""

from turbo_core.lazy import attach

__all__ = [
    "create_quantized_weight",
    "check_quantized_tensor",
    "QuantizedTensorPair",
    "QuantizedTensor",
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

__getattr__, __dir__ = attach(
    __name__,
    {
        "create_quantized_weight": "turbo_quant.pytorch.quantized_weight",
        "check_quantized_tensor": "turbo_quant.pytorch.quantized_weight",
        "QuantizedTensorPair": "turbo_quant.pytorch.quantized_weight",
        "QuantizedTensor": "turbo_quant.pytorch.quantized_tensor",
        "dequantize_fp4": "turbo_quant.pytorch.ops.dequantize",
        "dequantize_fp8": "turbo_quant.pytorch.ops.dequantize",
        "grouped_dequantize_fp4": "turbo_quant.pytorch.ops.grouped",
        "grouped_dequantize_fp8": "turbo_quant.pytorch.ops.grouped",
        "grouped_quantize_fp4": "turbo_quant.pytorch.ops.grouped",
        "grouped_quantize_fp4_with_trans": "turbo_quant.pytorch.ops.grouped",
        "grouped_quantize_fp8": "turbo_quant.pytorch.ops.grouped",
        "grouped_quantize_fp8_with_trans": "turbo_quant.pytorch.ops.grouped",
        "hadamard_transform": "turbo_quant.pytorch.ops.random",
        "quantize_fp4": "turbo_quant.pytorch.ops.quantize",
        "quantize_fp4_with_trans": "turbo_quant.pytorch.ops.quantize",
        "quantize_fp8": "turbo_quant.pytorch.ops.quantize",
        "quantize_fp8_with_trans": "turbo_quant.pytorch.ops.quantize",
        "random_sign_mask": "turbo_quant.pytorch.ops.random",
        "rng_state": "turbo_quant.pytorch.ops.random",
        "shuffle_scale": "turbo_quant.pytorch.ops.shuffle",
        "shuffle_weight": "turbo_quant.pytorch.ops.shuffle",
        "unshuffle_scale": "turbo_quant.pytorch.ops.shuffle",
        "unshuffle_weight": "turbo_quant.pytorch.ops.shuffle",
    },
)
