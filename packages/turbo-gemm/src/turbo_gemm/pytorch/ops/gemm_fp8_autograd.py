# SPDX-License-Identifier: MIT
"""A product of quantised matrices, differentiable in the matrices as they were before.

What is saved for the backward are the 8- or 4-bit operands that the backward reads, and only those that it will read.
The gradients, made of a quantised gradient of C, have no gradients in turn, and say so.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch

from turbo_core.library import OpLibrary, no_derivative, no_forward_mode, under_transforms
from turbo_gemm.calls import GemmFp8Call, Operand, specs
from turbo_gemm.pytorch.kernels.gemm_fp8_impl import GemmFp4Dispatcher, GemmFp8Dispatcher
from turbo_gemm.pytorch.ops.gemm_fp8_quantize import (
    Quantised,
    Scheme,
    dgrad_call,
    forward_call,
    quantize,
    wgrad_call,
)
from turbo_gemm.pytorch.ops.gemm_gradients import bias_gradient
from turbo_gemm.pytorch.ops.main_grad import weight_takes_part

__all__ = ["multiply", "quantised_product"]

# The registered ops have no gradient of their own: it is taken with respect to the matrices before quantisation.
_library = OpLibrary("turbo_gemm")
_fp8 = _library.op("gemm_fp8", GemmFp8Call, GemmFp8Dispatcher.run, specs, omits=("out", "preshuffled"))
_fp4 = _library.op("gemm_fp4", GemmFp8Call, GemmFp4Dispatcher.run, specs, omits=("out",))
_fp8_into = _library.op("gemm_fp8_accumulate", GemmFp8Call, GemmFp8Dispatcher.run, None, writes="out")
_fp4_into = _library.op("gemm_fp4_accumulate", GemmFp8Call, GemmFp4Dispatcher.run, None, writes="out")


def multiply(call: GemmFp8Call, fp4: bool) -> torch.Tensor:
    """C of the call, through the registered op; nothing where it is added to ``out``."""
    if call.out is not None:
        c: torch.Tensor = (_fp4_into if fp4 else _fp8_into)(call)
        return c
    c = (_fp4 if fp4 else _fp8)(call)
    return c


class _Product(NamedTuple):
    """A product that is to be differentiated, besides the tensors that have gradients.

    Attributes:
        op: the public function.
        forward: C = A B without bias.
        a, b: what the gradients of b and of a read; None where they are not wanted.
        scheme: how the gradient of C is quantised.
        weight: the tensor to whose ``main_grad`` the gradient of b, a view of it, is added; None: b has a gradient.
        anchors: see `_anchor`.
    """

    op: str
    forward: GemmFp8Call
    a: Operand | None
    b: Operand | None
    scheme: Scheme
    weight: torch.Tensor | None
    anchors: tuple[torch.Tensor, ...]


def quantised_product(
    op: str,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    quantised_a: Quantised,
    quantised_b: Quantised,
    scheme: Scheme,
    out_dtype: torch.dtype,
    weight: torch.Tensor | None,
) -> torch.Tensor:
    """op(a) op(b) + bias from the quantised matrices; a and b are not read, they are what gradients belong to.

    Where ``weight`` is given, b is a view of it, whose gradient is added to ``weight.main_grad``. ``op`` is the public
    function, for messages.
    """
    forward = forward_call(quantised_a, quantised_b, scheme, None, out_dtype)
    a = a.view_as(a) if a is b else a  # a compiler takes no tensor twice
    kept_a, kept_b = quantised_a[1 - scheme.contraction("a")], quantised_b[1 - scheme.contraction("b")]
    product = _Product(op, forward, kept_a, kept_b, scheme, weight, (*_anchor(a), *_anchor(b)))
    function = _QuantisedProductTransformed if under_transforms() else _QuantisedProduct
    result: torch.Tensor = function.apply(a, b, bias, product)
    return result


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _anchor(source: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """An empty tensor that leads to the source in the graph: a backward that keeps its graph depends on it.

    The source is not saved, and its memory must not be. A leaf is found without (`_sources`), and a compiled backward
    cannot be differentiated in any case.
    """
    if torch.compiler.is_compiling() or source.is_leaf or not torch.is_grad_enabled():
        return ()
    return (source[:0].clone(),) if type(source) in _PLAIN else ()


def _sources(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What dA and dB depend on, for a second derivative to find."""
    nodes = (node for node, _ in ctx.next_functions[:2])
    leaves = (node.variable for node in nodes if hasattr(node, "variable"))
    return grad_out, *ctx.product.anchors, *(leaf for leaf in leaves if type(leaf) in _PLAIN)


