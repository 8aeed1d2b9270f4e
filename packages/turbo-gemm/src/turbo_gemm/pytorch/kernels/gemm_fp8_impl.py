# SPDX-License-Identifier: MIT
"""The backends of gemm_fp8 and gemm_fp4 and the choice among them."""

from __future__ import annotations

from turbo_core import BackendType, PrecisionType, device_facts, why_no_triton
from turbo_core.device import simulated_arch_name
from turbo_core.low_precision import ScalingGranularity
from turbo_core.module_backend import ModuleBackend
from turbo_gemm.calls import GemmFp8Call
from turbo_gemm.pytorch.kernels.gemm_impl import GemmsDispatcher

__all__ = ["GemmFp4Dispatcher", "GemmFp8Dispatcher"]

_AITER = ModuleBackend("turbo_gemm.pytorch.kernels.aiter_gemm")
_CK = ModuleBackend("turbo_gemm.pytorch.kernels.native_ck")
_SCALED_MM = ModuleBackend("turbo_gemm.pytorch.kernels.scaled_mm")
_TORCH = ModuleBackend("turbo_gemm.pytorch.kernels.gemm_fp8_reference")
_TRITON = ModuleBackend("turbo_gemm.triton.gemm_fp8", why_no_triton)
_TURBO = ModuleBackend("turbo_gemm.pytorch.kernels.native")


class GemmFp8Dispatcher(GemmsDispatcher):
    """Chooses the backend of one FP8 GEMM, forward or gradient."""

    op = "gemm_fp8"
    backends = {
        BackendType.HIPBLASLT: _SCALED_MM,
        BackendType.TURBO: _TURBO,
        BackendType.TRITON: _TRITON,
        BackendType.CK: _CK,
        BackendType.TORCH: _TORCH,
    }

    @classmethod
    def precision(cls, call: GemmFp8Call) -> PrecisionType:
        return PrecisionType.FP8

    @classmethod
    def default_backend(cls, call: GemmFp8Call) -> BackendType:
        """The vendor's BLAS for one scale a tensor, our kernels for finer ones, plain torch on a CPU.

        Of finer scales the vendor's BLAS takes those of rows alone, for one dtype of C and one of the second operand.
        """
        if _is_plain_cpu(call):
            return BackendType.TORCH
        if call.granularity is ScalingGranularity.TENSORWISE:
            return BackendType.HIPBLASLT
        if call.is_mx() and device_facts(call.a.data.device).arch == "gfx950":
            return BackendType.TURBO
        return BackendType.TRITON


class GemmFp4Dispatcher(GemmsDispatcher):
    """Chooses the backend of one MXFP4 GEMM, forward or gradient."""

    op = "gemm_fp4"
    backends = {
        BackendType.TURBO: _TURBO,
        BackendType.AITER: _AITER,
        BackendType.HIPBLASLT: _SCALED_MM,
        BackendType.TRITON: _TRITON,
        BackendType.TORCH: _TORCH,
    }

    @classmethod
    def precision(cls, call: GemmFp8Call) -> PrecisionType:
        return PrecisionType.FP4

    @classmethod
    def default_backend(cls, call: GemmFp8Call) -> BackendType:
        """Our kernels, AITER's for preshuffled operands, plain torch on a CPU."""
        if _is_plain_cpu(call):
            return BackendType.TORCH
        if call.preshuffled:
            return BackendType.AITER
        return BackendType.TURBO if device_facts(call.a.data.device).arch == "gfx950" else BackendType.TRITON


def _is_plain_cpu(call: GemmFp8Call) -> bool:
    return call.a.data.device.type == "cpu" and simulated_arch_name() is None
