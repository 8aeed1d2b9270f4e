# SPDX-License-Identifier: MIT
"""An expert MLP as one node of autograd, in any precision, its weight gradients also added to ``main_grad``.

What is saved is ``pre``, the first projection before the gate, with what the rules keep; the activation is computed
again from it. The gradients have no gradients in turn, and say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch

from turbo_core.library import no_forward_mode, under_transforms
from turbo_gemm.developer import anchor_of, sources_of, weight_takes_part, without_derivative

__all__ = ["Inputs", "Mlp", "MlpGradients", "MlpRules", "differentiable_mlp"]

Tensors = tuple[torch.Tensor | None, ...]


class Inputs(NamedTuple):
    """The tensors that have gradients; None in the places of those that a backward does not read."""

    x: Any
    w1: Any
    w2: Any
    probs: torch.Tensor | None


class MlpGradients(NamedTuple):
    """Of `Inputs`; None where not wanted, and for a weight whose gradient was added to an ``out``."""

    x: torch.Tensor | None
    w1: torch.Tensor | None
    w2: torch.Tensor | None
    probs: torch.Tensor | None


class MlpRules(NamedTuple):
    """How an MLP is computed; functions of modules, which a compiler can read.

    Attributes:
        forward: (inputs, kept, operands, settings, whether pre is wanted) -> y and pre, None where it is not wanted.
        gradients: (inputs, kept, pre, settings, dy, wanted, dtypes, outs) -> `MlpGradients`; wanted and dtypes are of
            `Inputs`; outs are of w1 and w2: what its gradient is added to, or None.
        reads_inputs: whether the backward reads x, w1 and w2; else ``kept`` has what it reads in their place.
    """

    forward: Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
    gradients: Callable[..., MlpGradients]
    reads_inputs: bool


class Mlp(NamedTuple):
    """An MLP besides its `Inputs`.

    Attributes:
        op: the public function, for messages.
        kept: tensors that both passes read: groups, indices, operands.
        operands: tensors that the forward alone reads.
        settings: whatever else the rules read; no tensors.
        rules: how it is computed.
        weights: those to whose ``main_grad`` the gradients of w1 and w2 are added; None: they have gradients.
        anchors: see `turbo_gemm.developer.anchor_of`.
    """

    op: str
    kept: Tensors
    operands: Tensors
    settings: Any
    rules: MlpRules
    weights: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    anchors: tuple[torch.Tensor, ...] = ()


def differentiable_mlp(inputs: Inputs, mlp: Mlp) -> torch.Tensor:
    """y of ``mlp``. A weight in ``mlp.weights`` gives its values, detached, to ``inputs``."""
    given = (*inputs, *mlp.weights)
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)
    if under_transforms():
        y: torch.Tensor = _GroupedMlpTransformed.apply(*inputs, mlp)[0]
        return y
    if not wanted:
        y, _ = mlp.rules.forward(inputs, mlp.kept, mlp.operands, mlp.settings, False)
        return y
    views = tuple(None if weight is None else weight.view_as(weight) for weight in mlp.weights)
    anchors = tuple(anchor for t in (*inputs, *views) if t is not None for anchor in anchor_of(t))
    y = _GroupedMlp.apply(*inputs[:3], *views, inputs.probs, mlp._replace(anchors=anchors))
    return y


def _dtypes(inputs: Inputs) -> tuple[torch.dtype | None, ...]:
    return tuple(None if t is None else t.dtype for t in inputs)


class _GroupedMlp(torch.autograd.Function):
    """The weights are attributes of ctx: saved tensors are checked for writes since the forward, and ``main_grad`` is
    written by other micro-batches in between."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        view1: torch.Tensor | None,
        view2: torch.Tensor | None,
        probs: torch.Tensor | None,
        mlp: Mlp,
    ) -> torch.Tensor:
        inputs = Inputs(x, w1, w2, probs)
        y, pre = mlp.rules.forward(inputs, mlp.kept, mlp.operands, mlp.settings, True)
        need_x, need_w1, need_w2, need_v1, need_v2, need_probs, _ = ctx.needs_input_grad
        need_w1 = need_w1 or need_v1
        reads = mlp.rules.reads_inputs
        read = (reads and need_w1, reads and need_x, reads and (need_x or need_w1 or need_probs))
        saved = (tensor if wanted else None for tensor, wanted in zip(inputs, read))
        ctx.save_for_backward(*saved, probs, pre, *mlp.kept)
        ctx.mlp, ctx.dtypes = mlp._replace(kept=(), operands=()), _dtypes(inputs)
        ctx.views = (view1 is not None, view2 is not None)
        return y

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        x, w1, w2, probs, pre, *kept = ctx.saved_tensors
        mlp: Mlp = ctx.mlp
        need_x, need_w1, need_w2, need_v1, need_v2, need_probs, _ = ctx.needs_input_grad
        places = (3, 3 + ctx.views[0])  # among the tensor inputs
        into = [need and weight_takes_part(ctx, at) for need, at in zip((need_v1, need_v2), places)]
        outs = [weight.main_grad if add else None for weight, add in zip(mlp.weights, into)]  # type: ignore[union-attr]
        wanted = Inputs(need_x, need_w1 or into[0], need_w2 or into[1], need_probs)
        with torch.no_grad():
            found = mlp.rules.gradients(
                Inputs(x, w1, w2, probs), tuple(kept), pre, mlp.settings, grad_out, wanted, ctx.dtypes, outs
            )
        # hooks on a parameter run only if it gets a gradient; zeros, so that who adds it up adds nothing
        zeros = [torch.zeros_like(weight) if add else None for weight, add in zip(mlp.weights, into)]  # type: ignore[arg-type]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            count = 3 + sum(ctx.views) + (probs is not None)
            sources = (grad_out, *sources_of(ctx, count, mlp.anchors))
            found = MlpGradients(*(None if g is None else without_derivative(g, mlp.op, *sources) for g in found))
        return found.x, found.w1, found.w2, *zeros, found.probs, None


class _GroupedMlpTransformed(torch.autograd.Function):
    """Likewise under torch.func, which wants forward and saving apart, and where forward-mode derivatives are on.

    All inputs are saved, for a second derivative to find that it leads to them.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, probs: torch.Tensor | None, mlp: Mlp
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y, pre = mlp.rules.forward(Inputs(x, w1, w2, probs), mlp.kept, mlp.operands, mlp.settings, True)
        return y, pre  # type: ignore[return-value]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        *tensors, mlp = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, output[1], *mlp.kept)
        ctx.mlp, ctx.dtypes = mlp._replace(kept=(), operands=()), _dtypes(Inputs(*tensors))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor | None, _: Any) -> tuple[Any, ...]:
        if grad_out is None:
            return None, None, None, None, None
        x, w1, w2, probs, pre, *kept = ctx.saved_tensors
        inputs, mlp = Inputs(x, w1, w2, probs), ctx.mlp
        wanted = Inputs(*ctx.needs_input_grad[:4])
        detached = Inputs(*(None if t is None else t.detach() for t in inputs))
        found = mlp.rules.gradients(
            detached, tuple(kept), pre, mlp.settings, grad_out.detach(), wanted, ctx.dtypes, (None, None)
        )
        sources = (grad_out, *(t for t in inputs if t is not None))
        return *(None if g is None else without_derivative(g, mlp.op, *sources) for g in found), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise no_forward_mode(ctx.mlp.op)
