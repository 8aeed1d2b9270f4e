# SPDX-License-Identifier: MIT
"""The backends of gemm and the choice among them."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import AutoKernelDispatcher, BackendType, PrecisionType, why_no_triton
from turbo_core.calls import device_of, empty
from turbo_core.device import simulated_arch_name
from turbo_core.module_backend import ModuleBackend
from turbo_gemm.calls import GemmCall, GemmFp8Call, specs

__all__ = ["GemmDispatcher", "GemmsDispatcher"]


class GemmsDispatcher(AutoKernelDispatcher):
    """What the dispatchers of all GEMMs share."""

    op = "gemms"
    family = "gemm"
    backends = {BackendType.TORCH: ModuleBackend("turbo_gemm.pytorch.kernels.gemm_reference")}

    @classmethod
    def scratch(cls, call: Any) -> Any:
        return call if call.out is None else call._replace(out=torch.zeros_like(call.out))

    @classmethod
    def describe(cls, call: GemmCall | GemmFp8Call) -> str:
        return call.describe()

    @classmethod
    def role(cls, call: GemmCall | GemmFp8Call) -> str:
        return call.role

    @classmethod
    def run(cls, call: GemmCall | GemmFp8Call) -> torch.Tensor:
        """Compute ``call`` on the backend chosen for it; without work to do (a zero size) no backend is asked."""
        m, n, k = call.sizes()
        if m and n and k:
            result: torch.Tensor = cls.dispatch(call)
            return result
        if call.out is not None:
            return call.out
        device: Any = device_of(call)
        zeros = empty(specs(call), device).zero_()
        return zeros if call.bias is None else zeros.add_(call.bias)


class GemmDispatcher(GemmsDispatcher):
    """Chooses the backend of one GEMM, forward or gradient."""

    op = "gemm"
    backends = {
        BackendType.HIPBLASLT: ModuleBackend("turbo_gemm.pytorch.kernels.gemm_blas"),
        BackendType.TRITON: ModuleBackend("turbo_gemm.triton.gemm", why_no_triton),
        BackendType.TORCH: ModuleBackend("turbo_gemm.pytorch.kernels.gemm_reference"),
    }

    @classmethod
    def precision(cls, call: GemmCall) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def default_backend(cls, call: GemmCall) -> BackendType:
        """The vendor's BLAS on a GPU (and where a GPU is simulated), plain torch on a CPU."""
        plain_cpu = call.a.device.type == "cpu" and simulated_arch_name() is None
        return BackendType.TORCH if plain_cpu else BackendType.HIPBLASLT
