# SPDX-License-Identifier: MIT
"""What gemm_fp8 and gemm_fp4 have in common: checks, taking operands apart, and the calls that `explain` shows."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig
from turbo_gemm.pytorch.kernels.quant_gemm_call import QuantGemmCall
from turbo_gemm.pytorch.ops.gemm import gemm
from turbo_gemm.pytorch.ops.gemm_checks import check_gemm, check_main_grad
from turbo_gemm.pytorch.ops.quant_autograd import Layout, quantised_product
from turbo_gemm.pytorch.ops.quant_inputs import Input, as_input, copies_of
from turbo_gemm.pytorch.ops.quant_library import product_call
from turbo_gemm.pytorch.ops.quant_operands import (
    Scheme,
    dgrad_operands,
    forward_operands,
    quantize,
    wgrad_operands,
)

__all__ = ["quant_gemm", "quant_gemm_calls"]

Config = Float8QuantConfig | Float4QuantConfig


def _checked(
    op: str,
    a: Any,
    b: Any,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    pattern: str | None,
    bias: torch.Tensor | None,
) -> tuple[Input, Input]:
    a, b = as_input(op, "a", a), as_input(op, "b", b)
    check_gemm(a.source, b.source, trans_a, trans_b, out_dtype, bias, op)
    if pattern is not None:
        check_main_grad(b.source, pattern, op)
    return a, b


def _default_dtype(a: torch.Tensor, b: torch.Tensor) -> torch.dtype:
    if torch.is_autocast_enabled(a.device.type):
        return torch.get_autocast_dtype(a.device.type)
    return torch.promote_types(a.dtype, b.dtype)


def quant_gemm(
    op: str,
    a: Any,
    b: Any,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    config: Config,
    pattern: str | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """op(a) op(b) + bias after quantising a and b by ``config``, differentiable; the public functions say the rest."""
    trans_a, trans_b = bool(trans_a), bool(trans_b)
    a_input, b_input = _checked(op, a, b, trans_a, trans_b, out_dtype, pattern, bias)
    a, b = a_input.source, b_input.source
    out_dtype = _default_dtype(a, b) if out_dtype is None else out_dtype
    if 0 in a.shape or 0 in b.shape:  # nothing to quantise
        return gemm(a_input.plain(), b_input.plain(), trans_a, trans_b, out_dtype, pattern, bias=bias)
    need_a, need_b = (torch.is_grad_enabled() and t.requires_grad for t in (a, b))
    scheme = Scheme.of(config, a.device)
    # forward along K; for the other operand's gradient along the other dimension
    along_k, along_n = (0 if trans_a else 1), (0 if trans_b else 1)
    a_wanted = (along_k == 0 or need_b, along_k == 1 or need_b)
    b_wanted = (along_n == 1 or need_a, along_n == 0 or need_a)
    a_copies = copies_of(op, "a", a_input, scheme, a_wanted, trans_a, trans_b)
    b_copies = copies_of(op, "b", b_input, scheme, b_wanted, trans_a, trans_b)
    if pattern is not None and need_b:
        # said here, not in the backward, which a compiler traces as a function without side effects on attributes
        b.grad_added_to_main_grad = True
    layout = Layout(scheme, trans_a, trans_b, out_dtype, pattern is not None)
    return quantised_product(a, b, bias, a_copies, b_copies, layout)
