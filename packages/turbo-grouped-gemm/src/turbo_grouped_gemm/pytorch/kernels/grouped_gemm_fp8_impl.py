# SPDX-License-Identifier: MIT
"""The backends of grouped_gemm_fp8 and grouped_gemm_fp4 and the choice among them."""

from __future__ import annotations

import torch

from turbo_core import BackendType, PrecisionType, device_facts, why_no_triton
from turbo_core.calls import device_of
from turbo_core.low_precision import ScalingGranularity
from turbo_core.module_backend import ModuleBackend
from turbo_gemm.developer import mx_format
from turbo_grouped_gemm.calls import GroupedGemmFp8Call, GroupedOperand, GroupedWgradFp8Call
from turbo_grouped_gemm.pytorch.kernels import grouped_native
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_impl import GroupedProductsDispatcher

__all__ = ["GroupedGemmFp4Dispatcher", "GroupedGemmFp8Dispatcher"]

Call = GroupedGemmFp8Call | GroupedWgradFp8Call

_SCALED_MM = ModuleBackend("turbo_grouped_gemm.pytorch.kernels.grouped_scaled_mm")
_TORCH = ModuleBackend("turbo_grouped_gemm.pytorch.kernels.grouped_gemm_fp8_reference")
_TURBO = ModuleBackend("turbo_grouped_gemm.pytorch.kernels.grouped_native")
_TRITON = ModuleBackend("turbo_grouped_gemm.pytorch.kernels.grouped_triton", why_no_triton)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _types(call: Call, first: GroupedOperand, second: GroupedOperand) -> str:
    names = (mx_format(x.data) if call.is_mx() else _name(x.data.dtype) for x in (first, second))
    return f"{' x '.join(names)} -> {_name(call.out_dtype)}"


class GroupedGemmFp8Dispatcher(GroupedProductsDispatcher):
    """Chooses the backend of a grouped product of FP8 operands, forward or gradient."""

    op = "grouped_gemm_fp8"
    backends = {
        BackendType.TRITON: _TRITON,
        BackendType.TURBO: _TURBO,
        BackendType.HIPBLASLT: _SCALED_MM,
        BackendType.TORCH: _TORCH,
    }

    @classmethod
    def default_backend(cls, call: Call) -> BackendType:
        """Triton's kernels, and on gfx950 the HIP ones where they are far ahead in the simulator's cost model.

        In its cycles, of 2 groups of 512 rows, N = 512, K = 1024, MXFP8 and MXFP4 take 0.84 and 0.68 of TRITON's, their
        wgrad 0.75 and 0.79, BLOCKWISE forward and dgrad 0.68. Elsewhere the two are within a tenth, or TRITON is ahead.
        Not timed.
        """
        chosen = super().default_backend(call)
        rows = isinstance(call, GroupedGemmFp8Call)
        ahead = call.is_mx() or (rows and call.granularity is ScalingGranularity.BLOCKWISE)
        if not ahead or chosen is not BackendType.TRITON or device_facts(device_of(call)).arch != "gfx950":
            return chosen
        return BackendType.TURBO if grouped_native.why_not_groups(call) is None else chosen

    @classmethod
    def precision(cls, call: Call) -> PrecisionType:
        return PrecisionType.FP8

    @classmethod
    def describe(cls, call: Call) -> str:
        groups, rows, n, k = call.sizes()
        first = call.a if isinstance(call, GroupedGemmFp8Call) else call.x
        packed = 2 if call.is_mx() and mx_format(first.data) == "e2m1" else 1
        scales = call.granularity.name
        if call.granularity is ScalingGranularity.BLOCKWISE:
            scales += f" {call.block_size}"
        if isinstance(call, GroupedGemmFp8Call):
            what, second = f"G={groups} rows={rows} N={n} K={k * packed}", call.b
            extras = ", bias" if call.bias is not None else ""
            extras += ", by indices" if call.a_idx is not None or call.out_idx is not None else ""
        else:
            what, second = f"G={groups} padded rows={rows * packed} X={n} Y={k}", call.y
            extras = ", accumulated" if call.out is not None else ""
        extras += "" if call.num_cu is None else f", num_cu={call.num_cu}"
        extras += "" if call.schedule == "static" else f", {call.schedule}"
        return f"{what}, {scales}, {_types(call, first, second)}{extras}, {first.data.device}"


class GroupedGemmFp4Dispatcher(GroupedGemmFp8Dispatcher):
    """Chooses the backend of a grouped product of MXFP4 operands, forward or gradient."""

    op = "grouped_gemm_fp4"
    backends = {BackendType.TRITON: _TRITON, BackendType.TURBO: _TURBO, BackendType.TORCH: _TORCH}

    @classmethod
    def precision(cls, call: Call) -> PrecisionType:
        return PrecisionType.FP4
