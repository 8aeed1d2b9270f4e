# SPDX-License-Identifier: MIT
"""`grouped_mlp`: the MLP of each expert on its rows, both projections with the gate between them, in one op.

    pre = x W1[g]        out = act(gate) up probs        y = out W2[g]

Forward: two launches. Backward: the gradient of out is taken through the gate in its product's epilogue, which gives
the gradients of pre and probs, and out once more, for the gradient of W2; the rest are plain grouped products.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_core import OpInfo
from turbo_core.autocast import autocast_dtype
from turbo_core.sharding import refuse_sharded
from turbo_gemm.developer import gradient_operand, into_main_grad
from turbo_grouped_gemm.calls import GroupedGemmCall, Groups
from turbo_grouped_gemm.calls_mlp import Gate, GateCall, GatedDgradCall, GatedGemmCall
from turbo_grouped_gemm.pytorch.kernels.grouped_mlp_impl import GroupedMlpDispatcher
from turbo_grouped_gemm.pytorch.ops.grouped_arguments import Rows
from turbo_grouped_gemm.pytorch.ops.grouped_gradients import wgrad_call
from turbo_grouped_gemm.pytorch.ops.grouped_library import (
    grouped_gemm_op,
    grouped_wgrad_accumulate,
    grouped_wgrad_op,
    rows_gradient,
)
from turbo_grouped_gemm.pytorch.ops.grouped_mlp_autograd import (
    Inputs,
    Mlp,
    MlpGradients,
    MlpRules,
    differentiable_mlp,
)
from turbo_grouped_gemm.pytorch.ops.grouped_mlp_checks import (
    check_weights_main_grad,
    checked_gate,
    checked_mlp_rows,
    checked_probs,
)
from turbo_grouped_gemm.pytorch.ops.grouped_mlp_library import grouped_dgated_op, grouped_gate_op, grouped_gated_op

__all__ = ["GROUPED_MLP", "Settings", "grouped_mlp", "plain_mlp", "shapes_for_indices"]

_OP = "grouped_mlp"

# --- the node of autograd -------------------------------------------------------------------------------------------


class Settings(NamedTuple):
    """What both passes read besides tensors. No sizes, which a compiler would have to keep: those are tensors'."""

    gate: Gate
    trans_w1: bool
    trans_w2: bool
    out_dtype: torch.dtype
    num_cu: int | None
    schedule: str


