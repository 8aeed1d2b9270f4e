# SPDX-License-Identifier: MIT
"""Weight gradients that a product, dense or of groups, adds to ``weight.main_grad``, and when it may.

The addition is a side effect of a node's backward, so that node must know whether the weight takes part in this
backward: ``torch.autograd.grad(y, x)`` runs it for x alone. Autograd answers that of a node behind it, but not of a
leaf; so the weight goes in as a view of itself, and the view's node is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from turbo_core import UnsupportedError
from turbo_core.library import under_transforms

__all__ = ["Dtypes", "FusedProduct", "Owner", "into_main_grad", "product_into_main_grad", "weight_takes_part"]

Dtypes = tuple[torch.dtype, torch.dtype, Any]  # of a, b and bias; the last None without one


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


class FusedProduct(Protocol):
    """How a product of a and a weight is computed and differentiated.

    It has no tensors of its own, and no sizes, which a compiler would have to keep: those are the tensors'.

    ``others`` are the tensors that it reads besides a, b and bias, which have no gradients; each may be None.
    """

    @property
    def multiply(self) -> Callable[..., torch.Tensor]:
        """(a, b, bias, *others) -> C."""

    @property
    def grad_a(self) -> Callable[..., torch.Tensor]:
        """(dC, b, dtypes, weight, a, *others) -> dA; with a weight, whose values b has, by `product_into_main_grad`.

        Of a only the shape is read.
        """

    @property
    def accumulate(self) -> Callable[..., None]:
        """(dC, a, dtypes, out, *others): adds dB to ``out``."""

    @property
    def grad_bias(self) -> Callable[..., torch.Tensor]:
        """(dC, dtypes, *others) -> the gradient of the bias."""


class _IntoMainGrad(torch.autograd.Function):
    """A product of a and b, where b holds the values of the weight in the dtype of the product.

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
        product: FusedProduct,
        *others: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(a, b if ctx.needs_input_grad[0] else None, *others)
        ctx.weight, ctx.product = owner.weight, product
        ctx.dtypes = a.dtype, b.dtype, None if bias is None else bias.dtype
        return product.multiply(a, b, bias, *others)

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        a, b, *others = ctx.saved_tensors
        weight, product, dtypes = ctx.weight, ctx.product, ctx.dtypes
        grad_a = grad_view = grad_bias = None
        if ctx.needs_input_grad[0]:
            # dA is itself a product of the weight, whose gradient goes the same way
            again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
            grad_a = product.grad_a(grad_out, b, dtypes, weight if again else None, a, *others)
        if weight_takes_part(ctx, 2):
            with torch.no_grad():
                product.accumulate(grad_out.detach(), a.detach(), dtypes, weight.main_grad, *others)
            # hooks on the parameter run only if it gets a gradient; zeros, so that who adds it up adds nothing
            grad_view = torch.zeros_like(weight)
        if ctx.needs_input_grad[3]:
            grad_bias = product.grad_bias(grad_out, dtypes, *others)
        return grad_a, None, grad_view, grad_bias, None, None, *(None for _ in others)


def product_into_main_grad(
    product: FusedProduct,
    a: torch.Tensor,
    b: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *others: torch.Tensor | None,
) -> torch.Tensor:
    """``product`` of a and b, where b is ``weight``, detached, in the dtype of the product.

    The gradient of the weight is added to ``weight.main_grad``; autograd gets zeros for it.
    """
    view = weight.view_as(weight)
    c: torch.Tensor = _IntoMainGrad.apply(a, b, view, bias, Owner(weight), product, *others)
    return c
