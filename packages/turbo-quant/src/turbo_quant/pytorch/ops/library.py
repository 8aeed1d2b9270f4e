# SPDX-License-Identifier: MIT
"""The registered ops ``turbo_quant::*``: each takes a call of `turbo_quant.calls` and gives what that says.

None of them is differentiable: the public functions detach.
"""

from __future__ import annotations

import torch

from turbo_core.library import OpLibrary
from turbo_quant.calls import (
    DequantizeFloatCall,
    DequantizeMxCall,
    FloatOutputs,
    MxOutputs,
    QuantizeFloatCall,
    QuantizeMxCall,
    ShuffleScaleCall,
    ShuffleWeightCall,
    UnshuffleScaleCall,
    specs,
)
from turbo_quant.pytorch.kernels import shuffle
from turbo_quant.pytorch.kernels.quantize_impl import dequantize, quantize_float, quantize_mx

__all__ = [
    "library",
    "run_dequantize_float",
    "run_dequantize_mx",
    "run_quantize_float",
    "run_quantize_mx",
    "shuffle_scale",
    "shuffle_weight",
    "unshuffle_scale",
    "unshuffle_weight",
]


def _shuffle_scale(call: ShuffleScaleCall) -> torch.Tensor:
    return shuffle.shuffle_scale_bytes(call.scale.view(torch.uint8)).view(call.scale.dtype)


def _unshuffle_scale(call: UnshuffleScaleCall) -> torch.Tensor:
    scale = call.scale
    return shuffle.unshuffle_scale_bytes(scale.view(torch.uint8), call.rows, call.columns).view(scale.dtype)


def _shuffle_weight(call: ShuffleWeightCall) -> torch.Tensor:
    return shuffle.shuffle_weight_bytes(call.payload.view(torch.uint8)).view(call.payload.dtype)


def _unshuffle_weight(call: ShuffleWeightCall) -> torch.Tensor:
    return shuffle.unshuffle_weight_bytes(call.payload.view(torch.uint8)).view(call.payload.dtype)


library = OpLibrary("turbo_quant")
run_quantize_float = library.op("quantize_float", QuantizeFloatCall, quantize_float, specs, result=FloatOutputs)
run_quantize_mx = library.op("quantize_mx", QuantizeMxCall, quantize_mx, specs, result=MxOutputs)
run_dequantize_float = library.op("dequantize_float", DequantizeFloatCall, dequantize, specs)
run_dequantize_mx = library.op("dequantize_mx", DequantizeMxCall, dequantize, specs)
shuffle_scale = library.op("shuffle_scale", ShuffleScaleCall, _shuffle_scale, specs)
unshuffle_scale = library.op("unshuffle_scale", UnshuffleScaleCall, _unshuffle_scale, specs)
shuffle_weight = library.op("shuffle_weight", ShuffleWeightCall, _shuffle_weight, specs)
unshuffle_weight = library.op("unshuffle_weight", ShuffleWeightCall, _unshuffle_weight, specs)