def _forward(
    inputs: Inputs, kept: tuple[Any, ...], operands: tuple[Any, ...], settings: Settings, keeps: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    x, w1, w2, probs = inputs
    lens, offs, a_idx, out_idx, _ = kept
    gate, trans_w1, trans_w2, out_dtype, num_cu, schedule = settings
    groups, dtype = Groups(lens, offs), torch.promote_types(x.dtype, w1.dtype)
    gated = GatedGemmCall(x, w1, probs, groups, gate, trans_w1, dtype, a_idx, keeps, num_cu, schedule)
    out, pre = grouped_gated_op(gated)
    out_rows = (out if out_idx is None else operands[0]).shape[0]
    second = GroupedGemmCall(out, w2, None, groups, trans_w2, out_dtype, None, out_idx, out_rows, num_cu, schedule)
    return grouped_gemm_op(second), pre


def _gradients(
    inputs: Inputs,
    kept: tuple[Any, ...],
    pre: torch.Tensor,
    settings: Settings,
    dy: torch.Tensor,
    wanted: Inputs,
    dtypes: tuple[Any, ...],
    outs: tuple[Any, ...],
) -> MlpGradients:
    x, w1, w2, probs = inputs
    lens, offs, a_idx, out_idx, like_x = kept
    gate, trans_w1, trans_w2, _, num_cu, schedule = settings
    x_rows = (pre if a_idx is None else like_x).shape[0]
    groups, how = Groups(lens, offs), (num_cu, schedule)
    dy = gradient_operand(dy, pre.dtype, dtypes[2])
    dpre: Any = None
    dprobs = dx = dw1 = dw2 = None
    if wanted.x or wanted.w1 or wanted.probs:
        dgated = GatedDgradCall(
            dy, w2, pre, probs, groups, gate, trans_w2, out_idx, bool(wanted.w2), bool(wanted.probs), *how
        )
        dpre, out, dprobs = grouped_dgated_op(dgated)
    else:
        out = grouped_gate_op(GateCall(pre, probs, groups, gate))
    if wanted.w2:
        dw2 = _weight_gradient(dy, out, groups, trans_w2, None, out_idx, dtypes[2], how, outs[1])
    del out, dy
    if wanted.x or wanted.w1:
        dpre = gradient_operand(dpre, dtypes[0], dtypes[1])
    if wanted.x:
        dx = rows_gradient(dpre, w1, not trans_w1, groups, None, a_idx, x_rows, dtypes[0], *how)
    if wanted.w1:
        dw1 = _weight_gradient(dpre, x, groups, trans_w1, a_idx, None, dtypes[1], how, outs[0])
    return MlpGradients(dx, dw1, dw2, dprobs)


def _weight_gradient(
    dy: torch.Tensor, a: torch.Tensor, groups: Groups, trans: bool, a_idx: Any, out_idx: Any, dtype: torch.dtype,
    how: tuple[int | None, str], out: torch.Tensor | None,
) -> torch.Tensor | None:  # fmt: skip
    """dW, or None where it is added to ``out``."""
    call = wgrad_call(dy, a, groups, trans, a_idx, out_idx, dtype if out is None else out.dtype, *how, out)
    if out is None:
        gradient: torch.Tensor = grouped_wgrad_op(call)
        return gradient
    grouped_wgrad_accumulate(call)
    return None


_RULES = MlpRules(_forward, _gradients, True)


def plain_mlp(
    op: str,
    inputs: Inputs,
    rows: Rows,
    a_idx: torch.Tensor | None,
    out_idx: torch.Tensor | None,
    settings: Settings,
    weights: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
) -> torch.Tensor:
    """y [.,N] of checked inputs; weights: those whose gradients go into ``main_grad``."""
    like_x, like_y = shapes_for_indices(inputs.x, rows, a_idx, out_idx)
    return differentiable_mlp(
        inputs, Mlp(op, (*rows.groups, a_idx, out_idx, like_x), (like_y,), settings, _RULES, weights)
    )


def shapes_for_indices(
    x: torch.Tensor, rows: Rows, a_idx: torch.Tensor | None, out_idx: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Empty tensors with as many rows as x and y have, where indices leave that open."""
    like_x = None if a_idx is None else torch.empty(x.shape[0], 0, device=x.device)
    return like_x, None if out_idx is None else torch.empty(rows.out_rows, 0, device=x.device)


# --- the public function --------------------------------------------------------------------------------------------


def grouped_mlp(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None = None,
    probs: torch.Tensor | None = None,
    trans_w1: bool = False,
    trans_w2: bool = False,
    out_dtype: torch.dtype | None = None,
    num_cu: int | None = None,
    fuse_wgrad_accum_pattern: str | None = None,
    activation: str | None = None,
    *,
    schedule: str = "static",
    a_idx: torch.Tensor | None = None,
    out_idx: torch.Tensor | None = None,
    out_rows: int | None = None,
    clamp_limit: float | None = None,
    limit: float | None = None,
    alpha: float | None = None,
) -> torch.Tensor:
    """y[r] = (act(gate) up probs[r]) op(w2[g]) with [gate, up] = x[r] op(w1[g]), for each row r of group g.

    Differentiable in x, w1, w2 and probs; second derivatives are refused. The first projection applies the gate before
    it is stored, and the backward takes the gradient through it in the second projection's product: between the
    products nothing is read again. Saved for the backward are x, the weights and the first projection before the gate,
    [S,2F]; the activation is computed again.

    Groups, rows of no group, strides, zero sizes and autocast: as for `grouped_gemm`. The gate is computed in float32
    from the first projection as it is stored, in ``torch.promote_types(x.dtype, w1.dtype)``.

    Args:
        x: [R,K]; bfloat16, float16 or float32. Or [G,M,K], of which group g has the first group_lens[g] rows of x[g].
        w1: [G,K,2F], or [G,2F,K] with ``trans_w1``: the columns of the gate, then those of up.
        w2: [G,F,N], or [G,N,F] with ``trans_w2``.
        group_lens, group_offs, num_cu, schedule: as for `grouped_gemm`.
        probs: [S], a factor of each row's activation; bfloat16, float16 or float32. Its gradient is summed in float32.
        out_dtype: dtype of y; default that of the operands, promoted.
        fuse_wgrad_accum_pattern: ``"megatron"`` adds the gradients of w1 and w2 to their ``main_grad`` inside the
            products; autograd gets zeros for them. Both need ``main_grad`` and ``grad_added_to_main_grad``.
        activation: ``"swiglu"`` (None): silu(gate) up; ``"geglu"``: gelu(gate) up in the approximation of tanh.
        a_idx: [S], int64 or int32: the groups are of S rows, of which row s is x[a_idx[s]].
        out_idx, out_rows: row s of the groups goes to y[out_idx[s]]; see `grouped_gemm`.
        clamp_limit: the gate is at most this, up from minus this to this.
        limit, alpha: the gate of GPT-OSS: (clamp(up, -limit, limit) + 1) g sigmoid(alpha g), g = min(gate, limit);
            alpha is 1.702 where it is None.

    Returns:
        y [R,N], or [G,M,N], contiguous.

    Raises:
        UnsupportedError: an argument is outside the above, or a DTensor; nothing has been computed.
        BackendUnavailableError: the backend named in code or by PRIMUS_TURBO_GROUPED_GEMM_BACKEND cannot take the
            call.

    Bit-equal from run to run on one backend and device. ``turbo_core.explain("grouped_mlp", ...)`` tells which one
    runs.
    """
    refuse_sharded(_OP, "local tensors are accepted", x=x, w1=w1, w2=w2, probs=probs, group_lens=group_lens)
    trans_w1, trans_w2 = bool(trans_w1), bool(trans_w2)
    gate = checked_gate(_OP, activation, clamp_limit, limit, alpha)
    rows = checked_mlp_rows(
        _OP, x, w1, w2, group_lens, group_offs, trans_w1, trans_w2, out_dtype, num_cu, schedule, a_idx, out_idx,
        out_rows,
    )  # fmt: skip
    factor = checked_probs(_OP, probs, rows)
    check_weights_main_grad(_OP, w1, w2, fuse_wgrad_accum_pattern)
    weights = tuple(w if into_main_grad(_OP, w, fuse_wgrad_accum_pattern) else None for w in (w1, w2))
    values = [w if weight is None else weight.detach() for w, weight in zip((w1, w2), weights)]
    x = rows.a
    cast_to = autocast_dtype(x.device)
    if cast_to is not None:
        x, *values = (t.to(cast_to) for t in (x, *values))
    inputs = Inputs(x, values[0], values[1], factor)
    if out_dtype is None:
        out_dtype = torch.promote_types(torch.promote_types(x.dtype, values[0].dtype), values[1].dtype)
    settings = Settings(gate, trans_w1, trans_w2, out_dtype, num_cu, schedule)
    y = plain_mlp(_OP, inputs, rows, a_idx, out_idx, settings, weights)  # type: ignore[arg-type]
    for weight in weights:
        if weight is not None:
            # said here, not in the backward, which a compiler traces as a function without side effects on attributes
            weight.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    return rows.shaped(y)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None = None,
    probs: torch.Tensor | None = None,
    trans_w1: bool = False,
    trans_w2: bool = False,
    out_dtype: torch.dtype | None = None,
    num_cu: int | None = None,
    fuse_wgrad_accum_pattern: str | None = None,
    activation: str | None = None,
    *,
    schedule: str = "static",
    a_idx: torch.Tensor | None = None,
    out_idx: torch.Tensor | None = None,
    out_rows: int | None = None,
    clamp_limit: float | None = None,
    limit: float | None = None,
    alpha: float | None = None,
) -> dict[str, Any]:
    """The first projection and the gradient of the second's rows, with the gate; the others are of `grouped_gemm`."""
    trans_w1, trans_w2 = bool(trans_w1), bool(trans_w2)
    gate = checked_gate(_OP, activation, clamp_limit, limit, alpha)
    rows = checked_mlp_rows(
        _OP, x, w1, w2, group_lens, group_offs, trans_w1, trans_w2, out_dtype, num_cu, schedule, a_idx, out_idx,
        out_rows,
    )  # fmt: skip
    factor = checked_probs(_OP, probs, rows)
    cast_to = autocast_dtype(x.device)
    with torch.no_grad():
        x, w1, w2 = (t if cast_to is None else t.to(cast_to) for t in (rows.a, w1, w2))
    dtype = torch.promote_types(x.dtype, w1.dtype)
    made: dict[str, Any] = {"device": x.device}
    forward = GatedGemmCall(x, w1, factor, rows.groups, gate, trans_w1, dtype, a_idx, True, num_cu, schedule)
    _, size, features, _ = forward.sizes()
    dy = torch.empty(rows.out_rows, w2.shape[1 if trans_w2 else 2], dtype=torch.promote_types(dtype, w2.dtype), **made)
    pre = torch.empty(size, 2 * features, dtype=dtype, **made)  # only its metadata are read
    backward = GatedDgradCall(
        gradient_operand(dy, dtype, w2.dtype), w2, pre, factor, rows.groups, gate, trans_w2, out_idx, True,
        factor is not None, num_cu, schedule,
    )  # fmt: skip
    return {"forward": forward, "backward": backward}


def _example(device: torch.device) -> dict[str, Any]:
    shapes = ((8 * 512, 1024), (8, 2048, 1024), (8, 1024, 1024))
    x, w1, w2 = (torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in shapes)
    return _calls(x, w1, w2, torch.empty(8, dtype=torch.int64, device=device), trans_w1=True, trans_w2=True)


GROUPED_MLP = OpInfo(_OP, GroupedMlpDispatcher, _calls, _example)