def _save(ctx: Any, product: _Product, dtypes: tuple[torch.dtype | None, ...], *more: torch.Tensor) -> None:
    """Tensors of the kept operands, after ``more``, and the rest without tensors."""
    kept = [tensor for x in (product.a, product.b) if x is not None for tensor in x[:2]]
    ctx.save_for_backward(*more, *kept)
    ctx.tiles = tuple(None if x is None else x.tiles for x in (product.a, product.b))
    # The weight is an attribute: saved tensors are checked for writes, and other micro-batches write main_grad in
    # between.
    ctx.product, ctx.dtypes = product._replace(forward=None, a=None, b=None), dtypes  # type: ignore[arg-type]


def _multiply(bias: torch.Tensor | None, product: _Product) -> torch.Tensor:
    return multiply(product.forward._replace(bias=bias), product.scheme.fp4)


def _gradients(
    ctx: Any, grad_out: torch.Tensor, kept: tuple[torch.Tensor, ...], need_a: bool, need_b: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """dA and dB, None where not needed; dB is zeros where it went into ``main_grad``."""
    if not need_a and not need_b:
        return None, None
    product, (dtype_a, dtype_b, _), (tiles_a, tiles_b) = ctx.product, ctx.dtypes, ctx.tiles
    scheme, weight = product.scheme, product.weight
    gradient = quantize(grad_out, scheme, "gradient", (need_b, need_a))
    grad_a = grad_b = None
    if need_a:
        b = Operand(kept[-2], kept[-1], tiles=tiles_b)
        grad_a = multiply(dgrad_call(gradient, (b, b), scheme, dtype_a), scheme.fp4)
    if need_b:
        a = Operand(kept[0], kept[1], tiles=tiles_a)
        if weight is None:
            return grad_a, multiply(wgrad_call(gradient, (a, a), scheme, dtype_b), scheme.fp4)
        with torch.no_grad():
            out = weight.main_grad
            multiply(wgrad_call(gradient, (a, a), scheme, out.dtype, out), scheme.fp4)
        # hooks on the parameter run only if it gets a gradient; zeros, so that adding it adds nothing
        grad_b = torch.zeros(weight.shape, dtype=dtype_b, device=grad_out.device)
    return grad_a, grad_b


class _QuantisedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, product: _Product
    ) -> torch.Tensor:
        _save(ctx, product, (a.dtype, b.dtype, None if bias is None else bias.dtype))
        return _multiply(bias, product)

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        need_a, need_b, need_bias, _ = ctx.needs_input_grad
        need_b = need_b and (ctx.product.weight is None or weight_takes_part(ctx, 1))
        grad_a, grad_b = _gradients(ctx, grad_out.detach(), ctx.saved_tensors, need_a, need_b)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            op, sources = ctx.product.op, _sources(ctx, grad_out)
            grad_a, grad_b = (None if g is None else _Once.apply(g, op, *sources) for g in (grad_a, grad_b))
        return grad_a, grad_b, bias_gradient(grad_out, ctx.dtypes[2]) if need_bias else None, None


class _QuantisedProductTransformed(torch.autograd.Function):
    """Likewise under torch.func, which wants forward and saving apart, and where forward-mode derivatives are on.

    a and b are saved as well, for a second derivative to find that it leads to them.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, product: _Product) -> torch.Tensor:
        return _multiply(bias, product)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        a, b, bias, product = inputs
        _save(ctx, product, (a.dtype, b.dtype, None if bias is None else bias.dtype), a, b)
        ctx.set_materialize_grads(False)  # torch cannot write the zero tangents of FP4 payloads

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor | None) -> tuple[Any, ...]:
        if grad_out is None:
            return None, None, None, None
        a, b, *kept = ctx.saved_tensors
        need_a, need_b, need_bias, *_ = ctx.needs_input_grad
        found = _gradients(ctx, grad_out.detach(), tuple(kept), need_a, need_b)
        grad_a, grad_b = (None if g is None else _Once.apply(g, ctx.product.op, grad_out, a, b) for g in found)
        return grad_a, grad_b, bias_gradient(grad_out, ctx.dtypes[2]) if need_bias else None, None

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
