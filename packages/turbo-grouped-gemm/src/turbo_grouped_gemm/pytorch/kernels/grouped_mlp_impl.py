# SPDX-License-Identifier: MIT
"""The backends of the fused expert MLP's steps and the choice among them."""

from __future__ import annotations

from typing import Any

from turbo_core import AutoKernelDispatcher, BackendType, PrecisionType, why_no_triton
from turbo_core.calls import device_of, outputs
from turbo_core.dispatch import Decision
from turbo_core.module_backend import ModuleBackend
from turbo_grouped_gemm.calls_mlp import (
    DgateCall,
    GateCall,
    GatedDgradCall,
    GatedGemmCall,
    MlpCall,
    dgate_specs,
    gate_specs,
    gated_dgrad_specs,
    gated_specs,
)

__all__ = ["GateDispatcher", "GroupedMlpDispatcher"]

_TRITON = ModuleBackend("turbo_grouped_gemm.triton.grouped_mlp", why_no_triton)
_TORCH = ModuleBackend("turbo_grouped_gemm.pytorch.kernels.grouped_mlp_reference")
_SPECS: dict[type, Any] = {
    GatedGemmCall: gated_specs,
    GatedDgradCall: gated_dgrad_specs,
    GateCall: gate_specs,
    DgateCall: dgate_specs,
}


def _without_work(call: MlpCall) -> Any:
    """The results where a size is 0: all zeros."""
    specs, device = _SPECS[type(call)](call), device_of(call)
    results = outputs((specs,) if isinstance(call, GateCall) else specs, device)  # type: ignore[arg-type]
    for result in results:
        if result is not None:
            result.zero_()
    return results[0] if isinstance(call, GateCall) else results


class GroupedMlpDispatcher(AutoKernelDispatcher):
    """Chooses the backend of a projection with its gate, of 16- or 32-bit operands, forward or gradient."""

    op = "grouped_mlp"
    family = "grouped_gemm"
    backends = {
        BackendType.TRITON: _TRITON,
        BackendType.HIPBLASLT: ModuleBackend("turbo_grouped_gemm.pytorch.kernels.grouped_mlp_blas"),
        BackendType.TORCH: _TORCH,
    }
    defaults = {"amd": BackendType.TRITON, "nvidia": BackendType.TRITON, "cpu": BackendType.TORCH}

    @classmethod
    def precision(cls, call: MlpCall) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def role(cls, call: MlpCall) -> str:
        return "gated" if isinstance(call, (GatedGemmCall, GateCall)) else "dgated"

    @classmethod
    def run(cls, call: MlpCall) -> Any:
        """Compute ``call`` on the backend chosen for it; without work to do (a zero size) no backend is asked."""
        return cls.dispatch(call) if all(call.sizes()) else _without_work(call)

    @classmethod
    def describe(cls, call: MlpCall) -> str:
        if isinstance(call, (GatedGemmCall, GatedDgradCall)):
            groups, rows, columns, inner = call.sizes()
            sizes = f"G={groups} rows={rows} F={columns} K={inner}"
            first = call.x if isinstance(call, GatedGemmCall) else call.dy
        else:
            groups, rows, columns = call.sizes()
            sizes, first = f"G={groups} rows={rows} F={columns}", call.pre
        dtype = str(first.dtype).removeprefix("torch.")
        extras = ", probs" if call.probs is not None else ""
        return f"{sizes}, {call.gate.activation}{extras}, {dtype}, {first.device}"


class GateDispatcher(GroupedMlpDispatcher):
    """Chooses the backend of a gate by itself, between products of quantised operands.

    A backend that the user named for products, and that has no gate, leaves the gate to the default.
    """

    op = "grouped_gate"
    backends = {BackendType.TRITON: _TRITON, BackendType.TORCH: _TORCH}

    @classmethod
    def _named(cls, backend: BackendType, precision: PrecisionType, call: Any) -> Decision:
        if backend in cls.backends:
            return super()._named(backend, precision, call)
        default = cls.default_backend(call)
        if cls.backends[default].why_not(call) is not None:
            default = BackendType.TORCH
        return Decision(default, cls.backends[default], f"{backend.name} has no gate")
