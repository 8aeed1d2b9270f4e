# SPDX-License-Identifier: MIT
"""The GEMMs as registered ops, ``turbo_gemm::gemm`` and ``gemm_accumulate``, and the gradients of the first."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.library import Differentiable, OpLibrary
from turbo_gemm.calls import GemmCall, specs
from turbo_gemm.pytorch.kernels.gemm_impl import GemmDispatcher
from turbo_gemm.pytorch.ops.gemm_gradients import bias_gradient, dgrad_call, gradient_operand, wgrad_call

__all__ = ["gemm_accumulate", "gemm_op"]


def _saves(call: GemmCall, result: torch.Tensor, needs: Any) -> tuple[Any, ...]:
    a, b, bias = call.a, call.b, call.bias
    dtypes = a.dtype, b.dtype, None if bias is None else bias.dtype
    return a if needs.b else None, b if needs.a else None, call.trans_a, call.trans_b, dtypes


def _backward(saved: tuple[Any, ...], grad_out: torch.Tensor, needs: Any) -> dict[str, torch.Tensor]:
    a, b, trans_a, trans_b, (dtype_a, dtype_b, bias_dtype) = saved
    gradients: dict[str, torch.Tensor] = {}
    operand = gradient_operand(grad_out, dtype_a, dtype_b)
    if needs.a:
        gradients["a"] = gemm_op(dgrad_call(operand, b, trans_a, trans_b, dtype_a))
    if needs.b:
        gradients["b"] = gemm_op(wgrad_call(operand, a, trans_a, trans_b, dtype_b))
    if needs.bias:
        gradients["bias"] = bias_gradient(grad_out, bias_dtype)
    return gradients


_library = OpLibrary("turbo_gemm")
gemm_op = _library.op(
    "gemm", GemmCall, GemmDispatcher.run, specs, Differentiable(_backward, _saves, "gemm"), omits=("out",)
)
gemm_accumulate = _library.op("gemm_accumulate", GemmCall, GemmDispatcher.run, None, writes="out")
