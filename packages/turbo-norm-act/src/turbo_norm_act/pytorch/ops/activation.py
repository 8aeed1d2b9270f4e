# SPDX-License-Identifier: MIT
"""`swiglu`, `geglu` and their forms with probs: one registered op, ``turbo_norm_act::glu``, with its gradients.

The op works on rows [T, H]: leading dimensions are flattened before it (a view, unless x's strides forbid one).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turbo_core import OpInfo, UnsupportedError
from turbo_core.calls import empty
from turbo_core.library import Differentiable, OpLibrary
from turbo_core.sharding import shardable
from turbo_norm_act.calls import GluBackward, GluForward, GluGradients, glu_gradient_specs, glu_specs
from turbo_norm_act.pytorch.kernels.activation_impl import GluDispatcher, run_backward, run_forward
from turbo_norm_act.pytorch.kernels.second_order import glu_second
from turbo_norm_act.pytorch.ops.checks import (
    check_activation,
    check_clamp,
    check_clamp_limit,
    check_probs,
    promoted,
    rows_of,
)
from turbo_norm_act.pytorch.ops.sharding import activation_rules, probs_rules

__all__ = [
    "GEGLU",
    "GEGLU_WITH_PROBS",
    "SWIGLU",
    "SWIGLU_WITH_PROBS",
    "geglu",
    "geglu_with_probs",
    "swiglu",
    "swiglu_with_probs",
]

GPT_OSS_ALPHA = 1.702

# --- the op and its gradients ---------------------------------------------------------------------------------------

_NAMES = "swiglu, geglu, swiglu_with_probs, geglu_with_probs"
_library = OpLibrary("turbo_norm_act")


def _saved(call: Any, result: Any, needs: Any) -> Any:
    return call


glu_backward = _library.op(
    "glu_backward",
    GluBackward,
    run_backward,
    glu_gradient_specs,
    Differentiable(glu_second, _saved, _NAMES),
    result=GluGradients,
)


def _gradients(call: GluForward, dout: torch.Tensor, needs: Any) -> dict[str, torch.Tensor | None]:
    dx, dup, dprobs = glu_backward(GluBackward(*call, dout, needs.x, needs.up, needs.probs))
    return {"x": dx, "up": dup, "probs": dprobs}


glu = _library.op("glu", GluForward, run_forward, glu_specs, Differentiable(_gradients, _saved, _NAMES))

# --- the calls of the public functions ------------------------------------------------------------------------------


def _silu(op: str, limit: Any, alpha: Any, clamp_limit: Any) -> tuple[str, float, float]:
    """activation, limit and alpha of a call."""
    limit, alpha = check_clamp(op, limit, alpha)
    clamp_limit = check_clamp_limit(op, clamp_limit, limit)
    if limit is None:
        return "silu", clamp_limit, 0.0
    return "clamped", limit, GPT_OSS_ALPHA if alpha is None else alpha


def _gelu(op: str, approximate: str, clamp_limit: Any) -> tuple[str, float, float]:
    """Likewise."""
    if approximate not in ("none", "tanh"):
        raise UnsupportedError(f"{op}: approximate={approximate!r}; 'none' (erf) and 'tanh' are accepted")
    return "gelu" if approximate == "none" else "gelu_tanh", check_clamp_limit(op, clamp_limit), 0.0


def _call(x: torch.Tensor, up: torch.Tensor | None, formula: tuple[str, float, float], interleaved: bool) -> GluForward:
    if up is not None:
        x, up = promoted(x, up)
        up = rows_of(up)
    return GluForward(rows_of(x), up, None, None, *formula, interleaved)


def _swiglu(
    x: Any, up: Any = None, limit: Any = None, alpha: Any = None, interleaved: bool = False, clamp_limit: Any = None
) -> GluForward:
    check_activation("swiglu", x, up, interleaved)
    return _call(x, up, _silu("swiglu", limit, alpha, clamp_limit), interleaved)


def _geglu(
    x: Any, up: Any = None, approximate: str = "none", interleaved: bool = False, clamp_limit: Any = None
) -> GluForward:
    check_activation("geglu", x, up, interleaved)
    return _call(x, up, _gelu("geglu", approximate, clamp_limit), interleaved)


def _swiglu_with_probs(
    x: Any,
    probs: Any = None,
    row_mask: Any = None,
    clamp_limit: Any = None,
    limit: Any = None,
    alpha: Any = None,
    interleaved: bool = False,
) -> GluForward:
    probs, row_mask = check_probs("swiglu_with_probs", x, probs, row_mask)
    formula = _silu("swiglu_with_probs", limit, alpha, clamp_limit)
    return GluForward(rows_of(x), None, probs, row_mask, *formula, interleaved)


def _geglu_with_probs(
    x: Any,
    probs: Any = None,
    row_mask: Any = None,
    clamp_limit: Any = None,
    approximate: str = "none",
    interleaved: bool = False,
) -> GluForward:
    probs, row_mask = check_probs("geglu_with_probs", x, probs, row_mask)
    formula = _gelu("geglu_with_probs", approximate, clamp_limit)
    return GluForward(rows_of(x), None, probs, row_mask, *formula, interleaved)


def _shaped(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Leading dimensions as x has them."""
    return rows if x.dim() == 2 else rows.view(*x.shape[:-1], rows.shape[1])


