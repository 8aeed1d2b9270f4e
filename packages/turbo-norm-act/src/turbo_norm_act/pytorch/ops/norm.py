# SPDX-License-Identifier: MIT
"""`rmsnorm`, `rmsnorm_residual`, `layernorm`: one registered op, ``turbo_norm_act::norm``, with its gradients.

The op works on rows: leading dimensions are flattened before it and restored behind it (views, unless x's strides
forbid one).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turbo_core import OpInfo
from turbo_core.calls import outputs
from turbo_core.library import Differentiable, OpLibrary
from turbo_core.sharding import shardable
from turbo_norm_act.calls import (
    NormBackward,
    NormForward,
    NormGradients,
    NormResult,
    norm_gradient_specs,
    norm_specs,
)
from turbo_norm_act.pytorch.kernels.norm_impl import NormDispatcher, run_backward, run_forward
from turbo_norm_act.pytorch.kernels.second_order import norm_second
from turbo_norm_act.pytorch.ops.checks import check_norm, promoted, rows_of
from turbo_norm_act.pytorch.ops.sharding import norm_rules

__all__ = ["LAYERNORM", "RMSNORM", "RMSNORM_RESIDUAL", "layernorm", "rmsnorm", "rmsnorm_residual"]

# --- the op and its gradients ---------------------------------------------------------------------------------------

_NAMES = "rmsnorm, rmsnorm_residual, layernorm"
_library = OpLibrary("turbo_norm_act")


def _saved_for_second(call: NormBackward, result: NormGradients, needs: Any) -> tuple[Any, ...]:
    return call._replace(ds=None)  # its gradient is that of dx


norm_backward = _library.op(
    "norm_backward",
    NormBackward,
    run_backward,
    norm_gradient_specs,
    Differentiable(norm_second, _saved_for_second, _NAMES),
    result=NormGradients,
)


def _saved(call: NormForward, result: NormResult, needs: Any) -> tuple[Any, ...]:
    s = call.x if call.residual is None else result.s
    beta_dtype = None if call.beta is None else call.beta.dtype
    return s, call.gamma, result.mean, result.rstd, call.eps, call.zero_centered, beta_dtype


def _gradients(saved: tuple[Any, ...], grads: NormResult, needs: Any) -> dict[str, torch.Tensor | None]:
    s, gamma, mean, rstd, eps, zero_centered, beta_dtype = saved
    dy, dx, dgamma, dbeta = grads.y, grads.s, None, None
    if dy is not None:  # else y went nowhere
        dbeta_dtype = beta_dtype if needs.beta else None
        wanted = needs.x or needs.residual, needs.gamma, dbeta_dtype
        call = NormBackward(s, dy, grads.s, gamma, mean, rstd, eps, zero_centered, *wanted)
        dx, dgamma, dbeta = norm_backward(call)
    return {"x": dx if needs.x else None, "residual": dx if needs.residual else None, "gamma": dgamma, "beta": dbeta}


norm = _library.op(
    "norm",
    NormForward,
    run_forward,
    norm_specs,
    Differentiable(_gradients, _saved, _NAMES, constants=("mean", "rstd")),
    result=NormResult,
)

# --- the calls of the public functions ------------------------------------------------------------------------------


def _rmsnorm(x: Any, gamma: Any, eps: Any = 1e-6, zero_centered: bool = False) -> NormForward:
    eps = check_norm("rmsnorm", x, None, gamma, None, eps)
    return NormForward(rows_of(x), None, gamma, None, eps, zero_centered, False)


def _rmsnorm_residual(x: Any, residual: Any, gamma: Any, eps: Any = 1e-6, zero_centered: bool = False) -> NormForward:
    eps = check_norm("rmsnorm_residual", x, residual, gamma, None, eps, has_residual=True)
    x, residual = promoted(x, residual)
    return NormForward(rows_of(x), rows_of(residual), gamma, None, eps, zero_centered, False)


def _layernorm(x: Any, gamma: Any, beta: Any, eps: Any = 1e-5) -> NormForward:
    eps = check_norm("layernorm", x, None, gamma, beta, eps)
    return NormForward(rows_of(x), None, gamma, beta, eps, False, True)


def _shaped(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Leading dimensions as x has them."""
    return rows if x.dim() == 2 else rows.view(x.shape)


