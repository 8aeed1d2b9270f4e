# SPDX-License-Identifier: MIT
"""Gradients of registered ops, under every transform of torch: right, or refused by the name of the public function.

`torch.library.register_autograd` answers backward and compilation. Under torch.func its gradient fails with a message
about autograd.Function, and forward-mode differentiation gives zero tangents without a word. The functions here
register the same callables so that `torch.func.grad`, `vjp`, `jacrev` and `vmap` (by a loop) are right, and what has no
derivative says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from turbo_core.errors import UnsupportedError
from turbo_core.requirements import require_torch

if TYPE_CHECKING:
    import torch

__all__ = ["refuse_gradient", "register_gradient", "without_gradient"]


def register_gradient(
    library: torch.library.Library,
    op: str,
    backward: Callable[..., Any],
    *,
    setup_context: Callable[[Any, tuple[Any, ...], Any], None],
    name: str,
) -> None:
    """Give ``op`` a gradient.

    Args:
        library: the library that defines ``op`` (all its arguments positional), which holds the registration.
        op: ``"turbo_x::op"``.
        backward: (ctx, *gradients of the outputs) -> a gradient or None for each argument.
        setup_context: (ctx, arguments, outputs) -> None; saves what ``backward`` reads.
        name: the public function, for messages.
    """
    torch = require_torch()
    namespace, opname = op.split("::")
    overload = getattr(getattr(torch.ops, namespace), opname).default
    below_autograd = torch._C._AutoDispatchBelowAutograd
    after_autograd = torch._C._after_autograd_keyset

    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise UnsupportedError(
            f"{name}: forward-mode derivatives (torch.func.jvp, jacfwd, dual numbers) are not supported; "
            "reverse mode (backward, torch.func.grad, vjp, jacrev) is"
        )

    def forward(ctx: Any, keyset: Any, *arguments: Any) -> Any:
        with below_autograd():
            outputs = overload.redispatch(keyset & after_autograd, *arguments)
        setup_context(ctx, arguments, outputs)  # not the class's own: `apply` would bind arguments through `inspect`
        return outputs

    def backward_after_keyset(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        ctx.needs_input_grad = needs[1:]
        try:
            found = backward(ctx, *gradients)
        finally:
            ctx.needs_input_grad = needs
        return (None, *found) if isinstance(found, tuple) else (None, found)

    def forward_in_layer(ctx: Any, keyset: Any, *arguments: Any) -> Any:
        # `apply` turns recording off, for the layers below as well, which are to record
        with torch.enable_grad(), torch.autograd.forward_ad._set_fwd_grad_enabled(True):
            return forward(ctx, keyset, *arguments)

    members = {"backward": staticmethod(backward_after_keyset), "jvp": staticmethod(jvp)}
    function: Any = type(
        f"{namespace}_{opname}", (torch.autograd.Function,), {**members, "forward": staticmethod(forward)}
    )
    # torch.func calls the op once for each of its layers; `apply` of this class takes care of one
    layer: Any = type(
        f"{namespace}_{opname}_layer",
        (torch.autograd.function._SingleLevelFunction,),
        {**members, "forward": staticmethod(forward_in_layer)},
    )

    def with_gradient(keyset: Any, *arguments: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            from torch._functorch.utils import enable_single_level_autograd_function

            with enable_single_level_autograd_function():
                return layer.apply(keyset, *arguments)
        forward_mode = torch.autograd.forward_ad._current_level >= 0
        if forward_mode or (torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)):
            return function.apply(keyset, *arguments)
        with below_autograd():
            return overload.redispatch(keyset & after_autograd, *arguments)

    library.impl(opname, with_gradient, "Autograd", with_keyset=True)


def refuse_gradient(library: torch.library.Library, op: str, *, name: str, what: str = "second derivatives") -> None:
    """Differentiating through ``op`` is an UnsupportedError: ``name`` does not support ``what``."""

    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        raise UnsupportedError(f"{name}: {what} are not supported; differentiate it once")

    register_gradient(library, op, backward, setup_context=_nothing, name=name)


def without_gradient(library: torch.library.Library, op: str) -> None:
    """``op`` is a constant of its arguments: nothing is recorded, as if they had been detached."""
    torch = require_torch()
    namespace, opname = op.split("::")
    overload = getattr(getattr(torch.ops, namespace), opname).default

    def run(keyset: Any, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

    library.impl(opname, run, "Autograd", with_keyset=True)


def _nothing(ctx: Any, inputs: Any, output: Any) -> None:
    return None