# --- the public functions -------------------------------------------------------------------------------------------


@shardable(activation_rules)
def swiglu(
    x: torch.Tensor,
    up: torch.Tensor | None = None,
    *,
    limit: float | None = None,
    alpha: float | None = None,
    interleaved: bool = False,
    clamp_limit: float | None = None,
) -> torch.Tensor:
    """silu(gate) up, differentiable; with a limit, the gate of GPT-OSS.

    With ``limit``: (clamp(up, -limit, limit) + 1) g sigmoid(alpha g) where g = min(gate, limit). With ``clamp_limit``:
    silu(min(gate, clamp_limit)) clamp(up, -clamp_limit, clamp_limit). A clamp passes the gradient on its edges.

    Args:
        x: [..., 2H], gate in the first half and up in the second; or the gate [..., H] where ``up`` is given. bfloat16,
            float16 or float32, any strides.
        up: [..., H], of x's shape. Two dtypes are promoted, as in silu(x) * up.
        limit: None, or at least 0 (GPT-OSS: 7.0; inf clamps nothing).
        alpha: with a limit only; default 1.702. Both numbers may be what float() takes without a sync.
        interleaved: gate in the even and up in the odd columns of the packed x (how GPT-OSS stores them).
        clamp_limit: None, or a number as ``limit``; not both of them.

    Returns:
        [..., H] in x's dtype (promoted with up's), contiguous.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
        BackendUnavailableError: the backend set in code cannot take the call.
    """
    return _shaped(glu(_swiglu(x, up, limit, alpha, interleaved, clamp_limit)), x)


@shardable(activation_rules)
def geglu(
    x: torch.Tensor,
    up: torch.Tensor | None = None,
    *,
    approximate: str = "none",
    interleaved: bool = False,
    clamp_limit: float | None = None,
) -> torch.Tensor:
    """gelu(gate) up, differentiable; ``approximate`` as in torch.nn.functional.gelu ("none": erf, or "tanh").

    Arguments, result and errors as for `swiglu`.
    """
    return _shaped(glu(_geglu(x, up, approximate, interleaved, clamp_limit)), x)


@shardable(probs_rules)
def swiglu_with_probs(
    x: torch.Tensor,
    probs: torch.Tensor | None = None,
    row_mask: torch.Tensor | None = None,
    clamp_limit: float | None = None,
    *,
    limit: float | None = None,
    alpha: float | None = None,
    interleaved: bool = False,
) -> torch.Tensor:
    """silu(gate) up probs for each row, as in a mixture of experts; differentiable in x and probs.

    Args:
        x: [..., 2H] packed, as for `swiglu`; T is the product of the leading dimensions.
        probs: [T] or the leading dimensions of x, a last dimension of 1 allowed; bfloat16, float16 or float32. Its
            gradient is summed in float32. None: no factor.
        row_mask: of such a shape, integer or bool; a row where it is 0 is not read, whatever it holds, and its output
            and gradients are zeros. None: all rows count.
        clamp_limit, limit, alpha, interleaved: as for `swiglu`.

    Returns:
        [T, H] in x's dtype, contiguous: always two dimensions.

    Raises:
        as `swiglu`.
    """
    return glu(_swiglu_with_probs(x, probs, row_mask, clamp_limit, limit, alpha, interleaved))


@shardable(probs_rules)
def geglu_with_probs(
    x: torch.Tensor,
    probs: torch.Tensor | None = None,
    row_mask: torch.Tensor | None = None,
    clamp_limit: float | None = None,
    *,
    approximate: str = "none",
    interleaved: bool = False,
) -> torch.Tensor:
    """gelu(gate) up probs for each row; ``approximate`` as for `geglu`, all else as for `swiglu_with_probs`."""
    return glu(_geglu_with_probs(x, probs, row_mask, clamp_limit, approximate, interleaved))


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _info(name: str, call_of: Callable[..., GluForward], with_probs: bool) -> OpInfo:
    def calls(*args: Any, **kwargs: Any) -> dict[str, Any]:
        forward = call_of(*args, **kwargs)
        # of what does not exist yet only shape, strides and dtype are read
        dout = empty(glu_specs(forward), torch.device("meta"))
        backward = GluBackward(*forward, dout, True, forward.up is not None, forward.probs is not None)
        return {"forward": forward, "backward": backward}

    def example(device: torch.device) -> dict[str, Any]:
        one = torch.empty((1, 1), dtype=torch.bfloat16, device=device)
        rest = [one[0].float().expand(4096)] if with_probs else []
        return calls(one.expand(4096, 8192), *rest)

    return OpInfo(name, GluDispatcher, calls, example)


SWIGLU = _info("swiglu", _swiglu, False)
GEGLU = _info("geglu", _geglu, False)
SWIGLU_WITH_PROBS = _info("swiglu_with_probs", _swiglu_with_probs, True)
GEGLU_WITH_PROBS = _info("geglu_with_probs", _geglu_with_probs, True)
