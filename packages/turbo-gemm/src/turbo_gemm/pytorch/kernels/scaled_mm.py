# SPDX-License-Identifier: MIT
"""The HIPBLASLT backend of the quantised GEMMs: ``torch._scaled_mm``, hipBLASLt on ROCm and cuBLASLt on CUDA.

torch multiplies a row-major [M,K] by a column-major [K,N] (NT storage) and nothing else; a payload that is stored the
other way is copied first, which reads and writes its bytes once more.

| scales | out | operands | sizes |
|---|---|---|---|
| TENSORWISE | bf16, fp16, fp32 | not e5m2 x e5m2 on CUDA | K, N multiples of 16 |
| ROWWISE | bf16 | second operand e4m3 | K, N multiples of 16 |
| MX | bf16, fp16 | gfx950 with ROCm 7 | M, N multiples of 16 |
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

from turbo_core import KernelBackend, device_facts
from turbo_core.low_precision import ScalingGranularity, check_fp8_support
from turbo_gemm.pytorch.kernels.blas_settings import why_not_blas_sizes
from turbo_gemm.pytorch.kernels.quant_gemm_call import QuantGemmCall, mx_format

__all__ = ["ScaledMmBackend"]

_ALIGNMENT = 16
_SCALE_ROWS = 128  # torch wants MX scales of so many rows, or a multiple
_E5M2 = (torch.float8_e5m2, torch.float8_e5m2fnuz)
_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_FLOAT_OUT = (torch.bfloat16, torch.float16, torch.float32)


@functools.cache
def _hip_version() -> tuple[int, ...] | None:
    """ROCm's version, None on another build of torch."""
    return None if torch.version.hip is None else tuple(map(int, re.findall(r"\d+", torch.version.hip)[:2]))


class ScaledMmBackend(KernelBackend):
    """torch's scaled matrix product."""

    @classmethod
    def why_not(cls, call: QuantGemmCall) -> str | None:
        if call.a.device.type != "cuda":
            return f"a is on {call.a.device.type}; torch's scaled GPU product needs tensors on a GPU"
        supported, reason = check_fp8_support(call.a.device)
        if not supported:
            return reason
        if call.granularity is ScalingGranularity.BLOCKWISE:
            return "torch's scaled product takes TENSORWISE, ROWWISE and MX_BLOCKWISE scales; these are BLOCKWISE"
        m, n, k = call.sizes()
        if k % _ALIGNMENT or n % _ALIGNMENT:
            return f"K={k} and N={n} must be multiples of {_ALIGNMENT}"
        if call.is_mx():
            return _why_not_mx(call, m) or why_not_blas_sizes(a=call.a, b=call.b)
        return _why_not_types(call) or _why_not_scales(call) or why_not_blas_sizes(a=call.a, b=call.b)

    @classmethod
    def execute(cls, call: QuantGemmCall) -> torch.Tensor:
        a_MK = call.a.t() if call.trans_a else call.a
        b_KN = call.b.t() if call.trans_b else call.b
        out_dtype = call.out_dtype if call.out is None else torch.float32
        separate = call.bias is not None and out_dtype is torch.float32
        bias = None if call.bias is None or separate else _aligned(call.bias.to(out_dtype).contiguous())
        scaled_mm: Any = torch._scaled_mm
        result: torch.Tensor = scaled_mm(
            _row_major(a_MK),
            _row_major(b_KN.t()).t(),
            scale_a=_scale(call, call.a_scale_inv, call.trans_a, call.a.shape[0]),
            scale_b=_scale(call, call.b_scale_inv, call.trans_b, call.b.shape[0]),
            bias=bias,
            out_dtype=out_dtype,
            use_fast_accum=False,  # float32 sums to the end
        )
        if call.bias is not None and separate:
            result += call.bias
        return result if call.out is None else call.out.add_(result)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """x beginning on 16 bytes, as the BLAS wants payloads, scales and a bias."""
    return x.clone() if x.data_ptr() % _ALIGNMENT else x


