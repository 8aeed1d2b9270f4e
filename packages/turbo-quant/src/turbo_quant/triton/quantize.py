# SPDX-License-Identifier: MIT
"""The TRITON backend: the four calls of `turbo_quant.calls` as Triton launches. No autograd, no dispatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import Launch
from turbo_core.prepared import PreparedLaunches
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
from turbo_quant.triton.dequantize_plan import plan_dequantize_float, plan_dequantize_mx
from turbo_quant.triton.tiles import KMAJOR_BLOCKS, MAX_GROUPED

__all__ = ["dequantize_float", "dequantize_mx", "quantize_float", "quantize_mx", "why_not"]


def why_not(call: QuantizeFloatCall | QuantizeMxCall | DequantizeFloatCall | DequantizeMxCall) -> str | None:
    """Why these kernels cannot take a call; None when they can."""
    tensor = call.x if isinstance(call, (QuantizeFloatCall, QuantizeMxCall)) else call.q
    if isinstance(call, QuantizeFloatCall) and call.group_offs is not None and call.block_size > MAX_GROUPED:
        return f"block_size={call.block_size} is over {MAX_GROUPED}, the most for the column copy of groups"
    if isinstance(call, QuantizeFloatCall) and call.k_major and call.block_size not in (0, *KMAJOR_BLOCKS):
        return f"block_size={call.block_size}; K-major payloads have blocks of {', '.join(map(str, KMAJOR_BLOCKS))}"
    return why_no_triton(tensor.device)


_prepared = PreparedLaunches()


def _run(
    name: str, call: Any, device: torch.device, plan: Callable[[Any, DeviceFacts], tuple[Any, list[Launch]]]
) -> Any:
    return _prepared.run(name, call, device, lambda: plan(call, device_facts(device)))


def quantize_float(call: QuantizeFloatCall) -> FloatOutputs:
    """Answer a `QuantizeFloatCall`."""
    outputs: FloatOutputs = _run("quantize", call, call.x.device, float_plan.plan_quantize)
    return outputs


def quantize_mx(call: QuantizeMxCall) -> MxOutputs:
    """Answer a `QuantizeMxCall`."""
    device = call.x.device
    if call.column is not None and call.x.stride(2) != 1 and device_facts(device).vendor == "nvidia":
        # On an H200 (triton 3.6) column copies of transposed rows had wrong bytes. The same kernel and tile is right in
        # the interpreter and as simulated AMD machine code, so it is that compiler's doing: see test_mx_of_strided_data
        call = call._replace(x=call.x.contiguous())
    outputs: MxOutputs = _run("quantize mx", call, device, mx_plan.plan_quantize)
    return outputs


def dequantize_float(call: DequantizeFloatCall) -> torch.Tensor:
    """Answer a `DequantizeFloatCall`."""
    result: torch.Tensor = _run("dequantize", call, call.q.device, plan_dequantize_float)
    return result


def dequantize_mx(call: DequantizeMxCall) -> torch.Tensor:
    """Answer a `DequantizeMxCall`."""
    result: torch.Tensor = _run("dequantize mx", call, call.q.device, plan_dequantize_mx)
    return result
