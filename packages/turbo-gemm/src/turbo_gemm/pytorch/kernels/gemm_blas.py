# SPDX-License-Identifier: MIT
"""The HIPBLASLT backend of gemm: torch's own BLAS, hipBLASLt on ROCm, cuBLASLt or cuBLAS on CUDA."""

from __future__ import annotations

import functools

import torch

from turbo_gemm.calls import GemmCall
from turbo_gemm.pytorch.kernels.blas_settings import promised_blas, why_not_blas_sizes

__all__ = ["run", "why_not"]


def why_not(call: GemmCall) -> str | None:
    """Why the BLAS cannot take the call; None when it can."""
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


def run(call: GemmCall) -> torch.Tensor:
    """Compute the call."""
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
