# SPDX-License-Identifier: MIT
"""Backend TURBO of grouped products: our HIP kernels, by the native library.

One launch a product: the device finds its groups, and writes the zeros of rows that belong to none. The kernels read
both operands along the contraction, 16 bytes at a time. FP8 and MX operands that are stored otherwise are copied first,
as in turbo-gemm; those of 16 bits are left to others.
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import UnsupportedError, device_facts
from turbo_core.calls import empty
from turbo_core.low_precision import ScalingGranularity
from turbo_core.native import address, float_code, fp8_code
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

__all__ = ["run", "why_not", "why_not_groups"]

RowsCall = GroupedGemmCall | GroupedGemmFp8Call
QuantisedCall = GroupedGemmFp8Call | GroupedWgradFp8Call
Call = RowsCall | GroupedWgradFp8Call

_HALVES = (torch.bfloat16, torch.float16)


# --- may it run -------------------------------------------------------------------------------------------------------


def why_not(call: Call | GroupedWgradCall) -> str | None:
    """Why the kernels cannot take the call; None when they can."""
    if isinstance(call, GroupedWgradCall):
        return "the HIP kernels read both operands along the contraction, which is over the rows of x and y"
    device = call.groups.lens.device if isinstance(call, RowsCall) else call.offs.device
    if (reason := library.why_not(device)) is not None:
        return reason
    if (reason := why_not_groups(call)) is not None:
        return reason
    if isinstance(call, GroupedGemmCall):
        return _why_not_halves(call)
    first, second = (operand.data for operand in _quantised(call))
    names = "ab" if isinstance(call, GroupedGemmFp8Call) else "xy"
    reason = why_not_operands(first, second, call.granularity, call.block_size, device_facts(device).arch, names)
    return reason or _why_not_rows(first.shape[-1] + BLOCK, second.shape[-2])


def why_not_groups(call: Call) -> str | None:
    """Why the kernels cannot walk the call's groups as it asks, whatever the device and the operands."""
    if isinstance(call, RowsCall) and (call.a_idx is not None or call.out_idx is not None):
        return "rows are named by a_idx or out_idx; the HIP kernels take those of a group side by side"
    return None


def _why_not_halves(call: GroupedGemmCall) -> str | None:
    a, b_GNK = call.a, _b_rows(call)
    if a.dtype is not b_GNK.dtype or a.dtype not in _HALVES:
        return f"a is {a.dtype} and b is {b_GNK.dtype}; the HIP kernels take both in bf16, or both in fp16"
    for name, x in (("a", a), ("b", b_GNK)):
        starts = (x.storage_offset(), *(stride_of(x, dim) for dim in range(x.dim() - 1)))
        if x.stride(-1) != 1 or x.shape[-1] % 8 or any(start % 8 for start in starts):
            return f"{name} does not have its contraction last, in rows that begin on and are multiples of 16 bytes"
        if x.shape[-2] > 1 and x.stride(-2) < x.shape[-1]:
            return f"rows of {name} overlap"
    return _why_not_rows(2 * a.shape[-1], b_GNK.shape[-2])


def _why_not_rows(row_bytes: int, n: int) -> str | None:
    longest = max(row_bytes, 4 * n)
    return f"rows of {longest} bytes; at most {MAX_ROW_BYTES} are accepted" if longest > MAX_ROW_BYTES else None


def _quantised(call: QuantisedCall) -> tuple[GroupedOperand, GroupedOperand]:
    """Those whose rows are the rows and the columns of C."""
    return (call.a, call.b) if isinstance(call, GroupedGemmFp8Call) else (call.x, call.y)


def _b_rows(call: GroupedGemmCall) -> torch.Tensor:
    """b as [G,N,K]."""
    return call.b if call.trans_b else call.b.mT


# --- the products -----------------------------------------------------------------------------------------------------


def run(call: Call, *, tile: str = "chosen") -> torch.Tensor:
    """Compute the call.

    tile: what of C a work-group computes, "large" (256x256; BLOCKWISE 256x128), "small" (128x128), or "chosen" by the
    sizes (benchmarks and tests).
    """
    if tile not in TILES:
        raise UnsupportedError(f"tile={tile!r}: accepted are {', '.join(TILES)}")
    if isinstance(call, GroupedGemmCall):
        return _run_halves(call, tile)
    first, second = _quantised(call)
    a, b = payload_of(first.data), payload_of(second.data)
    a_scale, b_scale = (_scale_of(call, x.scale_inv) for x in (first, second))
    tiles = isinstance(call, GroupedGemmFp8Call) and call.granularity is ScalingGranularity.BLOCKWISE
    target, counter = _output(call), _counter(call)
    problem = _problem(call, a, b, target.c, a.shape[-1] * (2 if _is_packed(call) else 1), tile) | {
        "a": native_operand(a, a_scale, call.granularity),
        "b": native_operand(b, b_scale, call.granularity, tiles),
        "c": target.fields(),
        "a_scale_group": _group_stride(a_scale),
        "b_scale_group": _group_stride(b_scale),
        "bias_group": 0 if target.bias is None else stride_of(target.bias, 0),
        "counter": address(counter),
    }
    library.check(_launch(call, problem))
    return target.result()


