# SPDX-License-Identifier: MIT
"""A product of quantised matrices, differentiable in the matrices as they were before.

What is saved for the backward are the 8- or 4-bit copies that the backward reads, and only those that it will read.
The gradients, made of a quantised gradient of C, have no gradients in turn, and say so.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch

from turbo_core.library import no_derivative, no_forward_mode, under_transforms
from turbo_gemm.pytorch.ops.gemm_gradients import bias_gradient
from turbo_gemm.pytorch.ops.main_grad import Owner, weight_takes_part
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
    op: str,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    a_copies: Copies,
    b_copies: Copies,
    scheme: Scheme,
    out_dtype: torch.dtype,
    weight: torch.Tensor | None,
) -> torch.Tensor:
    """op(a) op(b) + bias from the copies; a and b themselves are not read, they are what gradients belong to.

    Where ``weight`` is given, b is a view of it, whose gradient is added to ``weight.main_grad``. ``op`` is the public
    function, for messages.
    """
    x, y, _, _ = forward_operands(a_copies, b_copies, scheme)
    a_parts, a_kind = _parts(x, a_copies[1 - scheme.contraction("a")])
    b_parts, b_kind = _parts(y, b_copies[1 - scheme.contraction("b")])
    b, a, *parts = _distinct(b, a, *a_parts, *b_parts)
    settings = _Settings(op, scheme, out_dtype, a_kind, b_kind, _anchors(a, b))
    function = _QuantisedProductTransformed if under_transforms() else _QuantisedProduct
    result: torch.Tensor = function.apply(a, b, bias, None if weight is None else Owner(weight), settings, *parts)
    return result


def _distinct(*tensors: Any) -> list[Any]:
    """The tensors, each that occurs again as a view of itself: a compiler takes no tensor twice."""
    distinct: list[Any] = []
    for tensor in tensors:
        again = tensor is not None and any(tensor is other for other in distinct)
        distinct.append(tensor.view_as(tensor) if again else tensor)
    return distinct


def _anchors(*sources: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Empty tensors that lead to a and b in the graph: a backward that keeps its graph depends on them.

    Neither is saved, and memory of theirs must not be. A compiled backward cannot be differentiated in any case.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return ()
    plain = (torch.Tensor, torch.nn.Parameter)
    return tuple(tensor[:0].clone() for tensor in sources if tensor.requires_grad and type(tensor) in plain)


class _Settings(NamedTuple):
    """What a product is besides its tensors.

    Attributes:
        op: the public function.
        anchors: see `_anchors`.
    """

    op: str
    scheme: Scheme
    out_dtype: torch.dtype
    a_kind: _Kind
    b_kind: _Kind
    anchors: tuple[torch.Tensor, ...]


def _multiply(bias: torch.Tensor | None, settings: _Settings, parts: tuple[Any, ...]) -> torch.Tensor:
    """C from the copies for the forward."""
    scheme = settings.scheme
    x, y = Copy(*parts[0:2], settings.a_kind.tiles), Copy(*parts[4:6], settings.b_kind.tiles)
    return product(forward_operands((x, x), (y, y), scheme), scheme, bias, settings.out_dtype, "forward")


def _kept(settings: _Settings, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Payloads and scales that the backward reads: a's and b's."""
    a, b = (0 if settings.a_kind.shared else 2), (4 if settings.b_kind.shared else 6)
    return *parts[a : a + 2], *parts[b : b + 2]


class _QuantisedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        bias: torch.Tensor | None,
        owner: Owner | None,
        settings: _Settings,
        *parts: Any,
    ) -> torch.Tensor:
        ctx.save_for_backward(*_kept(settings, parts))
        ctx.settings, ctx.dtypes = settings, (a.dtype, b.dtype, None if bias is None else bias.dtype)
        # an attribute: saved tensors are checked for writes, and other micro-batches write main_grad in between
        ctx.weight = None if owner is None else owner.weight
        return _multiply(bias, settings, parts)

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        need_b = need_b and (ctx.weight is None or weight_takes_part(ctx, 1))
        grad_a, grad_b = _gradients(ctx, grad_out.detach(), ctx.saved_tensors, need_a, need_b)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            settings = ctx.settings
            sources = (grad_out, *settings.anchors)
            grad_a, grad_b = (None if g is None else _Once.apply(g, settings.op, *sources) for g in (grad_a, grad_b))
        return (grad_a, grad_b, bias_gradient(grad_out, ctx.dtypes[2]) if need_bias else None, *(None,) * 10)


def _gradients(
    ctx: Any, grad_out: torch.Tensor, kept: tuple[Any, ...], need_a: bool, need_b: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """dA and dB, None where not needed; dB is zeros where it went into ``main_grad``."""
    if not need_a and not need_b:
        return None, None
    _, scheme, _, a_kind, b_kind, _ = ctx.settings
    a, b = Copy(*kept[:2], a_kind.tiles), Copy(*kept[2:], b_kind.tiles)
    dtype_a, dtype_b, _ = ctx.dtypes
    gradient = quantize(grad_out, scheme, "gradient", (need_b, need_a))
    grad_a = grad_b = None
    if need_a:
        grad_a = product(dgrad_operands(gradient, (b, b), scheme), scheme, None, dtype_a, "dgrad")
    if need_b:
        operands = wgrad_operands(gradient, (a, a), scheme)
        if ctx.weight is None:
            return grad_a, product(operands, scheme, None, dtype_b, "wgrad")
        with torch.no_grad():
            accumulate_product(ctx.weight.main_grad, operands, scheme)
        # hooks on the parameter run only if it gets a gradient; zeros, so that adding it adds nothing
        grad_b = torch.zeros(ctx.weight.shape, dtype=dtype_b, device=grad_out.device)
    return grad_a, grad_b


class _QuantisedProductTransformed(torch.autograd.Function):
    """Likewise under torch.func, which wants forward and saving apart, and where forward-mode derivatives are on.

    a and b are saved as well, for a second derivative to find that it leads to them.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        a: torch.Tensor,
        b: torch.Tensor,
        bias: torch.Tensor | None,
        owner: Owner | None,
        settings: _Settings,
        *parts: Any,
    ) -> torch.Tensor:
        return _multiply(bias, settings, parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        a, b, bias, _, settings, *parts = inputs
        ctx.save_for_backward(a, b, *_kept(settings, tuple(parts)))
        ctx.settings, ctx.dtypes = settings, (a.dtype, b.dtype, None if bias is None else bias.dtype)
        ctx.weight = None
        ctx.set_materialize_grads(False)  # torch cannot write the zero tangents of FP4 payloads

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor | None) -> tuple[Any, ...]:
        if grad_out is None:
            return (None,) * 13
        a, b, *kept = ctx.saved_tensors
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        found = _gradients(ctx, grad_out.detach(), tuple(kept), need_a, need_b)
        grad_a, grad_b = (None if g is None else _Once.apply(g, ctx.settings.op, grad_out, a, b) for g in found)
        return (grad_a, grad_b, bias_gradient(grad_out, ctx.dtypes[2]) if need_bias else None, *(None,) * 10)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise no_forward_mode(ctx.settings.op)


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
