# SPDX-License-Identifier: MIT
"""A product of quantised matrices, differentiable in the matrices as they were before.

What is saved for the backward are the 8- or 4-bit copies that the backward reads, and only those that it will read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

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

__all__ = ["Layout", "quantised_product"]


class Layout(NamedTuple):
    """What a product is besides its operands; ``accumulate``: the gradient of b is added to ``b.main_grad``."""

    scheme: Scheme
    trans_a: bool
    trans_b: bool
    out_dtype: torch.dtype
    accumulate: bool

    def flags(self) -> tuple[bool, bool, Scheme]:
        """The arguments that all functions of `quant_operands` end with."""
        return self.trans_a, self.trans_b, self.scheme


def _parts(copies: Copies) -> tuple[torch.Tensor | None, ...]:
    """Copies as the tensors that a graph can hold."""
    zero, one = copies
    return (*(zero[:2] if zero is not None else (None, None)), *(one[:2] if one is not None else (None, None)))


def _assembled(parts: tuple[torch.Tensor | None, ...], tiles: bool) -> Copies:
    """The inverse of `_parts`."""
    zero, zero_scale, one, one_scale = parts
    return (
        None if zero is None or zero_scale is None else Copy(zero, zero_scale, tiles),
        None if one is None or one_scale is None else Copy(one, one_scale, tiles),
    )


def quantised_product(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    a_copies: Copies,
    b_copies: Copies,
    layout: Layout,
) -> torch.Tensor:
    """op(a) op(b) + bias from the copies; a and b themselves are not read, they are what gradients belong to."""
    tiles = tuple(any(copy is not None and copy.tiles for copy in copies) for copies in (a_copies, b_copies))
    result: torch.Tensor = _QuantisedProduct.apply(a, b, bias, layout, tiles, *_parts(a_copies), *_parts(b_copies))
    return result


class _QuantisedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        bias: torch.Tensor | None,
        layout: Layout,
        tiles: tuple[bool, bool],
        *parts: torch.Tensor | None,
    ) -> torch.Tensor:
        a_copies, b_copies = _assembled(parts[:4], tiles[0]), _assembled(parts[4:], tiles[1])
        # of each matrix the copy that the forward does not read, which may be the same one
        kept_a, kept_b = 1 if layout.trans_a else 0, 0 if layout.trans_b else 1
        ctx.save_for_backward(*parts[2 * kept_a : 2 * kept_a + 2], *parts[4 + 2 * kept_b : 6 + 2 * kept_b])
        ctx.layout, ctx.tiles = layout, tiles
        ctx.dtypes = a.dtype, b.dtype, None if bias is None else bias.dtype
        # an attribute: saved tensors are checked for writes, and other micro-batches write main_grad in between
        ctx.weight = b if layout.accumulate else None
        operands = forward_operands(a_copies, b_copies, *layout.flags())
        return product(operands, layout.scheme, bias, layout.out_dtype, "forward")

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        layout: Layout = ctx.layout
        a_data, a_scale, b_data, b_scale = ctx.saved_tensors
        a_dtype, b_dtype, bias_dtype = ctx.dtypes
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        grad_a = grad_b = grad_bias = None
        if need_a or need_b:
            trans_a, trans_b, scheme = layout.flags()
            gradient = quantize(grad_out, scheme, "gradient", (need_b, need_a), trans_a, trans_b)
            if need_a:
                b = Copy(b_data, b_scale, ctx.tiles[1])
                grad_a = product(dgrad_operands(gradient, (b, b), *layout.flags()), scheme, None, a_dtype, "dgrad")
            if need_b:
                a = Copy(a_data, a_scale, ctx.tiles[0])
                operands = wgrad_operands(gradient, (a, a), *layout.flags())
                if ctx.weight is None:
                    grad_b = product(operands, scheme, None, b_dtype, "wgrad")
                else:
                    accumulate_product(ctx.weight.main_grad, operands, scheme)
                    # hooks on the parameter run only if it gets a gradient; zeros, so that adding it adds nothing
                    grad_b = torch.zeros_like(ctx.weight)
        if need_bias:
            grad_bias = grad_out.sum(0, dtype=torch.float32).to(bias_dtype)
        return (grad_a, grad_b, grad_bias, *(None,) * 10)
