# SPDX-License-Identifier: MIT
"""Backend TURBO of grouped products of FP8 and MX operands: our HIP kernels, by the native library.

One launch a product: the device finds its groups, and writes the zeros of rows that belong to none. Operands are read
in place where their rows begin on 16 bytes, else copied, as in turbo-gemm.
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import UnsupportedError, device_facts
from turbo_core.calls import empty
from turbo_core.low_precision import ScalingGranularity
from turbo_core.native import address, fp8_code
from turbo_gemm.developer import (
    BLOCK,
    MAX_ROW_BYTES,
    TILES,
    NativeOutput,
    mx_format,
    native_operand,
    payload_of,
    scale_of,
    stride_of,
    why_not_operands,
)
from turbo_grouped_gemm.calls import (
    GroupedGemmCall,
    GroupedGemmFp8Call,
    GroupedOperand,
    GroupedWgradCall,
    GroupedWgradFp8Call,
    gemm_specs,
    wgrad_specs,
)
from turbo_grouped_gemm.pytorch.kernels.native import library

__all__ = ["run", "why_not"]

QuantisedCall = GroupedGemmFp8Call | GroupedWgradFp8Call
Call = GroupedGemmCall | GroupedWgradCall | QuantisedCall


# --- may it run -------------------------------------------------------------------------------------------------------


def why_not(call: Call) -> str | None:
    """Why the kernels cannot take the call; None when they can."""
    if not isinstance(call, QuantisedCall):
        return "the HIP kernels are for FP8 and MX operands"
    a, b = _operands(call)
    if (reason := library.why_not(a.data.device)) is not None:
        return reason
    if call.schedule != "static":
        return f"schedule={call.schedule!r}; the HIP kernels have 'static' alone"
    if isinstance(call, GroupedGemmFp8Call) and (call.a_idx is not None or call.out_idx is not None):
        return "rows are named by a_idx or out_idx; the HIP kernels take those of a group side by side"
    arch = device_facts(a.data.device).arch
    names = "ab" if isinstance(call, GroupedGemmFp8Call) else "xy"
    if reason := why_not_operands(a.data, b.data, call.granularity, call.block_size, arch, names):
        return reason
    longest = max(a.data.shape[-1] + BLOCK, 4 * b.data.shape[-2])
    return f"rows of {longest} bytes; at most {MAX_ROW_BYTES} are accepted" if longest > MAX_ROW_BYTES else None


def _operands(call: QuantisedCall) -> tuple[GroupedOperand, GroupedOperand]:
    """Those whose rows are the rows and the columns of C."""
    return (call.a, call.b) if isinstance(call, GroupedGemmFp8Call) else (call.x, call.y)


# --- the products -----------------------------------------------------------------------------------------------------


def run(call: QuantisedCall, *, tile: str = "chosen") -> torch.Tensor:
    """Compute the call.

    tile: what of C a work-group computes, "large" (256x256; BLOCKWISE 256x128), "small" (128x128), or "chosen" by the
    sizes (benchmarks and tests).
    """
    if tile not in TILES:
        raise UnsupportedError(f"tile={tile!r}: accepted are {', '.join(TILES)}")
    first, second = _operands(call)
    a, b = payload_of(first.data), payload_of(second.data)
    a_scale, b_scale = (_scale_of(call, x.scale_inv) for x in (first, second))
    bias = call.bias if isinstance(call, GroupedGemmFp8Call) else None
    target = _output(call, bias)
    tiles = isinstance(call, GroupedGemmFp8Call) and call.granularity is ScalingGranularity.BLOCKWISE
    lens, offs = _groups(call)
    problem = {
        "a": native_operand(a, a_scale, call.granularity),
        "b": native_operand(b, b_scale, call.granularity, tiles),
        "c": target.fields(),
        "m": a.shape[-2],
        "n": b.shape[-2],
        "k": a.shape[-1] * (2 if _is_packed(call) else 1),
        "groups": {
            "count": call.sizes()[0],
            "lens": address(lens),
            "offs": address(offs),
            "lens_bits": _bits(lens),
            "offs_bits": _bits(offs),
        },
        "b_group": _group_stride(b),
        "a_scale_group": _group_stride(a_scale),
        "b_scale_group": _group_stride(b_scale),
        "bias_group": 0 if target.bias is None else stride_of(target.bias, 0),
        "c_group": _group_stride(target.c),
        "tile": TILES[tile],
        "compute_units": device_facts(a.device).compute_units,
        "most_units": call.num_cu or 0,
    }
    library.check(_launch(call, problem))
    return target.result()


def _launch(call: QuantisedCall, problem: dict[str, Any]) -> int:
    extension = library.extension
    first, second = _operands(call)
    index, stream = library.where(first.data)
    if call.is_mx():
        formats = extension.MX_FORMATS
        format_a, format_b = formats[mx_format(first.data)], formats[mx_format(second.data)]
        return extension.grouped_gemm_mx(index, stream, problem=problem, format_a=format_a, format_b=format_b)
    return extension.grouped_gemm_fp8(
        index,
        stream,
        problem=problem,
        dtype_a=fp8_code("dtype of the first operand", first.data.dtype),
        dtype_b=fp8_code("dtype of the second operand", second.data.dtype),
        block=BLOCK if call.granularity is ScalingGranularity.BLOCKWISE else 0,
    )


def _is_packed(call: QuantisedCall) -> bool:
    return call.is_mx() and mx_format(_operands(call)[0].data) == "e2m1"


def _scale_of(call: QuantisedCall, scale: torch.Tensor) -> torch.Tensor:
    """Scales with rows second to last and groups, where they have scales of their own, before them."""
    if isinstance(call, GroupedWgradFp8Call) and call.granularity is ScalingGranularity.ROWWISE:
        scale = scale[..., None]
    return scale_of(scale, call.granularity)


def _group_stride(tensor: torch.Tensor) -> int:
    """Elements from group to group; 0 where all share."""
    return stride_of(tensor, 0) if tensor.dim() == 3 else 0


def _output(call: QuantisedCall, bias: torch.Tensor | None) -> NativeOutput:
    device = _operands(call)[0].data.device
    if isinstance(call, GroupedGemmFp8Call):
        return NativeOutput(None, bias, lambda: empty(gemm_specs(call), device))
    return NativeOutput(call.out, None, lambda: empty(wgrad_specs(call), device))


def _groups(call: QuantisedCall) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """lens and offs, each adjacent; without lens the groups are columns."""
    if isinstance(call, GroupedWgradFp8Call):
        return None, call.offs.contiguous()
    lens, offs = call.groups
    return lens.contiguous(), None if offs is None else offs.contiguous()


def _bits(values: torch.Tensor | None) -> int:
    return 0 if values is None else 8 * values.element_size()
