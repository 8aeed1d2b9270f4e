# SPDX-License-Identifier: MIT
"""The backends of quantisation and dequantisation and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import torch

from turbo_core import AutoKernelDispatcher, BackendType, KernelBackend, PrecisionType, device_facts, why_no_triton
from turbo_core.low_precision import ScalingGranularity, fp8_amax_floor, fp8_max
from turbo_core.tuning import call_key
from turbo_quant.calls import (
    DequantizeFloatCall,
    DequantizeMxCall,
    FloatOutputs,
    MxOutputs,
    QuantizeFloatCall,
    QuantizeMxCall,
)
from turbo_quant.pytorch.kernels import reference
from turbo_quant.shapes import Spec, float_specs, mx_specs

__all__ = ["DequantizeDispatcher", "QuantizeDispatcher", "dequantize", "quantize_float", "quantize_mx"]

HIP_ARCHS = ("gfx942", "gfx950")

Call = QuantizeFloatCall | QuantizeMxCall | DequantizeFloatCall | DequantizeMxCall


def _execute(module: Any, call: Call) -> Any:
    """The function of a backend's module that answers ``call``."""
    if isinstance(call, QuantizeFloatCall):
        return module.quantize_float(call)
    if isinstance(call, QuantizeMxCall):
        return module.quantize_mx(call)
    if isinstance(call, DequantizeFloatCall):
        return module.dequantize_float(call)
    return module.dequantize_mx(call)


def _data(call: Call) -> torch.Tensor:
    return call.x if isinstance(call, (QuantizeFloatCall, QuantizeMxCall)) else call.q


def _payload_dtype(call: Call) -> torch.dtype | None:
    """The FP8 type of a call with float scales; MX payloads are OCP everywhere."""
    if isinstance(call, QuantizeFloatCall):
        return call.out_dtype
    return call.q.dtype if isinstance(call, DequantizeFloatCall) else None


class TurboBackend(KernelBackend):
    """HIP kernels of the native library."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        from turbo_quant.pytorch.kernels import native

        return native.why_not(call)

    @classmethod
    def execute(cls, call: Call) -> Any:
        from turbo_quant.pytorch.kernels import native

        return _execute(native, call)


class TritonBackend(KernelBackend):
    """Our Triton kernels."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        device = _data(call).device
        dtype = _payload_dtype(call)
        if "fnuz" in str(dtype) and device_facts(device).vendor == "nvidia":
            return f"{dtype} is not a type of Triton for NVIDIA GPUs"
        reason = why_no_triton(device)
        if reason is not None:
            return reason
        from turbo_quant.triton import quantize

        return quantize.why_not(call)

    @classmethod
    def execute(cls, call: Call) -> Any:
        from turbo_quant.triton import quantize

        return _execute(quantize, call)


class TorchBackend(KernelBackend):
    """The reference, on any device."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        return None

    @classmethod
    def execute(cls, call: Call) -> Any:
        return _execute(reference, call)


class QuantizeDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one quantisation."""

    op = "quantize"
    family = "quant"
    backends = {
        BackendType.TURBO: TurboBackend,
        BackendType.TRITON: TritonBackend,
        BackendType.TORCH: TorchBackend,
    }

    @classmethod
    def precision(cls, call: Call) -> PrecisionType:
        mx = isinstance(call, (QuantizeMxCall, DequantizeMxCall))
        return PrecisionType.FP4 if mx and call.format == "e2m1" else PrecisionType.FP8

    @classmethod
    def default_backend(cls, call: Call) -> BackendType:
        """HIP on the Instinct GPUs, Triton on other GPUs, for a given amax and K-major, plain torch on a CPU."""
        facts = device_facts(_data(call).device)
        if facts.vendor == "cpu":
            return BackendType.TORCH
        if isinstance(call, QuantizeFloatCall) and (call.amax is not None or call.k_major):
            return BackendType.TRITON
        return BackendType.TURBO if facts.arch in HIP_ARCHS else BackendType.TRITON

    @classmethod
    def make_key(cls, call: Call) -> Hashable:
        return call_key(_data(call).device, type(call).__name__, call)

    @classmethod
    def describe(cls, call: Call) -> str:
        data = _data(call)
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


def _fill(spec: Spec | None, device: torch.device, value: float) -> torch.Tensor | None:
    if spec is None:
        return None
    if not spec.dtype.is_floating_point or spec.dtype.itemsize == 1:
        return torch.zeros(spec.shape, dtype=torch.uint8, device=device).view(spec.dtype)
    return torch.full(spec.shape, value, dtype=spec.dtype, device=device)  # strides of what is empty mean nothing


def quantize_float(call: QuantizeFloatCall) -> FloatOutputs:
    """Compute ``call`` on the backend chosen for it; of an empty x the scales are those of zeros."""
    if call.x.numel():
        result: FloatOutputs = QuantizeDispatcher.dispatch(call)
        return result
    if call.amax is not None:
        return reference.quantize_float(call)
    blockwise = call.granularity is ScalingGranularity.BLOCKWISE
    zero = 0.0 if blockwise else fp8_amax_floor(call.out_dtype) / fp8_max(call.out_dtype)
    return FloatOutputs(*(_fill(spec, call.x.device, zero) for spec in float_specs(call)))


def quantize_mx(call: QuantizeMxCall) -> MxOutputs:
    """Likewise."""
    if call.x.numel():
        result: MxOutputs = QuantizeDispatcher.dispatch(call)
        return result
    return MxOutputs(*(_fill(spec, call.x.device, 0.0) for spec in mx_specs(call)))


def dequantize(call: DequantizeFloatCall | DequantizeMxCall) -> torch.Tensor:
    """Likewise."""
    shape: tuple[int, ...] = tuple(call.q.shape)
    if isinstance(call, DequantizeMxCall):
        B, L, _ = shape
        shape = (B, call.size, L) if call.transpose else (B, L, call.size)
    if math.prod(shape):
        result: torch.Tensor = DequantizeDispatcher.dispatch(call)
        return result
    return torch.empty(shape, dtype=call.out_dtype, device=call.q.device)
