# SPDX-License-Identifier: MIT
"""`rmsnorm`, `rmsnorm_residual`, `layernorm`: one registered op, ``turbo_norm_act::norm``, with its gradients.

The op works on rows: leading dimensions are flattened before it and restored behind it (views, unless x's strides
forbid one). What it returns beside y is for the backward: s (with a residual), mean (centred), rstd; where there is
no such thing, an empty tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from turbo_core import OpInfo
from turbo_core.library import Gradient, register_op
from turbo_core.sharding import shardable
from turbo_norm_act.pytorch.kernels.norm_impl import (
    NormBackward,
    NormDispatcher,
    NormForward,
    run_backward,
    run_forward,
)
from turbo_norm_act.pytorch.kernels.second_order import norm_second
from turbo_norm_act.pytorch.ops.checks import check_norm, promoted
from turbo_norm_act.pytorch.ops.sharding import norm_rules
from turbo_norm_act.values import Wanted

__all__ = ["LAYERNORM", "RMSNORM", "RMSNORM_RESIDUAL", "layernorm", "rmsnorm", "rmsnorm_residual"]

_Optional = torch.Tensor | None

# --- registration ---------------------------------------------------------------------------------------------------

_library = torch.library.Library("turbo_norm_act", "FRAGMENT")


def _norm(
    x: torch.Tensor,
    residual: _Optional,
    gamma: _Optional,
    beta: _Optional,
    eps: float,
    zero_centered: bool,
    center: bool,
) -> tuple[torch.Tensor, ...]:
    y, s, mean, rstd = run_forward(NormForward(x, residual, gamma, beta, eps, zero_centered, center))
    return y, x.new_empty(0) if s is None else s, rstd.new_empty(0) if mean is None else mean, rstd


def _norm_fake(
    x: torch.Tensor,
    residual: _Optional,
    gamma: _Optional,
    beta: _Optional,
    eps: float,
    zero_centered: bool,
    center: bool,
) -> tuple[torch.Tensor, ...]:
    rows = x.shape[0]
    return (
        x.new_empty(x.shape),
        x.new_empty(0) if residual is None else x.new_empty(x.shape),
        x.new_empty((rows if center else 0,), dtype=torch.float32),
        x.new_empty((rows,), dtype=torch.float32),
    )


def _norm_backward(
    dy: torch.Tensor,
    ds: _Optional,
    s: torch.Tensor,
    gamma: _Optional,
    mean: _Optional,
    rstd: torch.Tensor,
    zero_centered: bool,
    dx: bool,
    dgamma: torch.dtype | None,
    dbeta: torch.dtype | None,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    wanted = Wanted(dx, dgamma, dbeta)
    gradients = run_backward(NormBackward(dy, ds, s, gamma, mean, rstd, zero_centered, wanted))
    return tuple(s.new_empty(0) if gradient is None else gradient for gradient in gradients)


def _norm_backward_fake(
    dy: torch.Tensor,
    ds: _Optional,
    s: torch.Tensor,
    gamma: _Optional,
    mean: _Optional,
    rstd: torch.Tensor,
    zero_centered: bool,
    dx: bool,
    dgamma: torch.dtype | None,
    dbeta: torch.dtype | None,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    def parameter(dtype: torch.dtype | None) -> torch.Tensor:
        return s.new_empty(0) if dtype is None else s.new_empty((s.shape[1],), dtype=dtype)

    return s.new_empty(s.shape) if dx else s.new_empty(0), parameter(dgamma), parameter(dbeta)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, residual, gamma, beta, ctx.eps, ctx.zero_centered, center = inputs
    _, s, mean, rstd = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(mean, rstd, *([s] if residual is None else []))
    ctx.save_for_backward(x if residual is None else s, gamma, mean if center else None, rstd)
    ctx.beta_dtype = None if beta is None else beta.dtype


def _backward(ctx: Any, dy: _Optional, ds: _Optional, *_: Any) -> tuple[_Optional, ...]:
    s, gamma, mean, rstd = ctx.saved_tensors
    x_needs, residual_needs, gamma_needs, beta_needs = ctx.needs_input_grad[:4]
    need_dx = x_needs or residual_needs
    if dy is None:  # y went nowhere
        return ds if x_needs else None, ds if residual_needs else None, None, None, None, None, None
    dx, dgamma, dbeta = norm_backward(
        dy,
        ds,
        s,
        gamma,
        mean,
        rstd,
        ctx.zero_centered,
        need_dx,
        gamma.dtype if gamma_needs else None,
        ctx.beta_dtype if beta_needs else None,
        ctx.eps,
    )
    return (
        dx if x_needs else None,
        dx if residual_needs else None,
        dgamma if gamma_needs else None,
        dbeta if beta_needs else None,
        None,
        None,
        None,
    )


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    dy, _, s, gamma, mean, _, ctx.zero_centered, *_, ctx.eps = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(dy, s, gamma)  # of mean and rstd nothing is differentiated: they are functions of s
    ctx.center = mean is not None


def _second(ctx: Any, to_dx: _Optional, to_dgamma: _Optional, to_dbeta: _Optional) -> tuple[_Optional, ...]:
    dy, s, gamma = ctx.saved_tensors
    found = norm_second(
        to_dx,
        to_dgamma,
        to_dbeta,
        dy,
        s,
        gamma,
        ctx.eps,
        center=ctx.center,
        zero_centered=ctx.zero_centered,
    )
    return found.dy, to_dx if ctx.needs_input_grad[1] else None, found.s, found.gamma, *[None] * 7


_NAMES = "rmsnorm, rmsnorm_residual, layernorm"
norm_backward = register_op(
    _library,
    "norm_backward(Tensor dy, Tensor? ds, Tensor s, Tensor? gamma, Tensor? mean, Tensor rstd, bool zero_centered, "
    "bool dx, ScalarType? dgamma, ScalarType? dbeta, float eps) -> (Tensor dx, Tensor dgamma, Tensor dbeta)",
    _norm_backward,
    _norm_backward_fake,
    Gradient(_second, _setup_second, _NAMES),
)
norm = register_op(
    _library,
    "norm(Tensor x, Tensor? residual, Tensor? gamma, Tensor? beta, float eps, bool zero_centered, bool center) "
    "-> (Tensor y, Tensor s, Tensor mean, Tensor rstd)",
    _norm,
    _norm_fake,
    Gradient(_backward, _setup_context, _NAMES),
)

# --- the public functions -------------------------------------------------------------------------------------------


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


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
    eps = check_norm("rmsnorm", x, None, gamma, None, eps)
    return norm(_rows(x), None, gamma, None, eps, zero_centered, False)[0].view(x.shape)


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
    eps = check_norm("rmsnorm_residual", x, residual, gamma, None, eps, has_residual=True)
    x, residual = promoted(x, residual)
    y, s, _, _ = norm(_rows(x), _rows(residual), gamma, None, eps, zero_centered, False)
    return y.view(x.shape), s.view(x.shape)


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
    eps = check_norm("layernorm", x, None, gamma, beta, eps)
    return norm(_rows(x), None, gamma, beta, eps, False, True)[0].view(x.shape)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(
    x: torch.Tensor, residual: _Optional, gamma: _Optional, beta: _Optional, eps: float, zero: bool, center: bool
) -> dict[str, Any]:
    x, residual = _rows(x), None if residual is None else _rows(residual)
    # of what does not exist yet only shape, strides and dtype are read
    dy = torch.empty(x.shape, dtype=x.dtype, device="meta")
    rstd = torch.empty((x.shape[0],), dtype=torch.float32, device="meta")
    wanted = Wanted(True, None if gamma is None else gamma.dtype, None if beta is None else beta.dtype)
    ds = None if residual is None else dy
    backward = NormBackward(dy, ds, x, gamma, rstd if center else None, rstd, zero, wanted)
    return {"forward": NormForward(x, residual, gamma, beta, eps, zero, center), "backward": backward}


def _rmsnorm_calls(x: Any, gamma: Any, eps: float = 1e-6, zero_centered: bool = False) -> dict[str, Any]:
    eps = check_norm("rmsnorm", x, None, gamma, None, eps)
    return _calls(x, None, gamma, None, eps, zero_centered, False)


def _residual_calls(
    x: Any, residual: Any, gamma: Any, eps: float = 1e-6, zero_centered: bool = False
) -> dict[str, Any]:
    eps = check_norm("rmsnorm_residual", x, residual, gamma, None, eps, has_residual=True)
    x, residual = promoted(x, residual)
    return _calls(x, residual, gamma, None, eps, zero_centered, False)


def _layernorm_calls(x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> dict[str, Any]:
    eps = check_norm("layernorm", x, None, gamma, beta, eps)
    return _calls(x, None, gamma, beta, eps, False, True)


def _info(name: str, calls: Callable[..., dict[str, Any]], tensors: int, vectors: int) -> OpInfo:
    def example(device: torch.device) -> dict[str, Any]:
        one = torch.empty((1, 1), dtype=torch.bfloat16, device=device)
        return calls(*[one.expand(4096, 4096)] * tensors, *[one[0].expand(4096)] * vectors)

    return OpInfo(name, NormDispatcher, calls, example)


RMSNORM = _info("rmsnorm", _rmsnorm_calls, 1, 1)
RMSNORM_RESIDUAL = _info("rmsnorm_residual", _residual_calls, 2, 1)
LAYERNORM = _info("layernorm", _layernorm_calls, 1, 2)
