# SPDX-License-Identifier: MIT
"""Registered ops with gradients that are right under every transform of torch, or refused.

`registered_op` answers everything that sees an op from outside: `torch.compile`, export, fake tensors, dispatch modes,
tensor subclasses, torch.func. Ops are made with `turbo_core.library`, whose calls go past it in eager mode.

`torch.library.register_autograd` is not used: under torch.func its gradient fails with a message about
autograd.Function, and forward-mode differentiation gives zero tangents without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from turbo_core.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

__all__ = [
    "Gradient",
    "no_derivative",
    "no_forward_mode",
    "registered_op",
    "under_transforms",
]


def under_transforms() -> bool:
    """Whether a transform of torch.func, or a level of forward-mode differentiation, is active."""
    import torch

    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def no_derivative(name: str, what: str = "second derivatives") -> UnsupportedError:
    """The refusal of ``what`` by the public function ``name``."""
    return UnsupportedError(f"{name}: {what} are not supported; differentiate it once")


def no_forward_mode(name: str) -> UnsupportedError:
    """The refusal of forward-mode differentiation by the public function ``name``."""
    return UnsupportedError(
        f"{name}: forward-mode derivatives (torch.func.jvp, jacfwd, dual numbers) are not supported; "
        "reverse mode (backward, torch.func.grad, vjp, jacrev) is"
    )


class Gradient(NamedTuple):
    """How an op is differentiated.

    Attributes:
        backward: (ctx, *gradients of the outputs) -> a gradient or None for each argument. Made of registered ops, it
            can be differentiated in turn.
        setup_context: (ctx, arguments, outputs) -> None; saves what ``backward`` reads.
        name: the public function, for messages.
    """

    backward: Callable[..., Any]
    setup_context: Callable[[Any, tuple[Any, ...], Any], None]
    name: str


def registered_op(
    library: torch.library.Library,
    schema: str,
    implementation: Callable[..., Any],
    fake: Callable[..., Any],
    gradient: Gradient | None = None,
) -> Any:
    """Define an op in ``library`` and return its overload.

    Args:
        library: of the wheel's name space; it holds the registration.
        schema: ``"op(Tensor x, float eps) -> Tensor"``; all arguments are positional and have no defaults.
        implementation: computes it, on any device; it is called with nothing recorded.
        fake: the same for tensors without data.
        gradient: how it is differentiated; None: it is a constant of its arguments, as if they had been detached.
    """
    import torch

    opname = schema.split("(")[0]
    library.define(schema, tags=torch.Tag.pt2_compliant_tag)
    library.impl(opname, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{library.ns}::{opname}", fake, lib=library)
    overload = getattr(getattr(torch.ops, library.ns), opname).default
    if gradient is None:
        library.impl(opname, _constant(overload), "Autograd", with_keyset=True)
        return overload
    library.impl(opname, _differentiable(overload, gradient), "Autograd", with_keyset=True)
    return overload


# --- the registered op ------------------------------------------------------------------------------------------------


def _function(base: type, overload: Any, name: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> type:
    """An autograd.Function of the op, without forward mode."""

    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise no_forward_mode(name)

    members = {"forward": forward, "backward": backward, "jvp": jvp}
    return type(
        overload.name().replace("::", "_"), (base,), {name: staticmethod(member) for name, member in members.items()}
    )


def _constant(overload: Any) -> Callable[..., Any]:
    import torch

    def run(keyset: Any, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

    return run


def _differentiable(overload: Any, gradient: Gradient) -> Callable[..., Any]:
    import torch

    constant = _constant(overload)

    def forward(ctx: Any, keyset: Any, *arguments: Any) -> Any:
        outputs = constant(keyset, *arguments)
        gradient.setup_context(ctx, arguments, outputs)  # as a method `apply` would bind arguments through `inspect`
        return outputs

    def forward_in_layer(ctx: Any, keyset: Any, *arguments: Any) -> Any:
        # `apply` turns recording off, for the layers below as well, which are to record
        with torch.enable_grad(), torch.autograd.forward_ad._set_fwd_grad_enabled(True):
            return forward(ctx, keyset, *arguments)

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        ctx.needs_input_grad = needs[1:]  # the key set is no argument
        try:
            found = gradient.backward(ctx, *gradients)
        finally:
            ctx.needs_input_grad = needs
        return (None, *found) if isinstance(found, tuple) else (None, found)

    function: Any = _function(torch.autograd.Function, overload, gradient.name, forward, backward)
    # torch.func calls the op once for each of its layers; `apply` of this class takes care of one
    single = torch.autograd.function._SingleLevelFunction
    layer: Any = _function(single, overload, gradient.name, forward_in_layer, backward)

    def run(keyset: Any, *arguments: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            from torch._functorch.utils import enable_single_level_autograd_function

            with enable_single_level_autograd_function():
                return layer.apply(keyset, *arguments)
        forward_mode = torch.autograd.forward_ad._current_level >= 0
        if forward_mode or (torch.is_grad_enabled() and _any_requires_grad(arguments)):
            return function.apply(keyset, *arguments)
        return constant(keyset, *arguments)

    return run


def _any_requires_grad(arguments: tuple[Any, ...]) -> bool:
    import torch

    return any(value.requires_grad for value in arguments if isinstance(value, torch.Tensor))
