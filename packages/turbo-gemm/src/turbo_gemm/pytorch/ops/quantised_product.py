# SPDX-License-Identifier: MIT
"""A product of two quantised operands, dense or of groups, differentiable in the tensors as they were before.

What is saved for the backward are the 8- or 4-bit operands that the backward reads, and only those that it will read.
The gradients, made of a quantised gradient of C, have no gradients in turn, and say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch

from turbo_core.library import no_derivative, no_forward_mode, under_transforms
from turbo_gemm.pytorch.ops.main_grad import weight_takes_part

__all__ = [
    "Gradients",
    "Product",
    "Rules",
    "anchor_of",
    "differentiable_product",
    "sources_of",
    "without_derivative",
]

Gradients = tuple[torch.Tensor | None, torch.Tensor | None]
Kept = tuple[torch.Tensor | None, ...]


class Product(NamedTuple):
    """A product that is to be differentiated, besides the tensors that have gradients.

    Attributes:
        op: the public function, for messages.
        forward: what ``rules.multiply`` takes: the call of C without bias.
        kept: what the gradients read; None in the places of what they will not.
        settings: whatever else the rules read; no tensors.
        rules: how it is computed.
        weight: the tensor to whose ``main_grad`` the gradient of b, a view of it, is added; None: b has a gradient.
        anchors: see `anchor_of`.
    """

    op: str
    forward: Any
    kept: Kept
    settings: Any
    rules: Rules
    weight: torch.Tensor | None
    anchors: tuple[torch.Tensor, ...] = ()


class Rules(NamedTuple):
    """How products of a kind are computed; functions of modules, which a compiler can read.

    Attributes:
        multiply: (forward, bias, settings) -> C.
        gradients: (kept, settings, dC, whether dA and dB are wanted, their dtypes, out) -> dA and dB, None where not
            wanted; dB is added to ``out`` where that is given, and then None.
        bias_gradient: (kept, settings, dC, dtype) -> dbias.
    """

    multiply: Callable[..., torch.Tensor]
    gradients: Callable[..., Gradients]
    bias_gradient: Callable[..., torch.Tensor]


def differentiable_product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, product: Product
) -> torch.Tensor:
    """C of ``product``; a and b are not read, they are what gradients belong to.

    Where ``product.weight`` is given, b is a view of it, whose gradient is added to ``weight.main_grad``.
    """
    a = a.view_as(a) if a is b else a  # a compiler takes no tensor twice
    product = product._replace(anchors=(*anchor_of(a), *anchor_of(b)))
    function = _QuantisedProductTransformed if under_transforms() else _QuantisedProduct
    result: torch.Tensor = function.apply(a, b, bias, product)
    return result


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def anchor_of(source: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """An empty tensor that leads to the source in the graph: a backward that keeps its graph depends on it.

    The source is not saved, and its memory must not be. A leaf is found without (`sources_of`), and a compiled backward
    cannot be differentiated in any case.
    """
    if torch.compiler.is_compiling() or source.is_leaf or not torch.is_grad_enabled():
        return ()
    return (source[:0].clone(),) if type(source) in _PLAIN else ()


def sources_of(ctx: Any, count: int, anchors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """What the first ``count`` tensor inputs of a node depend on, for a second derivative to find."""
    nodes = (node for node, _ in ctx.next_functions[:count])
    leaves = (node.variable for node in nodes if hasattr(node, "variable"))
    return *anchors, *(leaf for leaf in leaves if type(leaf) in _PLAIN)


def without_derivative(gradient: torch.Tensor, op: str, *sources: torch.Tensor) -> torch.Tensor:
    """The gradient, to differentiate which, by any of the ``sources``, is refused in the name of ``op``."""
    result: torch.Tensor = _Once.apply(gradient, op, *sources)
    return result


def _save(
    ctx: Any, product: Product, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, *more: torch.Tensor
) -> None:
    """What is kept, after ``more``, and the rest without tensors."""
    ctx.save_for_backward(*more, *product.kept)
    # The weight is an attribute: saved tensors are checked for writes, and other micro-batches write main_grad in
    # between.
    ctx.product = product._replace(forward=None, kept=())
    ctx.dtypes = a.dtype, b.dtype, None if bias is None else bias.dtype


def _multiply(bias: torch.Tensor | None, product: Product) -> torch.Tensor:
    return product.rules.multiply(product.forward, bias, product.settings)


def _gradients(ctx: Any, grad_out: torch.Tensor, kept: Kept, need_a: bool, need_b: bool) -> Gradients:
    """dA and dB, None where not needed; dB is zeros where it went into ``main_grad``."""
    if not need_a and not need_b:
        return None, None
    product, dtypes = ctx.product, ctx.dtypes[:2]
    weight = product.weight if need_b else None
    if weight is None:
        found: Gradients = product.rules.gradients(kept, product.settings, grad_out, (need_a, need_b), dtypes, None)
        return found
    with torch.no_grad():
        grad_a, _ = product.rules.gradients(
            kept, product.settings, grad_out, (need_a, need_b), dtypes, weight.main_grad
        )
    # hooks on the parameter run only if it gets a gradient; zeros, so that adding it adds nothing
    return grad_a, torch.zeros(weight.shape, dtype=dtypes[1], device=grad_out.device)


class _QuantisedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, product: Product
    ) -> torch.Tensor:
        _save(ctx, product, a, b, bias)
        return _multiply(bias, product)

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        need_a, need_b, need_bias, _ = ctx.needs_input_grad
        need_b = need_b and (ctx.product.weight is None or weight_takes_part(ctx, 1))
        kept = ctx.saved_tensors
        grad_a, grad_b = _gradients(ctx, grad_out.detach(), kept, need_a, need_b)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            op, sources = ctx.product.op, (grad_out, *sources_of(ctx, 2, ctx.product.anchors))
            grad_a, grad_b = (None if g is None else without_derivative(g, op, *sources) for g in (grad_a, grad_b))
        return grad_a, grad_b, _bias_gradient(ctx, kept, grad_out) if need_bias else None, None


def _bias_gradient(ctx: Any, kept: Kept, grad_out: torch.Tensor) -> torch.Tensor:
    product: Product = ctx.product
    return product.rules.bias_gradient(kept, product.settings, grad_out, ctx.dtypes[2])


class _QuantisedProductTransformed(torch.autograd.Function):
    """Likewise under torch.func, which wants forward and saving apart, and where forward-mode derivatives are on.

    a and b are saved as well, for a second derivative to find that it leads to them.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, product: Product) -> torch.Tensor:
        return _multiply(bias, product)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        a, b, bias, product = inputs
        _save(ctx, product, a, b, bias, a, b)
        ctx.set_materialize_grads(False)  # torch cannot write the zero tangents of FP4 payloads

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor | None) -> tuple[Any, ...]:
        if grad_out is None:
            return None, None, None, None
        a, b, *kept = ctx.saved_tensors
        need_a, need_b, need_bias, *_ = ctx.needs_input_grad
        found = _gradients(ctx, grad_out.detach(), tuple(kept), need_a, need_b)
        grad_a, grad_b = (None if g is None else without_derivative(g, ctx.product.op, grad_out, a, b) for g in found)
        return grad_a, grad_b, _bias_gradient(ctx, tuple(kept), grad_out) if need_bias else None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise no_forward_mode(ctx.product.op)


class _Once(torch.autograd.Function):
    """A gradient that depends on ``sources`` in a way that has no derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: torch.Tensor, op: str, *sources: torch.Tensor) -> torch.Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.op = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> NoReturn:
        raise no_derivative(ctx.op)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise no_derivative(ctx.op)
