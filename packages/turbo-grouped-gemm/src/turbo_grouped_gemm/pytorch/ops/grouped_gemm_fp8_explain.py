# SPDX-License-Identifier: MIT
"""The calls of grouped_gemm_fp8 and grouped_gemm_fp4 that `turbo_core.explain` and the doctor show."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from turbo_core.autocast import autocast_dtype
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig
from turbo_gemm.developer import Scheme, as_pair, check_main_grad
from turbo_grouped_gemm.calls import Groups
from turbo_grouped_gemm.pytorch.ops.grouped_arguments import checked_rows
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_inputs import check_config, quantized_weight
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_quantize import (
    How,
    Layout,
    dgrad_call,
    forward_call,
    quantize_rows,
    wgrad_call,
)
from turbo_quant import QuantizedTensorPair

__all__ = ["quantised_grouped_calls"]


def _fake(x: torch.Tensor | None) -> Any:
    """A fake tensor like x."""
    if x is None:
        return None
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def quantised_grouped_calls(
    op: str,
    a: Any,
    b: Any,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    config: Float8QuantConfig | Float4QuantConfig,
    num_cu: int | None,
    pattern: str | None,
    bias: torch.Tensor | None,
    schedule: str,
    a_idx: torch.Tensor | None,
    out_idx: torch.Tensor | None,
    out_rows: int | None,
) -> dict[str, Any]:
    """The three products of a call and its backward; nothing is computed, the tensors are fakes."""
    trans_b = bool(trans_b)
    a, b = as_pair(op, "a", a).data, as_pair(op, "b", b).data
    rows = checked_rows(
        op, a, b, group_lens, group_offs, trans_b, out_dtype, num_cu, bias, schedule, a_idx, out_idx, out_rows
    )
    check_config(op, config)
    main_grad = None
    if pattern is not None:
        check_main_grad(b, pattern, op)
        main_grad = b.main_grad
    cast_to = autocast_dtype(a.device)
    dtype_a, dtype_b = (cast_to or t.dtype for t in (a, b))
    out_dtype = torch.promote_types(dtype_a, dtype_b) if out_dtype is None else out_dtype
    scheme, how, both = Scheme.of(config, a.device, False, trans_b), How(num_cu, schedule), (True, True)
    n = b.shape[1 if trans_b else 2]
    with contextlib.nullcontext() if isinstance(a, FakeTensor) else FakeTensorMode():
        groups = Groups(*map(_fake, rows.groups))
        offs = torch.empty(b.shape[0] + 1, dtype=torch.int64, device=a.device)
        layout = Layout(groups, offs, offs, _fake(a_idx), _fake(out_idx))
        grad_out = torch.empty((rows.out_rows, n), dtype=out_dtype, device=a.device)
        weight = QuantizedTensorPair(_fake(b).to(dtype_b))
        along_rows, along_k = quantize_rows(_fake(rows.a).to(dtype_a), scheme, "a", layout, both)
        b_along_n, b_along_k = quantized_weight(op, weight, config, scheme, both)
        gradient = quantize_rows(grad_out, scheme, "gradient", layout, both)
    forward = forward_call(along_k, b_along_k, scheme, layout, out_dtype, rows.out_rows, how)
    dtype = dtype_b if main_grad is None else main_grad.dtype
    return {
        "forward": forward._replace(bias=bias),
        "dgrad": dgrad_call(gradient[1], b_along_n, scheme, layout, dtype_a, rows.size, how),
        "wgrad": wgrad_call(gradient[0], along_rows, scheme, layout, dtype, main_grad, how),
    }
