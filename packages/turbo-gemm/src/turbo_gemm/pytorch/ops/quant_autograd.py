# SPDX-License-Identifier: MIT
"""A product of quantised matrices, differentiable in the matrices as they were before.

What is saved for the backward are the 8- or 4-bit copies that the backward reads, and only those that it will read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from turbo_gemm.pytorch.ops.quant_library import accumulate_product, product
from turbo_gemm.pytorch.ops.quant_operands import (
    Copies,
    Copy,
    Scheme,
    dgrad_operands,
    forward_operands,
    quantize,
    wgrad_operands,
)

__all__ = ["quantised_product"]


_Parts = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class _Kind(NamedTuple):
    """What the copies of one operand are, besides their tensors.

    Attributes:
        tiles: see `Copy`.
        shared: the backward reads the copy that the forward read.
    """

    tiles: bool
    shared: bool


def _parts(forward: Copy, backward: Copy | None) -> tuple[_Parts, _Kind]:
    """The copies of one operand as the tensors that a graph can hold."""
    if backward is None or backward.data is forward.data:
        return (forward.data, forward.scale_inv, None, None), _Kind(forward.tiles, backward is not None)
    return (*forward[:2], *backward[:2]), _Kind(forward.tiles, False)


def quantised_product(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    a_copies: Copies,
    b_copies: Copies,
    scheme: Scheme,
    out_dtype: torch.dtype,
    accumulate: bool,
) -> torch.Tensor:
    """op(a) op(b) + bias from the copies; a and b themselves are not read, they are what gradients belong to.

    With ``accumulate`` the gradient of b is added to ``b.main_grad``.
    """
    x, y, _, _ = forward_operands(a_copies, b_copies, scheme)
    a_parts, a_kind = _parts(x, a_copies[1 - scheme.contraction("a")])
    b_parts, b_kind = _parts(y, b_copies[1 - scheme.contraction("b")])
    b, a, *parts = _distinct(b, a, *a_parts, *b_parts)
    result: torch.Tensor = _QuantisedProduct.apply(a, b, bias, scheme, out_dtype, accumulate, a_kind, b_kind, *parts)
    return result


def _distinct(*tensors: Any) -> list[Any]:
    """The tensors, each that occurs again as a view of itself: a compiler takes no tensor twice."""
    distinct: list[Any] = []
    for tensor in tensors:
        again = tensor is not None and any(tensor is other for other in distinct)
        distinct.append(tensor.view_as(tensor) if again else tensor)
    return distinct


class _QuantisedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        bias: torch.Tensor | None,
        scheme: Scheme,
        out_dtype: torch.dtype,
        accumulate: bool,
        a_kind: _Kind,
        b_kind: _Kind,
        *parts: Any,
    ) -> torch.Tensor:
        kept = []
        copies = []
        for kind, (data, scale_inv, data_back, scale_inv_back) in ((a_kind, parts[:4]), (b_kind, parts[4:])):
            kept += [data, scale_inv] if kind.shared else [data_back, scale_inv_back]
            copies.append(Copy(data, scale_inv, kind.tiles))
        ctx.save_for_backward(*kept)
        ctx.scheme, ctx.tiles = scheme, (a_kind.tiles, b_kind.tiles)
        ctx.dtypes = a.dtype, b.dtype, None if bias is None else bias.dtype
        # an attribute: saved tensors are checked for writes, and other micro-batches write main_grad in between
        ctx.weight = b if accumulate else None
        x, y = copies
        return product(forward_operands((x, x), (y, y), scheme), scheme, bias, out_dtype, "forward")

    @staticmethod
    @once_differentiable  # the quantised gradient has no gradient
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        scheme: Scheme = ctx.scheme
        a_data, a_scale_inv, b_data, b_scale_inv = ctx.saved_tensors
        a_dtype, b_dtype, bias_dtype = ctx.dtypes
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        grad_a = grad_b = grad_bias = None
        if need_a or need_b:
            gradient = quantize(grad_out, scheme, "gradient", (need_b, need_a))
            if need_a:
                b = Copy(b_data, b_scale_inv, ctx.tiles[1])
                grad_a = product(dgrad_operands(gradient, (b, b), scheme), scheme, None, a_dtype, "dgrad")
            if need_b:
                a = Copy(a_data, a_scale_inv, ctx.tiles[0])
                operands = wgrad_operands(gradient, (a, a), scheme)
                if ctx.weight is None:
                    grad_b = product(operands, scheme, None, b_dtype, "wgrad")
                else:
                    accumulate_product(ctx.weight.main_grad, operands, scheme)
                    # hooks on the parameter run only if it gets a gradient; zeros, so that adding it adds nothing
                    grad_b = torch.zeros(ctx.weight.shape, dtype=b_dtype, device=grad_out.device)
        if need_bias:
            grad_bias = grad_out.sum(0, dtype=torch.float32).to(bias_dtype)
        return (grad_a, grad_b, grad_bias, *(None,) * 13)
