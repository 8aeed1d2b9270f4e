# SPDX-License-Identifier: MIT
"""What `turbo_core.explain` and the doctor need of each function: its arguments turned into calls, and an example."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import OpInfo
from turbo_core.low_precision import MX_BLOCK_SIZE, Format, fp8_dtype
from turbo_quant.formats import fp4_dtype, scale_dtype
from turbo_quant.pytorch.kernels.quantize_impl import DequantizeDispatcher, QuantizeDispatcher
from turbo_quant.pytorch.ops.dequantize import plan_dequantize
from turbo_quant.pytorch.ops.grouped import options_of_groups
from turbo_quant.pytorch.ops.plan import BLOCKWISE, MX_BLOCKWISE, ROWWISE, Options, plan_float, plan_mx
from turbo_quant.pytorch.ops.quantize import is_mixed, options_of_one, options_of_two

__all__ = ["INFOS"]

_SIZE = 8192


def _planned(op: str, options: Options) -> dict[str, Any]:
    def plan(options: Options) -> Any:
        return plan_mx(op, options) if options.granularity is MX_BLOCKWISE else plan_float(options)

    if is_mixed(options):
        return {"row": plan(options._replace(column=None)), "column": plan(options._replace(row=None))}
    return {"forward": plan(options)}


def _expanded(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor of that shape which takes the memory of one element; only its metadata are read."""
    return torch.empty((1,) * len(shape), dtype=dtype, device=device).expand(shape)


def _quantise(op: str, bits: int, two: bool, grouped: bool) -> OpInfo:
    def calls(x: Any, out_dtype: Any, granularity: Any, *groups: Any, **keywords: Any) -> dict[str, Any]:
        if grouped:
            lens, offs = (*groups, *(keywords.pop(name) for name in ("group_lens", "group_offs")[len(groups) :]))
            return _planned(op, options_of_groups(op, bits, two, x, out_dtype, granularity, lens, offs, **keywords))
        options = options_of_two if two else options_of_one
        return _planned(op, options(op, bits, x, out_dtype, granularity, *groups, **keywords))

    def example(device: torch.device) -> dict[str, Any]:
        x = _expanded(device, torch.bfloat16, _SIZE, _SIZE)
        keywords: dict[str, Any] = {} if two else {"axis": -1}
        groups = (torch.empty(8, dtype=torch.int64, device=device), torch.empty(9, dtype=torch.int64, device=device))
        if bits == 4:
            return calls(x, fp4_dtype(), MX_BLOCKWISE, *groups * grouped, **keywords)
        if two or grouped:
            return calls(x, fp8_dtype(Format.E4M3, device), BLOCKWISE, *groups * grouped, block_size=128, **keywords)
        return calls(x, fp8_dtype(Format.E4M3, device), ROWWISE, **keywords)

    return OpInfo(op, QuantizeDispatcher, calls, example)


def _dequantise(op: str, bits: int, grouped: bool) -> OpInfo:
    def calls(x: Any, out_dtype: Any, granularity: Any, *groups: Any, **keywords: Any) -> dict[str, Any]:
        for name in ("group_offs", "group_offs_padded", "total_M"):
            keywords.pop(name, None)
        return {"forward": plan_dequantize(op, bits, x, out_dtype, granularity, **keywords)}

    def example(device: torch.device) -> dict[str, Any]:
        if bits == 4:
            scale = _expanded(device, scale_dtype(), _SIZE, _SIZE // MX_BLOCK_SIZE)
            q = _expanded(device, fp4_dtype(), _SIZE, _SIZE // 2)
            return calls(q, torch.bfloat16, MX_BLOCKWISE, axis=-1, scale_inv=scale)
        q = _expanded(device, fp8_dtype(Format.E4M3, device), _SIZE, _SIZE)
        scale = _expanded(device, torch.float32, _SIZE, _SIZE // 128)
        return calls(q, torch.bfloat16, BLOCKWISE, axis=-1, block_size=128, scale_inv=scale)

    return OpInfo(op, DequantizeDispatcher, calls, example)


def _all() -> dict[str, OpInfo]:
    infos = []
    for bits in (8, 4):
        for grouped, prefix in ((False, ""), (True, "grouped_")):
            infos.append(_quantise(f"{prefix}quantize_fp{bits}", bits, False, grouped))
            infos.append(_quantise(f"{prefix}quantize_fp{bits}_with_trans", bits, True, grouped))
            infos.append(_dequantise(f"{prefix}dequantize_fp{bits}", bits, grouped))
    return {info.name: info for info in infos}


INFOS = _all()


def __getattr__(name: str) -> OpInfo:  # an entry point names one attribute
    if name in INFOS:
        return INFOS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
