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

from turbo_core import device_facts
from turbo_core.low_precision import ScalingGranularity, check_fp8_support
from turbo_gemm.calls import GemmFp8Call, Operand, mx_format
from turbo_gemm.pytorch.kernels.blas_settings import why_not_blas_sizes

__all__ = ["aligned", "run", "why_not"]

_ALIGNMENT = 16
_SCALE_ROWS = 128  # torch wants MX scales of so many rows, or a multiple
_E5M2 = (torch.float8_e5m2, torch.float8_e5m2fnuz)
_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_FLOAT_OUT = (torch.bfloat16, torch.float16, torch.float32)


@functools.cache
def _hip_version() -> tuple[int, ...] | None:
    """ROCm's version, None on another build of torch."""
    return None if torch.version.hip is None else tuple(map(int, re.findall(r"\d+", torch.version.hip)[:2]))


def why_not(call: GemmFp8Call) -> str | None:
    """Why torch's scaled product cannot take the call; None when it can."""
    a, b = call.a.data, call.b.data
    if a.device.type != "cuda":
        return f"a is on {a.device.type}; torch's scaled GPU product needs tensors on a GPU"
    supported, reason = check_fp8_support(a.device)
    if not supported:
        return reason
    if call.granularity is ScalingGranularity.BLOCKWISE:
        return "torch's scaled product takes TENSORWISE, ROWWISE and MX_BLOCKWISE scales; these are BLOCKWISE"
    m, n, k = call.sizes()
    if k % _ALIGNMENT or n % _ALIGNMENT:
        return f"K={k} and N={n} must be multiples of {_ALIGNMENT}"
    if call.is_mx():
        return _why_not_mx(call, m) or why_not_blas_sizes(a=a, b=b)
    return _why_not_types(call) or _why_not_scales(call) or why_not_blas_sizes(a=a, b=b)


def run(call: GemmFp8Call) -> torch.Tensor:
    """Compute the call."""
    a_MK, b_NK = call.rows()
    out_dtype = call.out_dtype if call.out is None else torch.float32
    separate = call.bias is not None and out_dtype is torch.float32
    bias = None if call.bias is None or separate else aligned(call.bias.to(out_dtype).contiguous())
    scaled_mm: Any = torch._scaled_mm
    result: torch.Tensor = scaled_mm(
        _row_major(a_MK.data),
        _row_major(b_NK.data).t(),
        scale_a=_scale(call, a_MK),
        scale_b=_scale(call, b_NK) if call.granularity is not ScalingGranularity.ROWWISE else _scale(call, b_NK).t(),
        bias=bias,
        out_dtype=out_dtype,
        use_fast_accum=False,  # float32 sums to the end
    )
    if call.bias is not None and separate:
        result += call.bias
    return result if call.out is None else call.out.add_(result)


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x beginning on 16 bytes, as the BLAS wants payloads, scales and a bias."""
    return x.clone() if x.data_ptr() % _ALIGNMENT else x


def _row_major(x: torch.Tensor) -> torch.Tensor:
    """x as the BLAS reads it: rows one after another, beginning on 16 bytes.

    Of a single row torch calls any strides contiguous, while its BLAS tells the layout by them.
    """
    x = aligned(x.contiguous())
    return x.as_strided(x.shape, (x.shape[1], 1))


def _scale(call: GemmFp8Call, operand: Operand) -> torch.Tensor:
    """The scales of an operand whose K is last."""
    scale_inv, rows = operand.scale_inv, operand.data.shape[0]
    if call.is_mx():
        padded = torch.nn.functional.pad(scale_inv.view(torch.uint8), (0, 0, 0, -rows % _SCALE_ROWS))
        return padded.contiguous().view(torch.float8_e8m0fnu)
    return aligned(scale_inv.contiguous())


def _why_not_types(call: GemmFp8Call) -> str | None:
    hip = _hip_version()
    amd = device_facts(call.a.data.device).vendor == "amd"
    fnuz = call.a.data.dtype in _FNUZ
    if fnuz is not (call.b.data.dtype in _FNUZ):
        return f"a is {call.a.data.dtype} and b is {call.b.data.dtype}; both must be OCP types, or both FNUZ types"
    if fnuz is not device_facts(call.a.data.device).fp8_fnuz:
        return f"a is {call.a.data.dtype}, which this device's matrix units do not take"
    if amd and not fnuz and hip is not None and hip < (6, 5):
        return f"the OCP types need ROCm 6.5, this is {torch.version.hip}"
    if not amd and call.a.data.dtype in _E5M2 and call.b.data.dtype in _E5M2:
        return "both operands are e5m2; cuBLASLt has no such product"
    return None


def _why_not_scales(call: GemmFp8Call) -> str | None:
    accumulated = call.out is not None
    if call.granularity is ScalingGranularity.ROWWISE:
        if call.b.data.dtype in _E5M2:
            return "the second operand is e5m2; with ROWWISE scales it must be e4m3"
        if accumulated:
            return "ROWWISE products come in bfloat16 only, too coarse to be added to a running sum"
        if call.out_dtype is not torch.bfloat16:
            return f"out_dtype is {call.out_dtype}; ROWWISE products come in torch.bfloat16 only"
    if not accumulated and call.out_dtype not in _FLOAT_OUT:
        return f"out_dtype is {call.out_dtype}; accepted are {', '.join(map(str, _FLOAT_OUT))}"
    return None


def _why_not_mx(call: GemmFp8Call, m: int) -> str | None:
    hip = _hip_version()
    facts = device_facts(call.a.data.device)
    if facts.arch != "gfx950":
        return f"this is {facts.arch}; torch's MX product is used on gfx950 only"
    if hip is not None and hip < (7, 0):
        return f"MX products need ROCm 7.0, this is {torch.version.hip}"
    if not hasattr(torch, "float8_e8m0fnu") or call.a.scale_inv.dtype is not torch.float8_e8m0fnu:
        return f"torch {torch.__version__} has no E8M0 type for the scales"
    fp4 = mx_format(call.a.data) == "e2m1"
    if fp4 is not (mx_format(call.b.data) == "e2m1"):
        return f"a is {mx_format(call.a.data)} and b is {mx_format(call.b.data)}; both or neither must be e2m1"
    if fp4 and str(call.a.data.dtype) != "torch.float4_e2m1fn_x2":
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
