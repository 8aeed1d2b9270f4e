# SPDX-License-Identifier: MIT
"""The calls of gemm_fp8 and gemm_fp4 that `turbo_core.explain` and the doctor show."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from turbo_core.autocast import autocast_dtype
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig
from turbo_gemm.calls import GemmFp8Call
from turbo_gemm.pytorch.ops.gemm_fp8_inputs import checked
from turbo_gemm.pytorch.ops.gemm_fp8_quantize import Scheme, dgrad_call, forward_call, quantize, wgrad_call

__all__ = ["quantised_calls"]


def quantised_calls(
    op: str,
    a: Any,
    b: Any,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    config: Float8QuantConfig | Float4QuantConfig,
    pattern: str | None,
    bias: torch.Tensor | None,
) -> dict[str, GemmFp8Call]:
    """The three GEMMs of a call and its backward; nothing is computed, the payloads are fake tensors."""
    trans_a, trans_b = bool(trans_a), bool(trans_b)
    pair_a, pair_b = checked(op, a, b, trans_a, trans_b, out_dtype, config, pattern, bias)
    a, b = pair_a.data, pair_b.data
    main_grad = b.main_grad if pattern is not None else None
    cast_to = autocast_dtype(a.device)
    dtype_a, dtype_b = (cast_to or t.dtype for t in (a, b))
    out_dtype = torch.promote_types(dtype_a, dtype_b) if out_dtype is None else out_dtype
    scheme = Scheme.of(config, a.device, trans_a, trans_b)
    with contextlib.nullcontext() if isinstance(a, FakeTensor) else FakeTensorMode():
        fake_a, fake_b = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in (a, b))
        m, n = a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]
        grad_out = torch.empty((m, n), dtype=out_dtype, device=a.device)
        both = (True, True)
        quantised_a = quantize(fake_a.to(dtype_a), scheme, "a", both)
        quantised_b = quantize(fake_b.to(dtype_b), scheme, "b", both)
        gradient = quantize(grad_out, scheme, "gradient", both)
    wgrad_dtype = dtype_b if main_grad is None else main_grad.dtype
    return {
        "forward": forward_call(quantised_a, quantised_b, scheme, bias, out_dtype),
        "dgrad": dgrad_call(gradient, quantised_b, scheme, dtype_a),
        "wgrad": wgrad_call(gradient, quantised_a, scheme, wgrad_dtype, main_grad),
    }
