# SPDX-License-Identifier: MIT
"""The TORCH backend: the four calls of `turbo_quant.calls` in plain PyTorch, on any device."""

from turbo_quant.pytorch.kernels.reference_float import dequantize_float, quantize_float
from turbo_quant.pytorch.kernels.reference_mx import dequantize_mx, quantize_mx

__all__ = ["dequantize_float", "dequantize_mx", "quantize_float", "quantize_mx"]