def _row_major(x: torch.Tensor) -> torch.Tensor:
    """x as the BLAS reads it: rows one after another, beginning on 16 bytes.

    Of a single row torch calls any strides contiguous, while its BLAS tells the layout by them.
    """
    x = _aligned(x.contiguous())
    return x.as_strided(x.shape, (x.shape[1], 1))


def _scale(call: QuantGemmCall, scale_inv: torch.Tensor, transposed: bool, rows: int) -> torch.Tensor:
    if call.granularity is ScalingGranularity.TENSORWISE:
        return _aligned(scale_inv)
    if call.is_mx():
        padded = torch.nn.functional.pad(scale_inv.view(torch.uint8), (0, 0, 0, -rows % _SCALE_ROWS))
        return padded.contiguous().view(torch.float8_e8m0fnu)
    return _aligned((scale_inv.t() if transposed else scale_inv).contiguous())


def _why_not_types(call: QuantGemmCall) -> str | None:
    hip = _hip_version()
    amd = device_facts(call.a.device).vendor == "amd"
    fnuz = call.a.dtype in _FNUZ
    if fnuz is not (call.b.dtype in _FNUZ):
        return f"a is {call.a.dtype} and b is {call.b.dtype}; both must be OCP types, or both FNUZ types"
    if fnuz is not device_facts(call.a.device).fp8_fnuz:
        return f"a is {call.a.dtype}, which this device's matrix units do not take"
    if amd and not fnuz and hip is not None and hip < (6, 5):
        return f"the OCP types need ROCm 6.5, this is {torch.version.hip}"
    if not amd and call.a.dtype in _E5M2 and call.b.dtype in _E5M2:
        return "both operands are e5m2; cuBLASLt has no such product"
    return None


def _why_not_scales(call: QuantGemmCall) -> str | None:
    accumulated = call.out is not None
    if call.granularity is ScalingGranularity.ROWWISE:
        if call.b.dtype in _E5M2:
            return "the second operand is e5m2; with ROWWISE scales it must be e4m3"
        if accumulated:
            return "ROWWISE products come in bfloat16 only, too coarse to be added to a running sum"
        if call.out_dtype is not torch.bfloat16:
            return f"out_dtype is {call.out_dtype}; ROWWISE products come in torch.bfloat16 only"
    if not accumulated and call.out_dtype not in _FLOAT_OUT:
        return f"out_dtype is {call.out_dtype}; accepted are {', '.join(map(str, _FLOAT_OUT))}"
    return None


def _why_not_mx(call: QuantGemmCall, m: int) -> str | None:
    hip = _hip_version()
    facts = device_facts(call.a.device)
    if facts.arch != "gfx950":
        return f"this is {facts.arch}; torch's MX product is used on gfx950 only"
    if hip is not None and hip < (7, 0):
        return f"MX products need ROCm 7.0, this is {torch.version.hip}"
    if not hasattr(torch, "float8_e8m0fnu") or call.a_scale_inv.dtype is not torch.float8_e8m0fnu:
        return f"torch {torch.__version__} has no E8M0 type for the scales"
    fp4 = mx_format(call.a) == "e2m1"
    if fp4 is not (mx_format(call.b) == "e2m1"):
        return f"a is {mx_format(call.a)} and b is {mx_format(call.b)}; both or neither must be e2m1"
    if fp4 and str(call.a.dtype) != "torch.float4_e2m1fn_x2":
        return f"torch {torch.__version__} has no FP4 type"
    if call.preshuffled:
        return "scales and payload are preshuffled for AITER; the plain order is needed"
    if m % _ALIGNMENT:
        return f"M={m} must be a multiple of {_ALIGNMENT}"
    if call.out is not None:
        return "MX products come in 16 bits only, too coarse to be added to a running sum"
    if call.out_dtype not in (torch.bfloat16, torch.float16):
        return f"out_dtype is {call.out_dtype}; MX products come in torch.bfloat16 and torch.float16"
    return None
