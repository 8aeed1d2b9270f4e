# SPDX-License-Identifier: MIT
"""The backends of `scale_rows` and the choice among them."""

from __future__ import annotations

import torch

from turbo_core import AutoKernelDispatcher, BackendType, PrecisionType, why_no_triton
from turbo_core.calls import empty, outputs, unit_strides
from turbo_core.module_backend import ModuleBackend
from turbo_template.calls import (
    ScaleRows,
    ScaleRowsBackward,
    ScaleRowsCall,
    ScaleRowsGradients,
    backward_specs,
    forward_specs,
)

__all__ = ["ScaleRowsDispatcher", "run_backward", "run_forward"]


class ScaleRowsDispatcher(AutoKernelDispatcher):
    """Chooses the backend of a call, forward or backward."""

    op = "scale_rows"
    family = "norm_act"
    backends = {
        BackendType.TURBO: ModuleBackend("turbo_template.pytorch.kernels.scale_rows_native"),  # native only
        BackendType.TRITON: ModuleBackend("turbo_template.triton.scale_rows", requires=why_no_triton),
        BackendType.TORCH: ModuleBackend("turbo_template.pytorch.kernels.scale_rows_reference"),
    }
    defaults = {
        "gfx942": BackendType.TURBO,  # native only
        "gfx950": BackendType.TURBO,  # native only
        "amd": BackendType.TRITON,
        "nvidia": BackendType.TRITON,
        "cpu": BackendType.TORCH,
    }

    @classmethod
    def precision(cls, call: ScaleRowsCall) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def role(cls, call: ScaleRowsCall) -> str:
        return "forward" if isinstance(call, ScaleRows) else "backward"

    @classmethod
    def describe(cls, call: ScaleRowsCall) -> str:
        rows, D = call.data.shape
        dtypes = ", ".join(str(tensor.dtype).removeprefix("torch.") for tensor in (call.data, call.scale))
        return f"{cls.role(call)}, rows={rows} D={D}, {dtypes}, {call.data.device}"


def run_forward(call: ScaleRows) -> torch.Tensor:
    """y, on the backend chosen for the call; without elements no backend is asked."""
    if not call.x.numel():
        return empty(forward_specs(call), call.x.device)
    y: torch.Tensor = ScaleRowsDispatcher.dispatch(unit_strides(call, "x", "scale", "residual"))
    return y


def run_backward(call: ScaleRowsBackward) -> ScaleRowsGradients:
    """Likewise; sums over no elements are zeros."""
    if not call.dy.numel():
        zeros = outputs(backward_specs(call), call.dy.device)
        return ScaleRowsGradients._make(None if part is None else part.zero_() for part in zeros)
    gradients: ScaleRowsGradients = ScaleRowsDispatcher.dispatch(unit_strides(call, "dy", "x", "scale"))
    return gradients
