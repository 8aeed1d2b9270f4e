# SPDX-License-Identifier: MIT
"""What the three layers have in common: how a ``torch.nn.Linear`` becomes one, or why not, and fused accumulation.

The module changes its class and nothing else. That is the same layer only where its class is plain Linear's and its
parameters are its own; a layer that something else computes, wraps or rebuilds is refused.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch

from turbo_core import UnsupportedError

__all__ = ["TurboLinear", "converted"]


class TurboLinear(torch.nn.Linear):
    """A ``torch.nn.Linear`` that one of our products computes.

    Attributes:
        fuse_wgrad_accumulation: whether the gradient of the weight is added to ``weight.main_grad`` by its GEMM.
    """

    fuse_wgrad_accumulation: bool = False

    def _check(self, x: torch.Tensor) -> None:
        """x is a tensor of the width that the layer takes."""
        if not isinstance(x, torch.Tensor):
            raise UnsupportedError(f"{type(self).__name__}: x is {x!r}; a tensor [..., {self.in_features}] is accepted")
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            name = type(self).__name__
            raise UnsupportedError(f"{name}: x has shape {list(x.shape)}; [..., {self.in_features}] is accepted")

    def _options(self, **options: Any) -> dict[str, Any]:
        """``options`` of the product, and those of fused accumulation where the weight gets a gradient."""
        weight = self.weight
        if not self.fuse_wgrad_accumulation or not weight.requires_grad or not torch.is_grad_enabled():
            return options
        if not hasattr(weight, "main_grad") or not hasattr(weight, "grad_added_to_main_grad"):
            raise UnsupportedError(
                f"{type(self).__name__}: fuse_wgrad_accumulation=True needs weight.main_grad (a tensor of the weight's "
                "shape) and weight.grad_added_to_main_grad; this weight lacks them"
            )
        return {**options, "fuse_bgrad_accum_pattern": "megatron"}

    def extra_repr(self) -> str:
        fused = ", fuse_wgrad_accumulation=True" if self.fuse_wgrad_accumulation else ""
        return super().extra_repr() + fused


_Layer = TypeVar("_Layer", bound=TurboLinear)


def converted(cls: type[_Layer], mod: Any, inplace: bool, **attributes: Any) -> _Layer:
    """``mod`` as a layer of ``cls`` with these ``attributes``; nothing has changed where it is refused."""
    reason = _why_not(mod)
    if reason is not None:
        raise UnsupportedError(f"{cls.__name__}.from_float: {reason}")
    layer = mod if inplace else _copied(mod)
    layer.__class__ = cls
    vars(layer).update(attributes)
    return layer  # type: ignore[no-any-return]


def _is_linear_itself(kind: type) -> bool:
    """Whether a class is Linear or one of our layers, no subclass that somebody made of them."""
    return kind is torch.nn.Linear or (issubclass(kind, TurboLinear) and kind.__module__.startswith("turbo_gemm."))


def _why_not(mod: Any) -> str | None:
    what = f"mod is a {type(mod).__name__}"
    if not isinstance(mod, torch.nn.Linear):
        return f"{what}; a Linear is accepted"
    what += f"(in_features={mod.in_features}, out_features={mod.out_features})"
    if torch.nn.utils.parametrize.is_parametrized(mod):
        names = ", ".join(mod.parametrizations)  # type: ignore[arg-type]
        return f"{what} whose {names} is computed by a parametrization; convert it before, or remove_parametrizations"
    for name in ("weight", "bias"):
        if name not in mod._parameters:
            return f"{what} whose {name} is no parameter (weight_norm, spectral_norm or pruning); remove that first"
        if torch.nn.parameter.is_lazy(mod._parameters[name]):
            return f"{what} whose {name} is not initialised; run it once before"
    if any(base.__name__ == "FSDPModule" for base in type(mod).__mro__):
        return f"{what} that fully_shard has wrapped; convert it before it is sharded"
    if not _is_linear_itself(type(mod)):
        return f"{what}, a subclass of Linear whose behaviour would be lost; torch.nn.Linear itself is accepted"
    if "forward" in vars(mod):
        return f"{what} whose forward was replaced on the object; it would go on running that"
    return None


def _copied(mod: torch.nn.Linear) -> torch.nn.Linear:
    """A deep copy that keeps what torch's own drops of parameters: attributes and hooks."""
    twin = copy.deepcopy(mod)
    for parameter, other in zip(mod.parameters(recurse=False), twin.parameters(recurse=False)):
        vars(other).update(copy.deepcopy(vars(parameter)))
        for hook in (parameter._backward_hooks or {}).values():
            other.register_hook(hook)
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            other.register_post_accumulate_grad_hook(hook)
    return twin
