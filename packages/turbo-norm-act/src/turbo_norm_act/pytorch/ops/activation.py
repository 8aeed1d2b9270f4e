# SPDX-License-Identifier: MIT
"""`swiglu`, `geglu` and their forms with probs: one registered op, ``turbo_norm_act::glu``, with its gradients.

The op works on rows [T, H]: leading dimensions are flattened before it (a view, unless x's strides forbid one).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from turbo_core import OpInfo, UnsupportedError
from turbo_core.library import Gradient, register_op
from turbo_core.sharding import shardable
from turbo_norm_act.pytorch.kernels.activation_impl import (
    GluBackward,
    GluDispatcher,
    GluForward,
    halves,
    run_backward,
    run_forward,
)
from turbo_norm_act.pytorch.kernels.second_order import glu_second
from turbo_norm_act.pytorch.ops.checks import check_activation, check_clamp, check_clamp_limit, check_probs, promoted
from turbo_norm_act.pytorch.ops.sharding import activation_rules, probs_rules
from turbo_norm_act.values import Formula

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
_Optional = torch.Tensor | None

# --- registration ---------------------------------------------------------------------------------------------------

_library = torch.library.Library("turbo_norm_act", "FRAGMENT")


def _glu(
    x: torch.Tensor,
    up: _Optional,
    probs: _Optional,
    row_mask: _Optional,
    activation: str,
    limit: float,
    alpha: float,
    interleaved: bool,
) -> torch.Tensor:
    return run_forward(x, up, probs, row_mask, Formula(activation, limit, alpha), interleaved)


def _glu_fake(x: torch.Tensor, up: _Optional, *_: Any) -> torch.Tensor:
    return x.new_empty((x.shape[0], x.shape[1] // 2 if up is None else x.shape[1]))


def _glu_backward(
    dout: torch.Tensor,
    x: torch.Tensor,
    up: _Optional,
    probs: _Optional,
    row_mask: _Optional,
    activation: str,
    limit: float,
    alpha: float,
    interleaved: bool,
    need_x: bool,
    need_up: bool,
    need_probs: bool,
) -> tuple[torch.Tensor, ...]:
    wanted = need_x, need_up, need_probs
    gradients = run_backward(dout, x, up, probs, row_mask, Formula(activation, limit, alpha), interleaved, wanted)
    return tuple(x.new_empty(0) if gradient is None else gradient for gradient in gradients)


def _glu_backward_fake(
    dout: torch.Tensor,
    x: torch.Tensor,
    up: _Optional,
    probs: _Optional,
    row_mask: _Optional,
    activation: str,
    limit: float,
    alpha: float,
    interleaved: bool,
    need_x: bool,
    need_up: bool,
    need_probs: bool,
) -> tuple[torch.Tensor, ...]:
    return (
        x.new_empty(x.shape) if need_x else x.new_empty(0),
        x.new_empty(x.shape) if need_up else x.new_empty(0),
        x.new_empty(0) if probs is None or not need_probs else x.new_empty((x.shape[0],), dtype=probs.dtype),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.formula = inputs[4:]


def _backward(ctx: Any, dout: torch.Tensor) -> tuple[_Optional, ...]:
    needed = ctx.needs_input_grad[:3]
    gradients = glu_backward(dout, *ctx.saved_tensors, *ctx.formula, *needed)
    return *(gradient if need else None for gradient, need in zip(gradients, needed)), None, None, None, None, None


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:5])
    *formula, ctx.interleaved = inputs[5:9]
    ctx.formula = Formula(*formula)


def _second(ctx: Any, to_dx: _Optional, to_dup: _Optional, to_dprobs: _Optional) -> tuple[_Optional, ...]:
    found = glu_second(to_dx, to_dup, to_dprobs, *ctx.saved_tensors, ctx.formula, ctx.interleaved)
    return *found, *[None] * 8


_NAMES = "swiglu, geglu, swiglu_with_probs, geglu_with_probs"
glu_backward = register_op(
    _library,
    "glu_backward(Tensor dout, Tensor x, Tensor? up, Tensor? probs, Tensor? row_mask, str activation, float limit, "
    "float alpha, bool interleaved, bool need_x, bool need_up, bool need_probs) "
    "-> (Tensor dx, Tensor dup, Tensor dprobs)",
    _glu_backward,
    _glu_backward_fake,
    Gradient(_second, _setup_second, _NAMES),
)
glu = register_op(
    _library,
    "glu(Tensor x, Tensor? up, Tensor? probs, Tensor? row_mask, str activation, float limit, float alpha, "
    "bool interleaved) -> Tensor",
    _glu,
    _glu_fake,
    Gradient(_backward, _setup_context, _NAMES),
)

# --- the public functions -------------------------------------------------------------------------------------------


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _silu(op: str, limit: Any, alpha: Any, clamp_limit: Any) -> Formula:
    limit, alpha = check_clamp(op, limit, alpha)
    clamp_limit = check_clamp_limit(op, clamp_limit, limit)
    if limit is None:
        return Formula("silu", clamp_limit)
    return Formula("clamped", limit, GPT_OSS_ALPHA if alpha is None else alpha)


def _gelu(op: str, approximate: str, clamp_limit: Any) -> Formula:
    if approximate not in ("none", "tanh"):
        raise UnsupportedError(f"{op}: approximate={approximate!r}; 'none' (erf) and 'tanh' are accepted")
    return Formula("gelu" if approximate == "none" else "gelu_tanh", check_clamp_limit(op, clamp_limit))


def _plain(x: torch.Tensor, up: _Optional, formula: Formula, interleaved: bool) -> torch.Tensor:
    if up is not None:
        x, up = promoted(x, up)
    rows = glu(_rows(x), None if up is None else _rows(up), None, None, *formula, interleaved)
    return rows.view(*x.shape[:-1], rows.shape[1])


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
    check_activation("swiglu", x, up, interleaved)
    return _plain(x, up, _silu("swiglu", limit, alpha, clamp_limit), interleaved)


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
    check_activation("geglu", x, up, interleaved)
    return _plain(x, up, _gelu("geglu", approximate, clamp_limit), interleaved)


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
    probs, row_mask = check_probs("swiglu_with_probs", x, probs, row_mask)
    formula = _silu("swiglu_with_probs", limit, alpha, clamp_limit)
    return glu(_rows(x), None, probs, row_mask, *formula, interleaved)


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
    probs, row_mask = check_probs("geglu_with_probs", x, probs, row_mask)
    formula = _gelu("geglu_with_probs", approximate, clamp_limit)
    return glu(_rows(x), None, probs, row_mask, *formula, interleaved)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(
    x: torch.Tensor, up: _Optional, probs: _Optional, row_mask: _Optional, formula: Formula, interleaved: bool
) -> dict[str, Any]:
    if up is not None:
        x, up = promoted(x, up)
    gate, second = halves(_rows(x), interleaved) if up is None else (_rows(x), _rows(up))
    # of what does not exist yet only shape, strides and dtype are read
    dout = torch.empty(gate.shape, dtype=x.dtype, device="meta")
    dx = dout if up is not None else torch.empty((gate.shape[0], x.shape[-1]), dtype=x.dtype, device="meta")
    into = (dx, dx) if up is not None else halves(dx, interleaved)
    dprobs = None if probs is None else torch.empty(probs.shape, dtype=torch.float32, device="meta")
    backward = GluBackward(dout, gate, second, probs, row_mask, formula, *into, dprobs)
    return {"forward": GluForward(gate, second, probs, row_mask, formula), "backward": backward}


def _swiglu_calls(
    x: Any,
    up: Any = None,
    *,
    limit: Any = None,
    alpha: Any = None,
    interleaved: bool = False,
    clamp_limit: Any = None,
) -> dict[str, Any]:
    check_activation("swiglu", x, up, interleaved)
    return _calls(x, up, None, None, _silu("swiglu", limit, alpha, clamp_limit), interleaved)


def _geglu_calls(
    x: Any, up: Any = None, *, approximate: str = "none", interleaved: bool = False, clamp_limit: Any = None
) -> dict[str, Any]:
    check_activation("geglu", x, up, interleaved)
    return _calls(x, up, None, None, _gelu("geglu", approximate, clamp_limit), interleaved)


def _swiglu_with_probs_calls(
    x: Any,
    probs: Any = None,
    row_mask: Any = None,
    clamp_limit: Any = None,
    *,
    limit: Any = None,
    alpha: Any = None,
    interleaved: bool = False,
) -> dict[str, Any]:
    probs, row_mask = check_probs("swiglu_with_probs", x, probs, row_mask)
    return _calls(x, None, probs, row_mask, _silu("swiglu_with_probs", limit, alpha, clamp_limit), interleaved)


def _geglu_with_probs_calls(
    x: Any,
    probs: Any = None,
    row_mask: Any = None,
    clamp_limit: Any = None,
    *,
    approximate: str = "none",
    interleaved: bool = False,
) -> dict[str, Any]:
    probs, row_mask = check_probs("geglu_with_probs", x, probs, row_mask)
    return _calls(x, None, probs, row_mask, _gelu("geglu_with_probs", approximate, clamp_limit), interleaved)


def _info(name: str, calls: Callable[..., dict[str, Any]], with_probs: bool) -> OpInfo:
    def example(device: torch.device) -> dict[str, Any]:
        one = torch.empty((1, 1), dtype=torch.bfloat16, device=device)
        rest = [one[0].float().expand(4096)] if with_probs else []
        return calls(one.expand(4096, 8192), *rest)

    return OpInfo(name, GluDispatcher, calls, example)


SWIGLU = _info("swiglu", _swiglu_calls, False)
GEGLU = _info("geglu", _geglu_calls, False)
SWIGLU_WITH_PROBS = _info("swiglu_with_probs", _swiglu_with_probs_calls, True)
GEGLU_WITH_PROBS = _info("geglu_with_probs", _geglu_with_probs_calls, True)
