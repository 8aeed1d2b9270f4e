# SPDX-License-Identifier: MIT
"""What other wheels build on: calls of quantisation, who computes them, and the orders of bytes. Imported lazily.

Everything else below `turbo_quant`, but for the names of `turbo_quant` itself, is private to this wheel. These names
and what they mean change with the wheel's minor version only, like its public functions; they check nothing, since
their callers have.

- `QuantizeFloatCall`, `QuantizeMxCall` with `MxDirection`, `DequantizeFloatCall`, `DequantizeMxCall`: what a backend is
  asked, with the shapes of operands and results. `FloatOutputs`, `MxOutputs`: what it gives back.
- `run_quantize_float`, `run_quantize_mx`, `run_dequantize_float`, `run_dequantize_mx`: such a call through the
  registered op, on the backend that the user's settings choose. What was not asked for is None.
- `padded_groups`: `PaddedGroups` of lens and offs, computed on the device in one launch: ``group_offs`` and
  ``group_offs_padded`` of calls.
- `dequantize_float`, `dequantize_mx`: the same in plain PyTorch, at once and on any device, for reference backends.
- `shuffle_scale_bytes`, `shuffle_weight_bytes` and their inverses: the orders of preshuffled MXFP4 operands.
- `fp4_dtype`, `scale_dtype`, `payload_dtype`: torch's types for MX payloads and scales, uint8 where it has none.
- `philox_words`: the random numbers of stochastic rounding and dropout, in torch integers.
"""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_quant.calls import (
        DequantizeFloatCall,
        DequantizeMxCall,
        FloatOutputs,
        MxDirection,
        MxOutputs,
        PaddedGroups,
        QuantizeFloatCall,
        QuantizeMxCall,
    )
    from turbo_quant.formats import fp4_dtype, payload_dtype, scale_dtype
    from turbo_quant.pytorch.kernels.philox import philox_words
    from turbo_quant.pytorch.kernels.reference import dequantize_float, dequantize_mx
    from turbo_quant.pytorch.kernels.shuffle import (
        shuffle_scale_bytes,
        shuffle_weight_bytes,
        unshuffle_scale_bytes,
        unshuffle_weight_bytes,
    )
    from turbo_quant.pytorch.ops.library import (
        run_dequantize_float,
        run_dequantize_mx,
        run_quantize_float,
        run_quantize_mx,
    )
    from turbo_quant.pytorch.ops.padding import padded_groups

__all__ = [
    "DequantizeFloatCall",
    "DequantizeMxCall",
    "FloatOutputs",
    "MxDirection",
    "MxOutputs",
    "PaddedGroups",
    "QuantizeFloatCall",
    "QuantizeMxCall",
    "dequantize_float",
    "dequantize_mx",
    "fp4_dtype",
    "padded_groups",
    "payload_dtype",
    "philox_words",
    "run_dequantize_float",
    "run_dequantize_mx",
    "run_quantize_float",
    "run_quantize_mx",
    "scale_dtype",
    "shuffle_scale_bytes",
    "shuffle_weight_bytes",
    "unshuffle_scale_bytes",
    "unshuffle_weight_bytes",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "DequantizeFloatCall": "turbo_quant.calls",
        "DequantizeMxCall": "turbo_quant.calls",
        "FloatOutputs": "turbo_quant.calls",
        "MxDirection": "turbo_quant.calls",
        "MxOutputs": "turbo_quant.calls",
        "PaddedGroups": "turbo_quant.calls",
        "QuantizeFloatCall": "turbo_quant.calls",
        "QuantizeMxCall": "turbo_quant.calls",
        "dequantize_float": "turbo_quant.pytorch.kernels.reference",
        "dequantize_mx": "turbo_quant.pytorch.kernels.reference",
        "fp4_dtype": "turbo_quant.formats",
        "padded_groups": "turbo_quant.pytorch.ops.padding",
        "payload_dtype": "turbo_quant.formats",
        "philox_words": "turbo_quant.pytorch.kernels.philox",
        "run_dequantize_float": "turbo_quant.pytorch.ops.library",
        "run_dequantize_mx": "turbo_quant.pytorch.ops.library",
        "run_quantize_float": "turbo_quant.pytorch.ops.library",
        "run_quantize_mx": "turbo_quant.pytorch.ops.library",
        "scale_dtype": "turbo_quant.formats",
        "shuffle_scale_bytes": "turbo_quant.pytorch.kernels.shuffle",
        "shuffle_weight_bytes": "turbo_quant.pytorch.kernels.shuffle",
        "unshuffle_scale_bytes": "turbo_quant.pytorch.kernels.shuffle",
        "unshuffle_weight_bytes": "turbo_quant.pytorch.kernels.shuffle",
    },
)
