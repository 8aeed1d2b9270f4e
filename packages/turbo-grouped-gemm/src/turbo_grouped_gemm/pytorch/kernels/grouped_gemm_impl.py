# SPDX-License-Identifier: MIT
"""The backends of grouped products and the choice among them."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import AutoKernelDispatcher, BackendType, PrecisionType, why_no_triton
from turbo_core.calls import device_of, empty
from turbo_core.module_backend import ModuleBackend
from turbo_grouped_gemm.calls import (
    GroupedGemmCall,
    GroupedGemmFp8Call,
    GroupedWgradCall,
    GroupedWgradFp8Call,
    gemm_specs,
    wgrad_specs,
)
from turbo_grouped_gemm.pytorch.kernels import grouped_gemm_reference

__all__ = ["GroupedGemmDispatcher", "GroupedProductsDispatcher"]

Call = GroupedGemmCall | GroupedWgradCall | GroupedGemmFp8Call | GroupedWgradFp8Call


class GroupedProductsDispatcher(AutoKernelDispatcher):
    """What the dispatchers of all grouped products share: one takes both kinds of call."""

    op = "grouped_products"
    family = "grouped_gemm"
    backends = {BackendType.TORCH: ModuleBackend("turbo_grouped_gemm.pytorch.kernels.grouped_gemm_reference")}
    defaults = {"amd": BackendType.TRITON, "nvidia": BackendType.TRITON, "cpu": BackendType.TORCH}

    @classmethod
    def scratch(cls, call: Any) -> Any:
        out = getattr(call, "out", None)
        return call if out is None else call._replace(out=torch.zeros_like(out))

    @classmethod
    def role(cls, call: Call) -> str:
        return call.role if isinstance(call, (GroupedGemmCall, GroupedGemmFp8Call)) else "wgrad"

    @classmethod
    def run(cls, call: Call) -> torch.Tensor:
        """Compute ``call`` on the backend chosen for it; without work to do (a zero size) no backend is asked."""
        if isinstance(call, (GroupedGemmCall, GroupedGemmFp8Call)):
            return cls._run_gemm(call)
        if all(call.sizes()):
            result: torch.Tensor = cls.dispatch(call)
            return result
        return call.out if call.out is not None else _zeros(call, wgrad_specs(call))

    @classmethod
    def _run_gemm(cls, call: GroupedGemmCall | GroupedGemmFp8Call) -> torch.Tensor:
        groups, rows, n, k = call.sizes()
        if groups and rows and n and k and call.out_rows:
            result: torch.Tensor = cls.dispatch(call)
            return result
        c = _zeros(call, gemm_specs(call))
        if call.bias is None or not c.numel():
            return c
        return grouped_gemm_reference.add_bias(c, call.bias, call.groups, rows, call.out_idx)


def _zeros(call: Call, spec: Any) -> torch.Tensor:
    device: Any = device_of(call)
    return empty(spec, device).zero_()


class GroupedGemmDispatcher(GroupedProductsDispatcher):
    """Chooses the backend of a grouped product of 16- or 32-bit operands, forward or gradient."""

    op = "grouped_gemm"
    backends = {
        BackendType.TRITON: ModuleBackend("turbo_grouped_gemm.pytorch.kernels.grouped_triton", why_no_triton),
        BackendType.TURBO: ModuleBackend("turbo_grouped_gemm.pytorch.kernels.grouped_native"),
        BackendType.HIPBLASLT: ModuleBackend("turbo_grouped_gemm.pytorch.kernels.grouped_gemm_blas"),
        BackendType.TORCH: ModuleBackend("turbo_grouped_gemm.pytorch.kernels.grouped_gemm_reference"),
    }

    @classmethod
    def precision(cls, call: GroupedGemmCall | GroupedWgradCall) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def describe(cls, call: GroupedGemmCall | GroupedWgradCall) -> str:
        groups, rows, n, k = call.sizes()
        if isinstance(call, GroupedGemmCall):
            tensors, taken, layout = (call.a, call.b), (call.a_idx, call.out_idx), "NT" if call.trans_b else "NN"
            what = f"G={groups} rows={rows} N={n} K={k} {layout}"
            extras = ", bias" if call.bias is not None else ""
        else:
            tensors, taken = (call.x, call.y), (call.x_idx, call.y_idx)
            what = f"G={groups} rows={rows} X={n} Y={k}"
            extras = ", accumulated" if call.out is not None else ""
        extras += ", by indices" if any(index is not None for index in taken) else ""
        extras += "" if call.num_cu is None else f", num_cu={call.num_cu}"
        extras += "" if call.schedule == "static" else f", {call.schedule}"
        types = " x ".join(str(x.dtype).removeprefix("torch.") for x in tensors)
        return f"{what}, {types} -> {str(call.out_dtype).removeprefix('torch.')}{extras}, {tensors[0].device}"
