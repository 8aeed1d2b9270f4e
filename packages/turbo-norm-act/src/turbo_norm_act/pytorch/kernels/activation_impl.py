# SPDX-License-Identifier: MIT
"""The backends of the gated activations and the choice among them."""

from __future__ import annotations

from typing import TypeVar

import torch

from turbo_core import AutoKernelDispatcher, BackendType, PrecisionType, why_no_triton
from turbo_core.calls import empty, unit_strides
from turbo_core.module_backend import ModuleBackend
from turbo_norm_act.calls import (
    GluBackward,
    GluCall,
    GluForward,
    GluGradients,
    glu_gradient_specs,
    glu_specs,
    zeros,
)

__all__ = ["GluDispatcher", "run_backward", "run_forward"]

_Call = TypeVar("_Call", GluForward, GluBackward)


class GluDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one gated activation, forward or backward.

    There is no HIP kernel: one pass that reads and writes each element once is bound by memory, and Triton's is.
    """

    op = "glu"
    family = "norm_act"
    backends = {
        BackendType.TRITON: ModuleBackend("turbo_norm_act.triton.activation", requires=why_no_triton),
        BackendType.TORCH: ModuleBackend("turbo_norm_act.pytorch.kernels.activation_reference"),
    }
    defaults = {"amd": BackendType.TRITON, "nvidia": BackendType.TRITON, "cpu": BackendType.TORCH}

    @classmethod
    def precision(cls, call: GluCall) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def describe(cls, call: GluCall) -> str:
        T, H = call.x.shape[0], call.width
        extras = (", probs" if call.probs is not None else "") + (", row_mask" if call.row_mask is not None else "")
        dtype = str(call.x.dtype).removeprefix("torch.")
        return f"{call.activation} {cls.role(call)}, T={T} H={H}, {dtype}{extras}, {call.x.device}"

    @classmethod
    def role(cls, call: GluCall) -> str:
        return "forward" if isinstance(call, GluForward) else "backward"


def _with_bytes(call: _Call) -> _Call:
    """A mask of bools as bytes, which kernels can read."""
    mask = call.row_mask
    return call if mask is None or mask.dtype is not torch.bool else call._replace(row_mask=mask.view(torch.uint8))


def run_forward(call: GluForward) -> torch.Tensor:
    """Compute ``call`` on the backend chosen for it; without elements no backend is asked."""
    if not call.x.numel():
        return empty(glu_specs(call), call.x.device)
    out: torch.Tensor = GluDispatcher.dispatch(unit_strides(_with_bytes(call), "x", "up", "probs", "row_mask"))
    return out


def run_backward(call: GluBackward) -> GluGradients:
    """Likewise."""
    if not call.x.numel():
        gradients: GluGradients = zeros(glu_gradient_specs(call), call.x.device)
        return gradients
    gradients = GluDispatcher.dispatch(unit_strides(_with_bytes(call), "x", "up", "probs", "row_mask", "dout"))
    return gradients
