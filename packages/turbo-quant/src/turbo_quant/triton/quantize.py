# SPDX-License-Identifier: MIT
"""The TRITON backend: the calls of `turbo_quant.calls` as Triton launches. No autograd, no dispatch."""

from __future__ import annotations

from typing import Any

from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import Launch, start
from turbo_quant.calls import DequantizeFloatCall, DequantizeMxCall, QuantizeFloatCall, QuantizeMxCall
from turbo_quant.orders import reordered
from turbo_quant.triton import float_plan, mx_plan
from turbo_quant.triton.dequantize_plan import plan_dequantize_float, plan_dequantize_mx
from turbo_quant.triton.tiles import KMAJOR_BLOCKS, MAX_GROUPED

__all__ = ["plan", "run", "why_not"]

Call = QuantizeFloatCall | QuantizeMxCall | DequantizeFloatCall | DequantizeMxCall

_PLANS: dict[type, Any] = {
    QuantizeFloatCall: float_plan.plan_quantize,
    QuantizeMxCall: mx_plan.plan_quantize,
    DequantizeFloatCall: plan_dequantize_float,
    DequantizeMxCall: plan_dequantize_mx,
}


def why_not(call: Call) -> str | None:
    """Why these kernels cannot take a call; None when they can."""
    if isinstance(call, (QuantizeMxCall, DequantizeMxCall)):
        return None
    if isinstance(call, QuantizeFloatCall) and (reason := _why_no_groups(call)) is not None:
        return reason
    dtype = call.out_dtype if isinstance(call, QuantizeFloatCall) else call.q.dtype
    if "fnuz" in str(dtype) and device_facts(call[0].device).vendor == "nvidia":
        return f"{dtype} is not a type of Triton for NVIDIA GPUs"
    return None


def _why_no_groups(call: QuantizeFloatCall) -> str | None:
    if call.group_offs is None:
        return None
    if call.k_major and (call.tile or call.block_size not in (0, *KMAJOR_BLOCKS)):
        what = f"{'tiles of ' if call.tile else ''}block_size={call.block_size}"
        return f"{what} of groups in K-major order; blocks of {', '.join(map(str, KMAJOR_BLOCKS))} are accepted"
    if call.block_size > MAX_GROUPED:
        return f"block_size={call.block_size} is over {MAX_GROUPED}, the most for the column payload of groups"
    return None


def plan(call: Call, facts: DeviceFacts) -> tuple[Any, list[Launch]] | None:
    """Outputs of a call, not yet written, and the launches that write them; None where there are copies to be made."""
    if _copies_x(call, facts) or _copies_outputs(call):
        return None
    planned: tuple[Any, list[Launch]] = _PLANS[type(call)](call, facts)
    return planned


def run(call: Call) -> Any:
    """Answer any call."""
    planned = plan(call, device_facts(call[0].device))
    if planned is None:
        return reordered(call, run) if _copies_outputs(call) else run(call._replace(x=call[0].contiguous()))
    return start(*planned)


def _copies_x(call: Call, facts: DeviceFacts) -> bool:
    # On an H200 (triton 3.6) column copies of transposed rows had wrong bytes. The same kernel and tile is right in the
    # interpreter and as simulated AMD machine code, so it is that compiler's doing: see test_mx_of_strided_data
    column = isinstance(call, QuantizeMxCall) and call.column is not None
    return column and facts.vendor == "nvidia" and call[0].stride(2) != 1 and not call[0].is_contiguous()


def _copies_outputs(call: Call) -> bool:
    return isinstance(call, QuantizeFloatCall) and call.k_major and call.block_size not in (0, *KMAJOR_BLOCKS)
