# SPDX-License-Identifier: MIT
"""Weight gradients that a GEMM adds to ``weight.main_grad``, and when it may.

The addition is a side effect of a node's backward, so that node must know whether the weight takes part in this
backward: ``torch.autograd.grad(y, x)`` runs it for x alone. Autograd answers that of a node behind it, but not of a
leaf; so the weight goes in as a view of itself, and the view's node is asked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_core import UnsupportedError
from turbo_core.library import under_transforms
from turbo_gemm.calls import GemmCall
from turbo_gemm.pytorch.ops.gemm_gradients import bias_gradient, dgrad_call, gradient_operand, wgrad_call
from turbo_gemm.pytorch.ops.gemm_library import gemm_accumulate, gemm_op

__all__ = ["Owner", "gemm_into_main_grad", "into_main_grad", "weight_takes_part"]


class Owner(NamedTuple):
    """Whose ``main_grad`` it is. Inside a tuple, a tensor is no input of a node and gets no gradient of its own."""

    weight: torch.Tensor


def into_main_grad(op: str, b: torch.Tensor, pattern: str | None) -> bool:
    """Whether a call's backward is to add to ``b.main_grad``: asked for, and b gets a gradient."""
    if pattern is None or not b.requires_grad or not torch.is_grad_enabled():
        return False
    if under_transforms():
        raise UnsupportedError(
            f"{op}: fuse_bgrad_accum_pattern={pattern!r} under torch.func or forward-mode differentiation, whose "
            "functions have no side effects; None is accepted there"
        )
    return True


def weight_takes_part(ctx: Any, index: int) -> bool:
    """Whether this backward computes the gradient of the tensor input ``index``, which is no leaf.

    A compiled backward is one node that computes every gradient, so there the answer is yes.
    """
    if torch.compiler.is_compiling():
        return True
    return torch._C._will_engine_execute_node(ctx.next_functions[index][0])


class _GemmIntoMainGrad(torch.autograd.Function):
    """gemm of a and b, where b holds the values of the weight in the dtype of the product.

    The weight is an attribute of ctx: saved tensors are checked for writes since the forward, and ``main_grad`` is
    written by other micro-batches in between. b is saved, and so checked, where a's gradient reads it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        view: torch.Tensor,
        bias: torch.Tensor | None,
        owner: Owner,
        trans_a: bool,
        trans_b: bool,
        out_dtype: torch.dtype,
        role: str,
    ) -> torch.Tensor:
        ctx.save_for_backward(a, b if ctx.needs_input_grad[0] else None)
        ctx.weight, ctx.trans_a, ctx.trans_b = owner.weight, trans_a, trans_b
        ctx.dtypes = a.dtype, b.dtype, None if bias is None else bias.dtype
        c: torch.Tensor = gemm_op(GemmCall(a, b, bias, trans_a, trans_b, out_dtype, None, role))
        return c

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        weight, trans_a, trans_b = ctx.weight, ctx.trans_a, ctx.trans_b
        dtype_a, dtype_b, bias_dtype = ctx.dtypes
        grad_a = grad_view = grad_bias = None
        operand = gradient_operand(grad_out, dtype_a, dtype_b)
        if ctx.needs_input_grad[0]:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                # dA = dC op(b)^T is itself a product of the weight, whose gradient goes the same way
                grad_a = gemm_into_main_grad(operand, b, weight, None, False, not trans_b, dtype_a, "dgrad")
                grad_a = grad_a.t() if trans_a else grad_a
            else:
                grad_a = gemm_op(dgrad_call(operand, b, trans_a, trans_b, dtype_a))
        if weight_takes_part(ctx, 2):
            out = weight.main_grad
            with torch.no_grad():
                gemm_accumulate(wgrad_call(operand.detach(), a.detach(), trans_a, trans_b, out.dtype, out))
            # hooks on the parameter run only if it gets a gradient; zeros, so that who adds it up adds nothing
            grad_view = torch.zeros_like(weight)
        if ctx.needs_input_grad[3]:
            grad_bias = bias_gradient(grad_out, bias_dtype)
        return grad_a, None, grad_view, grad_bias, *(None,) * 5


def gemm_into_main_grad(
    a: torch.Tensor,
    b: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype,
    role: str = "forward",
) -> torch.Tensor:
    """op(a) op(b) + bias, where b [K,N] or [N,K] is ``weight``, detached, in the dtype of the product.

    The gradient of the weight is added to ``weight.main_grad``; autograd gets zeros for it.
    """
    view = weight.view_as(weight)
    c: torch.Tensor = _GemmIntoMainGrad.apply(a, b, view, bias, Owner(weight), trans_a, trans_b, out_dtype, role)
    return c
