# SPDX-License-Identifier: MIT
"""The backends of gemm and the choice among them.

Shape suffixes: M rows of C, N columns of C, K contraction.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any, NamedTuple

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
from turbo_gemm.pytorch.kernels.blas_settings import promised_blas, why_not_blas_sizes
from turbo_gemm.pytorch.kernels.reference import gemm_reference

__all__ = ["GemmCall", "GemmDispatcher", "run"]


class GemmCall(NamedTuple):
    """One GEMM: C[M,N] = op(a) op(b) (+ bias[N]), added to ``out`` where that is given.

    Attributes:
        a: [M,K], or [K,M] with ``trans_a``; bf16, fp16 or fp32, any strides.
        b: [K,N], or [N,K] with ``trans_b``; likewise.
        bias: [N] or None.
        out_dtype: dtype of C (of ``out`` where that is given).
        out: [M,N] or None; C is added to it.
        role: ``forward``, ``dgrad`` or ``wgrad``, for messages only.
    """

    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None
    trans_a: bool
    trans_b: bool
    out_dtype: torch.dtype
    out: torch.Tensor | None = None
    role: str = "forward"

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """op(a) [M,K] and op(b) [K,N] as views."""
        return (self.a.t() if self.trans_a else self.a), (self.b.t() if self.trans_b else self.b)

    def sizes(self) -> tuple[int, int, int]:
        """M, N, K."""
        m, k = self.a.shape[::-1] if self.trans_a else self.a.shape
        return m, self.b.shape[0 if self.trans_b else 1], k


class HipblasltBackend(KernelBackend):
    """torch's own BLAS: hipBLASLt on ROCm, cuBLASLt or cuBLAS on CUDA."""

    @classmethod
    def why_not(cls, call: GemmCall) -> str | None:
        if call.a.device.type != "cuda":
            return f"a is on {call.a.device.type}; torch's GPU BLAS needs tensors on a GPU"
        dtype = call.a.dtype
        if call.b.dtype != dtype:
            return f"a is {dtype} and b is {call.b.dtype}; they must be the same"
        if call.out_dtype != dtype:
            if call.out_dtype != torch.float32:
                return f"out_dtype is {call.out_dtype}; {dtype} operands give {dtype} or torch.float32"
            if not _has_float32_output():
                return f"torch {torch.__version__} has no GEMM from {dtype} to torch.float32"
        return why_not_blas_sizes(a=call.a, b=call.b)

    @classmethod
    def execute(cls, call: GemmCall) -> torch.Tensor:
        a_MK, b_KN = call.operands()
        with promised_blas(call.a.dtype):
            if call.out is not None:
                return _addmm(call.out, a_MK, b_KN, call.out_dtype, out=call.out)
            if call.bias is not None:
                return _addmm(call.bias.to(call.out_dtype), a_MK, b_KN, call.out_dtype)
            if call.out_dtype == a_MK.dtype:
                return torch.mm(a_MK, b_KN)
            return torch.ops.aten.mm.dtype(a_MK, b_KN, call.out_dtype)


def _addmm(
    addend: torch.Tensor,
    a_MK: torch.Tensor,
    b_KN: torch.Tensor,
    out_dtype: torch.dtype,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    if out_dtype == a_MK.dtype:
        return torch.addmm(addend, a_MK, b_KN, out=out)
    if out is None:
        return torch.ops.aten.addmm.dtype(addend, a_MK, b_KN, out_dtype)
    return torch.ops.aten.addmm.dtype_out(addend, a_MK, b_KN, out_dtype, out=out)


@functools.cache
def _has_float32_output() -> bool:
    """Whether this torch multiplies 16-bit operands into float32 (2.8 and newer)."""
    return hasattr(torch.ops.aten.mm, "dtype") and hasattr(torch.ops.aten.addmm, "dtype_out")


class TritonBackend(KernelBackend):
    """Our own persistent kernel; any strides, any pairing of dtypes."""

    @classmethod
    def why_not(cls, call: GemmCall) -> str | None:
        return why_no_triton(call.a.device)

    @classmethod
    def execute(cls, call: GemmCall) -> torch.Tensor:
        from turbo_gemm.triton.gemm import matmul

        return matmul(
            call.a,
            call.b,
            trans_a=call.trans_a,
            trans_b=call.trans_b,
            out_dtype=call.out_dtype,
            bias=call.bias,
            out=call.out,
            accumulate=call.out is not None,
        )


class TorchBackend(KernelBackend):
    """The reference: float32 on any device."""

    @classmethod
    def why_not(cls, call: GemmCall) -> str | None:
        return None

    @classmethod
    def execute(cls, call: GemmCall) -> torch.Tensor:
        return gemm_reference(*call.operands(), call.bias, call.out_dtype, call.out)


class GemmDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one GEMM, forward or gradient."""

    op = "gemm"
    family = "gemm"
    backends = {
        BackendType.HIPBLASLT: HipblasltBackend,
        BackendType.TRITON: TritonBackend,
        BackendType.TORCH: TorchBackend,
    }

    @classmethod
    def precision(cls, call: GemmCall) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def default_backend(cls, call: GemmCall) -> BackendType:
        """The vendor's BLAS on a GPU (and where a GPU is simulated), plain torch on a CPU."""
        plain_cpu = call.a.device.type == "cpu" and simulated_arch_name() is None
        return BackendType.TORCH if plain_cpu else BackendType.HIPBLASLT

    @classmethod
    def make_key(cls, call: GemmCall) -> Hashable:
        a, b, bias, trans_a, trans_b, out_dtype, out, _ = call
        facts = device_facts(a.device)
        return (
            facts.arch,
            facts.name,
            a.shape,
            a.stride(),
            a.dtype,
            trans_a,
            b.shape,
            b.stride(),
            b.dtype,
            trans_b,
            None if bias is None else bias.dtype,
            out_dtype,
            None if out is None else out.stride(),
        )

    @classmethod
    def scratch(cls, call: GemmCall) -> GemmCall:
        return call if call.out is None else call._replace(out=torch.zeros_like(call.out))

    @classmethod
    def describe(cls, call: GemmCall) -> str:
        m, n, k = call.sizes()
        layout = "".join("T" if flag else "N" for flag in (call.trans_a, call.trans_b))
        a, b, out = (str(dtype).removeprefix("torch.") for dtype in (call.a.dtype, call.b.dtype, call.out_dtype))
        extras = (", bias" if call.bias is not None else "") + (", accumulated" if call.out is not None else "")
        return f"M={m} N={n} K={k} {layout}, {a} x {b} -> {out}{extras}, {call.a.device}"

    @classmethod
    def role(cls, call: GemmCall) -> str:
        return call.role


def run(call: GemmCall) -> torch.Tensor:
    """Compute ``call`` on the backend chosen for it; without work to do (a zero size) no backend is asked."""
    m, n, k = call.sizes()
    if m and n and k:
        result: Any = GemmDispatcher.dispatch(call)
        return result
    if call.out is not None:
        return call.out
    empty = call.a.new_zeros((m, n), dtype=call.out_dtype)
    return empty if call.bias is None else empty.add_(call.bias)
