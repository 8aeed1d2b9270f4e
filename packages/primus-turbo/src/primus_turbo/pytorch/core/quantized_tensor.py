# SPDX-License-Identifier: MIT
"""Quantised tensors and weights."""

from turbo_quant import QuantizedTensor, QuantizedTensorPair, check_quantized_tensor, create_quantized_weight

__all__ = ["QuantizedTensor", "QuantizedTensorPair", "check_quantized_tensor", "create_quantized_weight"]
