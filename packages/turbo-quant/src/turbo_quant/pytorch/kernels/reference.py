# SPDX-License-Identifier: MIT
"""The TORCH backend: the calls of `turbo_quant.calls` in plain PyTorch, on any device."""

from typing import Any

from turbo_quant.calls import DequantizeFloatCall, DequantizeMxCall, QuantizeFloatCall, QuantizeMxCall
from turbo_quant.pytorch.kernels.reference_float import dequantize_float, quantize_float
from turbo_quant.pytorch.kernels.reference_mx import dequantize_mx, quantize_mx

__all__ = ["dequantize_float", "dequantize_mx", "quantize_float", "quantize_mx", "run", "why_not"]

_RUNS: dict[type, Any] = {
    QuantizeFloatCall: quantize_float,
    QuantizeMxCall: quantize_mx,
    DequantizeFloatCall: dequantize_float,
    DequantizeMxCall: dequantize_mx,
}


def why_not(call: Any) -> str | None:
    """It can take any call."""
    return None


def run(call: Any) -> Any:
    """Answer a call."""
    return _RUNS[type(call)](call)