def _run_halves(call: GroupedGemmCall, tile: str) -> torch.Tensor:
    a, b = call.a.view(torch.uint8), _b_rows(call).view(torch.uint8)
    target, counter = _output(call), _counter(call)
    problem = _problem(call, a, b, target.c, call.a.shape[1], tile) | {
        "a": native_operand(a),
        "b": native_operand(b),
        "c": target.fields(),
        "a_scale_group": 0,
        "b_scale_group": 0,
        "bias_group": 0 if target.bias is None else stride_of(target.bias, 0),
        "counter": address(counter),
    }
    index, stream = library.where(a)
    dtype = float_code("a.dtype", call.a.dtype)
    library.check(library.extension.grouped_gemm_half(index, stream, problem=problem, dtype=dtype))
    return target.result()


def _launch(call: QuantisedCall, problem: dict[str, Any]) -> int:
    extension = library.extension
    first, second = _quantised(call)
    index, stream = library.where(first.data)
    if call.is_mx():
        formats = extension.MX_FORMATS
        format_a, format_b = formats[mx_format(first.data)], formats[mx_format(second.data)]
        status: int = extension.grouped_gemm_mx(index, stream, problem=problem, format_a=format_a, format_b=format_b)
        return status
    status = extension.grouped_gemm_fp8(
        index,
        stream,
        problem=problem,
        dtype_a=fp8_code("dtype of the first operand", first.data.dtype),
        dtype_b=fp8_code("dtype of the second operand", second.data.dtype),
        block=BLOCK if call.granularity is ScalingGranularity.BLOCKWISE else 0,
    )
    return status


# --- fields of turbo_grouped_gemm_problem ---------------------------------------------------------------------------


def _problem(call: Call, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, k: int, tile: str) -> dict[str, Any]:
    """Those of all kinds, with k elements; a and b are bytes."""
    lens, offs = _groups(call)
    return {
        "m": a.shape[-2],
        "n": b.shape[-2],
        "k": k,
        "groups": {
            "count": call.sizes()[0],
            "lens": address(lens),
            "offs": address(offs),
            "lens_bits": _bits(lens),
            "offs_bits": _bits(offs),
        },
        "b_group": _group_stride(b),
        "c_group": _group_stride(c),
        "tile": TILES[tile],
        "compute_units": device_facts(a.device).compute_units,
        "most_units": call.num_cu or 0,
    }


def _groups(call: Call) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """lens and offs, each adjacent; without lens the groups are columns."""
    if isinstance(call, GroupedWgradFp8Call):
        return None, call.offs.contiguous()
    lens, offs = call.groups
    return lens.contiguous(), None if offs is None else offs.contiguous()


def _bits(values: torch.Tensor | None) -> int:
    return 0 if values is None else 8 * values.element_size()


def _is_packed(call: QuantisedCall) -> bool:
    return call.is_mx() and mx_format(_quantised(call)[0].data) == "e2m1"


def _scale_of(call: QuantisedCall, scale: torch.Tensor) -> torch.Tensor:
    """Scales with rows second to last and groups, where they have scales of their own, before them."""
    if isinstance(call, GroupedWgradFp8Call) and call.granularity is ScalingGranularity.ROWWISE:
        scale = scale[..., None]
    return scale_of(scale, call.granularity)


def _group_stride(tensor: torch.Tensor) -> int:
    """Elements from group to group; 0 where all share."""
    return stride_of(tensor, 0) if tensor.dim() == 3 else 0


def _counter(call: Call) -> torch.Tensor | None:
    """What work-groups take their next tiles from, 0; None where each has its own."""
    if call.schedule == "static":
        return None
    device = call.offs.device if isinstance(call, GroupedWgradFp8Call) else call.groups.lens.device
    return torch.zeros(1, dtype=torch.int32, device=device)


def _output(call: Call) -> NativeOutput:
    if isinstance(call, GroupedWgradFp8Call):
        return NativeOutput(call.out, None, lambda: empty(wgrad_specs(call), call.offs.device))
    return NativeOutput(None, call.bias, lambda: empty(gemm_specs(call), call.groups.lens.device))