# --- the public functions -------------------------------------------------------------------------------------------


@shardable(norm_rules)
def rmsnorm(
    x: torch.Tensor, gamma: torch.Tensor | None, eps: float = 1e-6, zero_centered: bool = False
) -> torch.Tensor:
    """y = x (mean(x^2) + eps)^-1/2 gamma over the last dimension, differentiable in x and gamma.

    Args:
        x: [..., D], bfloat16, float16 or float32, any strides.
        gamma: [D] in any of these dtypes, not necessarily x's; None: no weight.
        eps: added to the mean square: a number, or what float() takes without a sync (numpy's, a 0-dim CPU tensor).
        zero_centered: the weight is 1 + gamma.

    Returns:
        y [..., D] in x's dtype, contiguous.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
        BackendUnavailableError: the backend set in code cannot take the call.

    Arithmetic is float32, rounded once; the gradient of gamma is summed in float32 over all rows. Bit-equal from run to
    run on one backend and device.
    """
    return _shaped(norm(_rmsnorm(x, gamma, eps, zero_centered)).y, x)


@shardable(norm_rules)
def rmsnorm_residual(
    x: torch.Tensor,
    residual: torch.Tensor,
    gamma: torch.Tensor | None,
    eps: float = 1e-6,
    zero_centered: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """s = x + residual and y = rmsnorm(s), in one pass over memory; differentiable in x, residual and gamma.

    The gradient of s (that of y through the norm, plus what reaches s directly) is the gradient of x and of residual.

    Args:
        x, residual: [..., D], of one shape; else as for `rmsnorm`. Two dtypes are promoted, as in x + residual.
        gamma, eps, zero_centered: as for `rmsnorm`.

    Returns:
        (y, s), both [..., D] in the dtype of x + residual, contiguous. y is the norm of s as rounded to that dtype.

    Raises:
        as `rmsnorm`.
    """
    y, s, _, _ = norm(_rmsnorm_residual(x, residual, gamma, eps, zero_centered))
    return _shaped(y, x), _shaped(s, x)


@shardable(norm_rules)
def layernorm(
    x: torch.Tensor, gamma: torch.Tensor | None, beta: torch.Tensor | None, eps: float = 1e-5
) -> torch.Tensor:
    """y = (x - mean(x)) (var(x) + eps)^-1/2 gamma + beta over the last dimension; var divides by D.

    Args:
        x: as for `rmsnorm`.
        gamma, beta: [D] in any of the three dtypes; None: no weight, no bias.
        eps: added to the variance.

    Returns:
        y [..., D] in x's dtype, contiguous.

    Raises:
        as `rmsnorm`.
    """
    return _shaped(norm(_layernorm(x, gamma, beta, eps)).y, x)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(call: NormForward) -> dict[str, Any]:
    """``call`` and its backward, with all gradients."""
    # of what does not exist yet only shape, strides and dtype are read
    dy, ds, mean, rstd = outputs(norm_specs(call), torch.device("meta"))
    wanted = True, call.gamma is not None, None if call.beta is None else call.beta.dtype
    backward = NormBackward(call.x, dy, ds, call.gamma, mean, rstd, call.eps, call.zero_centered, *wanted)
    return {"forward": call, "backward": backward}


def _info(name: str, call_of: Callable[..., NormForward], tensors: int, vectors: int) -> OpInfo:
    def calls(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return _calls(call_of(*args, **kwargs))

    def example(device: torch.device) -> dict[str, Any]:
        one = torch.empty((1, 1), dtype=torch.bfloat16, device=device)
        return calls(*[one.expand(4096, 4096)] * tensors, *[one[0].expand(4096)] * vectors)

    return OpInfo(name, NormDispatcher, calls, example)


RMSNORM = _info("rmsnorm", _rmsnorm, 1, 1)
RMSNORM_RESIDUAL = _info("rmsnorm_residual", _rmsnorm_residual, 2, 1)
LAYERNORM = _info("layernorm", _layernorm, 1, 2)
