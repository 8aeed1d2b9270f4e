# SPDX-License-Identifier: MIT
"""The backends of RMSNorm and LayerNorm and the choice among them."""

from __future__ import annotations

from turbo_core import AutoKernelDispatcher, BackendType, PrecisionType, why_no_triton
from turbo_core.calls import unit_strides
from turbo_core.module_backend import ModuleBackend
from turbo_norm_act.calls import (
    NormBackward,
    NormCall,
    NormForward,
    NormGradients,
    NormResult,
    norm_gradient_specs,
    norm_specs,
    zeros,
)

__all__ = ["NormDispatcher", "run_backward", "run_forward"]


class NormDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one norm, forward or backward: HIP on the Instinct GPUs, Triton on others."""

    op = "norm"
    family = "norm_act"
    backends = {
        BackendType.TURBO: ModuleBackend("turbo_norm_act.pytorch.kernels.native"),
        BackendType.TRITON: ModuleBackend("turbo_norm_act.triton.norm", requires=why_no_triton),
        BackendType.TORCH: ModuleBackend("turbo_norm_act.pytorch.kernels.norm_reference"),
    }
    defaults = {
        "gfx942": BackendType.TURBO,
        "gfx950": BackendType.TURBO,
        "amd": BackendType.TRITON,
        "nvidia": BackendType.TRITON,
        "cpu": BackendType.TORCH,
    }

    @classmethod
    def precision(cls, call: NormCall) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def describe(cls, call: NormCall) -> str:
        rows, D = call.data.shape
        name = "layernorm" if call.center else "rmsnorm"
        dtype = str(call.data.dtype).removeprefix("torch.")
        gamma = "no gamma" if call.gamma is None else f"gamma {str(call.gamma.dtype).removeprefix('torch.')}"
        return f"{name} {cls.role(call)}, rows={rows} D={D}, {dtype}, {gamma}, {call.data.device}"

    @classmethod
    def role(cls, call: NormCall) -> str:
        return "forward" if isinstance(call, NormForward) else "backward"


def run_forward(call: NormForward) -> NormResult:
    """Compute ``call`` on the backend chosen for it; without elements no backend is asked."""
    if not call.x.numel():
        result: NormResult = zeros(norm_specs(call), call.x.device)
        return result
    result = NormDispatcher.dispatch(unit_strides(call, "x", "residual", "gamma", "beta"))
    return result


def run_backward(call: NormBackward) -> NormGradients:
    """Likewise."""
    if not call.s.numel():
        result: NormGradients = zeros(norm_gradient_specs(call), call.s.device)
        return result
    result = NormDispatcher.dispatch(unit_strides(call, "s", "dy", "ds", "gamma"))
    return result
