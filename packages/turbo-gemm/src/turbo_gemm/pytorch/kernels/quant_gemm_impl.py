# SPDX-License-Identifier: MIT
"""The backends of gemm_fp8 and gemm_fp4 and the choice among them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Hashable
from types import ModuleType
from typing import Any

import torch

from turbo_core import (
    AutoKernelDispatcher,
    BackendType,
    KernelBackend,
    PrecisionType,
    device_facts,
    why_no_triton,
)
from turbo_core.device import simulated_arch_name
from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.pytorch.kernels.aiter_gemm import AiterBackend
from turbo_gemm.pytorch.kernels.quant_gemm_call import QuantGemmCall, mx_format
from turbo_gemm.pytorch.kernels.quant_reference import quant_gemm_reference
from turbo_gemm.pytorch.kernels.scaled_mm import ScaledMmBackend

__all__ = ["GemmFp4Dispatcher", "GemmFp8Dispatcher", "QuantGemmCall", "run"]

_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)

# --- backends whose kernels live elsewhere --------------------------------------------------------------------------


def _arguments(call: QuantGemmCall) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """What matmul_fp8, and matmul_mx, of a backend are called with."""
    tensors = (call.a, call.a_scale_inv, call.b, call.b_scale_inv)
    common = {
        "out_dtype": call.out_dtype,
        "bias": call.bias,
        "out": call.out,
        "accumulate": call.out is not None,
    }
    if call.is_mx():
        return tensors, {"format_a": mx_format(call.a), "format_b": mx_format(call.b), **common}
    return tensors, {
        "trans_a": call.trans_a,
        "trans_b": call.trans_b,
        "granularity": call.granularity,
        "block_size": call.block_size,
        "a_tiles": call.a_tiles,
        "b_tiles": call.b_tiles,
        **common,
    }


class TritonBackend(KernelBackend):
    """Our own Triton kernels: float scales in any layout, MX through scaled dot."""

    @classmethod
    def why_not(cls, call: QuantGemmCall) -> str | None:
        reason = why_no_triton(call.a.device)
        if reason is not None:
            return reason
        if call.preshuffled:
            return "scales and payload are preshuffled for AITER; the plain order is needed"
        facts = device_facts(call.a.device)
        if facts.vendor == "nvidia" and (call.a.dtype in _FNUZ or call.b.dtype in _FNUZ):
            return f"a is {call.a.dtype} and b is {call.b.dtype}; Triton compiles FNUZ types for AMD only"
        return None

    @classmethod
    def execute(cls, call: QuantGemmCall) -> torch.Tensor:
        tensors, options = _arguments(call)
        if call.is_mx():
            from turbo_gemm.triton.gemm_mx import matmul_mx

            return matmul_mx(*tensors, **options)
        from turbo_gemm.triton.gemm_fp8 import matmul_fp8

        return matmul_fp8(*tensors, **options)


@functools.cache
def _native() -> ModuleType | None:
    """Our native kernels, None in a build without them."""
    name = "turbo_gemm.pytorch.kernels.native"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


class TurboBackend(KernelBackend):
    """Our own HIP kernels."""

    @classmethod
    def why_not(cls, call: QuantGemmCall) -> str | None:
        native = _native()
        if native is None:
            return "this build of turbo-gemm has no native kernels"
        reason: str | None = native.why_not(call)
        return reason

    @classmethod
    def execute(cls, call: QuantGemmCall) -> torch.Tensor:
        tensors, options = _arguments(call)
        native: Any = _native()
        result: torch.Tensor = (native.matmul_mx if call.is_mx() else native.matmul_fp8)(*tensors, **options)
        return result


class CkBackend(KernelBackend):
    """Instances of composable kernel, where the wheel was built with TURBO_BUILD_CK=1."""

    @classmethod
    def why_not(cls, call: QuantGemmCall) -> str | None:
        answer = getattr(_native(), "why_not_ck", None)
        if answer is None:
            return "this build of turbo-gemm has no composable kernels (they are built with TURBO_BUILD_CK=1)"
        reason: str | None = answer(call)
        return reason

    @classmethod
    def execute(cls, call: QuantGemmCall) -> torch.Tensor:
        tensors, options = _arguments(call)
        native: Any = _native()
        result: torch.Tensor = native.matmul_ck(*tensors, **options)
        return result


class TorchBackend(KernelBackend):
    """The reference: dequantise and multiply in float32, on any device."""

    @classmethod
    def why_not(cls, call: QuantGemmCall) -> str | None:
        return None

    @classmethod
    def execute(cls, call: QuantGemmCall) -> torch.Tensor:
        return quant_gemm_reference(call)


# --- the choice -----------------------------------------------------------------------------------------------------


def _plain_cpu(call: QuantGemmCall) -> bool:
    return call.a.device.type == "cpu" and simulated_arch_name() is None


class _QuantGemmDispatcher(AutoKernelDispatcher):
    """What the two dispatchers share."""

    op = "quant_gemm"
    family = "gemm"
    backends = {BackendType.TORCH: TorchBackend}

    @classmethod
    def make_key(cls, call: QuantGemmCall) -> Hashable:
        return call.key()

    @classmethod
    def scratch(cls, call: QuantGemmCall) -> QuantGemmCall:
        return call if call.out is None else call._replace(out=torch.zeros_like(call.out))

    @classmethod
    def describe(cls, call: QuantGemmCall) -> str:
        return call.describe()

    @classmethod
    def role(cls, call: QuantGemmCall) -> str:
        return call.role


class GemmFp8Dispatcher(_QuantGemmDispatcher):
    """Chooses the backend of one FP8 GEMM, forward or gradient."""

    op = "gemm_fp8"
    backends = {
        BackendType.HIPBLASLT: ScaledMmBackend,
        BackendType.TURBO: TurboBackend,
        BackendType.TRITON: TritonBackend,
        BackendType.CK: CkBackend,
        BackendType.TORCH: TorchBackend,
    }

    @classmethod
    def precision(cls, call: QuantGemmCall) -> PrecisionType:
        return PrecisionType.FP8

    @classmethod
    def default_backend(cls, call: QuantGemmCall) -> BackendType:
        """The vendor's BLAS for one scale a tensor, our kernels for finer ones, plain torch on a CPU.

        With finer scales the two gradients are not NT; the vendor's BLAS would copy their operands first.
        """
        if _plain_cpu(call):
            return BackendType.TORCH
        if call.granularity is ScalingGranularity.TENSORWISE:
            return BackendType.HIPBLASLT
        if call.is_mx() and device_facts(call.a.device).arch == "gfx950":
            return BackendType.TURBO
        return BackendType.TRITON


class GemmFp4Dispatcher(_QuantGemmDispatcher):
    """Chooses the backend of one MXFP4 GEMM, forward or gradient."""

    op = "gemm_fp4"
    backends = {
        BackendType.TURBO: TurboBackend,
        BackendType.AITER: AiterBackend,
        BackendType.HIPBLASLT: ScaledMmBackend,
        BackendType.TRITON: TritonBackend,
        BackendType.TORCH: TorchBackend,
    }

    @classmethod
    def precision(cls, call: QuantGemmCall) -> PrecisionType:
        return PrecisionType.FP4

    @classmethod
    def default_backend(cls, call: QuantGemmCall) -> BackendType:
        """Our kernels, AITER's for preshuffled operands, plain torch on a CPU."""
        if _plain_cpu(call):
            return BackendType.TORCH
        if call.preshuffled:
            return BackendType.AITER
        return BackendType.TURBO if device_facts(call.a.device).arch == "gfx950" else BackendType.TRITON


def run(dispatcher: type[AutoKernelDispatcher], call: QuantGemmCall) -> torch.Tensor:
    """Compute ``call`` on the backend chosen for it; without work to do (a zero size) no backend is asked."""
    m, n, k = call.sizes()
    if m and n and k:
        result: torch.Tensor = dispatcher.dispatch(call)
        return result
    if call.out is not None:
        return call.out
    empty = call.a.new_zeros((m, n), dtype=call.out_dtype)
    return empty if call.bias is None else empty.add_(call.bias)
