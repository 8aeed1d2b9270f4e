# SPDX-License-Identifier: MIT
"""The TRITON backend: the four calls of `turbo_quant.calls` as Triton launches. No autograd, no dispatch."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from turbo_core.device import device_facts
from turbo_core.launch import Launch
from turbo_core.requirements import why_no_triton
from turbo_quant.calls import (
    DequantizeFloatCall,
    DequantizeMxCall,
    FloatOutputs,
    MxOutputs,
    QuantizeFloatCall,
    QuantizeMxCall,
)
from turbo_quant.triton import float_plan, mx_plan
from turbo_quant.triton.tiles import MAX_GROUPED

__all__ = ["dequantize_float", "dequantize_mx", "quantize_float", "quantize_mx", "why_not"]


def why_not(call: QuantizeFloatCall | QuantizeMxCall | DequantizeFloatCall | DequantizeMxCall) -> str | None:
    """Why these kernels cannot take a call; None when they can."""
    tensor = call.x if isinstance(call, (QuantizeFloatCall, QuantizeMxCall)) else call.q
    if isinstance(call, QuantizeFloatCall) and call.group_offs is not None and call.block_size > MAX_GROUPED:
        return f"block_size={call.block_size} is over {MAX_GROUPED}, the most for the column copy of groups"
    return why_no_triton(tensor.device)


def _run(launches: Iterable[Launch], device: torch.device) -> None:
    for launch in launches:
        launch.run(device)


def quantize_float(call: QuantizeFloatCall) -> FloatOutputs:
    """Answer a `QuantizeFloatCall`."""
    outputs, launches = float_plan.plan_quantize(call, device_facts(call.x.device))
    _run(launches, call.x.device)
    return outputs


def quantize_mx(call: QuantizeMxCall) -> MxOutputs:
    """Answer a `QuantizeMxCall`."""
    outputs, launches = mx_plan.plan_quantize(call, device_facts(call.x.device))
    _run(launches, call.x.device)
    return outputs


def dequantize_float(call: DequantizeFloatCall) -> torch.Tensor:
    """Answer a `DequantizeFloatCall`."""
    result, launches = float_plan.plan_dequantize(call, device_facts(call.q.device))
    _run(launches, call.q.device)
    return result


def dequantize_mx(call: DequantizeMxCall) -> torch.Tensor:
    """Answer a `DequantizeMxCall`."""
    result, launches = mx_plan.plan_dequantize(call, device_facts(call.q.device))
    _run(launches, call.q.device)
    return result
