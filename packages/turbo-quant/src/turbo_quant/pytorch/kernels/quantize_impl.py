# SPDX-License-Identifier: MIT
"""The backends of quantisation and dequantisation and the choice among them."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import AutoKernelDispatcher, BackendType, PrecisionType, why_no_triton
from turbo_core.calls import Spec, empty
from turbo_core.low_precision import ScalingGranularity, fp8_amax_floor, fp8_max
from turbo_core.module_backend import ModuleBackend
from turbo_quant.calls import (
    DequantizeFloatCall,
    DequantizeMxCall,
    FloatOutputs,
    MxOutputs,
    QuantizeFloatCall,
    QuantizeMxCall,
    specs,
)
from turbo_quant.pytorch.kernels import reference

__all__ = ["DequantizeDispatcher", "QuantizeDispatcher", "dequantize", "quantize_float", "quantize_mx"]

Call = QuantizeFloatCall | QuantizeMxCall | DequantizeFloatCall | DequantizeMxCall


class QuantizeDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one quantisation."""

    op = "quantize"
    family = "quant"
    backends = {
        BackendType.TURBO: ModuleBackend("turbo_quant.pytorch.kernels.native"),
        BackendType.TRITON: ModuleBackend("turbo_quant.triton.quantize", why_no_triton),
        BackendType.TORCH: ModuleBackend("turbo_quant.pytorch.kernels.reference"),
    }
    defaults = {
        "gfx942": BackendType.TURBO,
        "gfx950": BackendType.TURBO,
        "amd": BackendType.TRITON,
        "nvidia": BackendType.TRITON,
        "cpu": BackendType.TORCH,
    }

    @classmethod
    def precision(cls, call: Call) -> PrecisionType:
        mx = isinstance(call, (QuantizeMxCall, DequantizeMxCall))
        return PrecisionType.FP4 if mx and call.format == "e2m1" else PrecisionType.FP8

    @classmethod
    def default_backend(cls, call: Call) -> BackendType:
        default = super().default_backend(call)
        if isinstance(call, QuantizeFloatCall):
            only_triton = call.amax is not None or call.k_major
        else:
            only_triton = isinstance(call, QuantizeMxCall) and (call.group_lens is not None or call.row_idx is not None)
        return BackendType.TRITON if default is BackendType.TURBO and only_triton else default

    @classmethod
    def describe(cls, call: Call) -> str:
        data = call[0]
        if isinstance(call, (QuantizeMxCall, DequantizeMxCall)):
            what = f"MX {call.format}"
        else:
            dtype = call.out_dtype if isinstance(call, QuantizeFloatCall) else call.q.dtype
            what = f"{call.granularity.name} {str(dtype).removeprefix('torch.')}"
        if isinstance(call, (QuantizeFloatCall, QuantizeMxCall)):
            what += f", {' and '.join(name for name in ('row', 'column') if getattr(call, name))}"
            what += "" if call.group_offs is None else f", {call.group_offs.shape[0] - 1} groups"
        dtype = str(data.dtype).removeprefix("torch.")
        return f"{cls.op} {what}, {list(data.shape)} {dtype}, {data.device}"


class DequantizeDispatcher(QuantizeDispatcher):
    """Chooses the backend of one dequantisation."""

    op = "dequantize"


# --- what the registered ops call; nothing to read asks no backend --------------------------------------------------


def _filled(spec: Spec | None, device: torch.device, value: float) -> torch.Tensor | None:
    if spec is None:
        return None
    if spec.dtype.itemsize == 1:
        return torch.zeros(spec.shape, dtype=torch.uint8, device=device).view(spec.dtype)
    return torch.full(spec.shape, value, dtype=spec.dtype, device=device)


def quantize_float(call: QuantizeFloatCall) -> FloatOutputs:
    """Compute ``call`` on the backend chosen for it; of an empty x the scales are those of zeros."""
    if call.x.numel():
        result: FloatOutputs = QuantizeDispatcher.dispatch(call)
        return result
    if call.amax is not None:
        return reference.quantize_float(call)
    blockwise = call.granularity is ScalingGranularity.BLOCKWISE
    zero = 0.0 if blockwise else fp8_amax_floor(call.out_dtype) / fp8_max(call.out_dtype)
    return FloatOutputs(*(_filled(spec, call.x.device, zero) for spec in specs(call)))  # type: ignore[arg-type]


def quantize_mx(call: QuantizeMxCall) -> MxOutputs:
    """Likewise."""
    if call.x.numel():
        result: MxOutputs = QuantizeDispatcher.dispatch(call)
        return result
    return MxOutputs(*(_filled(spec, call.x.device, 0.0) for spec in specs(call)))  # type: ignore[arg-type]


def dequantize(call: DequantizeFloatCall | DequantizeMxCall) -> torch.Tensor:
    """Likewise."""
    if call.q.numel() and (isinstance(call, DequantizeFloatCall) or call.size):
        result: torch.Tensor = DequantizeDispatcher.dispatch(call)
        return result
    spec: Any = specs(call)
    return empty(spec, call.q.device)
