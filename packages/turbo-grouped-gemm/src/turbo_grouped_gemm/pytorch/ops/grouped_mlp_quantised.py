# SPDX-License-Identifier: MIT
"""An expert MLP whose four operands are quantised by a config; `grouped_mlp_fp8` and `grouped_mlp_fp4` are made of it.

Products are those of `grouped_gemm_fp8`; between them the gate is a kernel of its own. x and the weights are quantised
once for both passes. The activation is quantised along F for the second projection, and computed and quantised again,
along the rows, for the gradient of w2; so is the gradient of the first projection, along both, in one reading of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_core.autocast import autocast_dtype
from turbo_core.library import under_transforms
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig
from turbo_gemm.developer import Scheme, as_pair, dequantized, into_main_grad
from turbo_grouped_gemm.calls import GroupedOperand, Groups
from turbo_grouped_gemm.calls_mlp import DgateCall, Gate, GateCall
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_autograd import multiply, multiply_rows
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_explain import quantised_grouped_calls
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_inputs import check_config, quantized_rows, quantized_weight
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_quantize import (
    How,
    Layout,
    dgrad_call,
    forward_call,
    quantize_rows,
    wgrad_call,
)
from turbo_grouped_gemm.pytorch.ops.grouped_gradients import sum_of_slots
from turbo_grouped_gemm.pytorch.ops.grouped_mlp import Settings as PlainSettings
from turbo_grouped_gemm.pytorch.ops.grouped_mlp import plain_mlp, shapes_for_indices
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
from turbo_grouped_gemm.pytorch.ops.grouped_mlp_library import grouped_dgate_op, grouped_gate_op
from turbo_quant import QuantizedTensor

__all__ = ["MlpArguments", "quantised_mlp", "quantised_mlp_calls"]

Config = Float8QuantConfig | Float4QuantConfig


class MlpArguments(NamedTuple):
    """The arguments of a public function, but for its config, as they were given."""

    x: Any
    w1: Any
    w2: Any
    group_lens: Any
    group_offs: Any
    probs: Any
    trans_w1: bool
    trans_w2: bool
    out_dtype: Any
    num_cu: Any
    pattern: str | None
    activation: Any
    schedule: Any
    a_idx: Any
    out_idx: Any
    out_rows: Any
    clamp_limit: Any
    limit: Any
    alpha: Any


# --- the node of autograd -------------------------------------------------------------------------------------------


class Settings(NamedTuple):
    """What both passes read besides tensors: the schemes of both projections, and the dtypes of pre and y."""

    first: Scheme
    second: Scheme
    how: How
    gate: Gate
    dtype: torch.dtype
    out_dtype: torch.dtype


def _layouts(kept: tuple[Any, ...]) -> tuple[Layout, Layout]:
    """Of the rows of both projections."""
    lens, given_offs, offs, offs_padded, a_idx, out_idx = kept[:6]
    groups = Groups(lens, given_offs)
    return Layout(groups, offs, offs_padded, a_idx, None), Layout(groups, offs, offs_padded, None, out_idx)


def _operand(tensors: tuple[Any, ...]) -> GroupedOperand | None:
    return None if tensors[0] is None else GroupedOperand(*tensors)


def _tensors(*operands: GroupedOperand | None) -> tuple[torch.Tensor | None, ...]:
    return tuple(tensor for operand in operands for tensor in (operand or (None, None)))


def _forward(
    inputs: Inputs, kept: tuple[Any, ...], operands: tuple[Any, ...], settings: Settings, keeps: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    first, second, how, gate, dtype, out_dtype = settings
    x, w1, w2 = (_operand(operands[at : at + 2]) for at in (0, 2, 4))
    layout, to_y = _layouts(kept)
    rows = (layout.a_idx if layout.a_idx is not None else x.data).shape[0]  # type: ignore[union-attr]
    pre = multiply_rows(forward_call(x, w1, first, layout, dtype, rows, how), first.fp4)
    out = grouped_gate_op(GateCall(pre, inputs.probs, layout.groups, gate))
    _, along_f = quantize_rows(out, second, "a", to_y, (False, True))
    del out
    out_rows = rows if to_y.out_idx is None else operands[6].shape[0]
    y = multiply_rows(forward_call(along_f, w2, second, to_y, out_dtype, out_rows, how), second.fp4)
    return y, pre if keeps else None


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
    first, second, how, gate, dtype, _ = settings
    like_x = kept[6]
    x, w1, w2 = (_operand(kept[at : at + 2]) for at in (7, 9, 11))
    layout, to_y = _layouts(kept)
    groups, rows, probs = layout.groups, pre.shape[0], inputs.probs
    through = bool(wanted.x or wanted.w1 or wanted.probs)
    dpre: Any = None
    dprobs = dx = dw1 = dw2 = None
    dy_along_rows, dy_along_n = quantize_rows(dy, second, "gradient", to_y, (bool(wanted.w2), through))
    if through:
        dout = multiply_rows(dgrad_call(dy_along_n, w2, second, to_y, dtype, rows, how), second.fp4)
        dpre, out, dprobs = grouped_dgate_op(
            DgateCall(dout, pre, probs, groups, gate, bool(wanted.w2), bool(wanted.probs))
        )
        del dout
    else:
        out = grouped_gate_op(GateCall(pre, probs, groups, gate))
    if wanted.w2:
        out_along_rows, _ = quantize_rows(out, second, "a", to_y, (True, False))
        into = dtypes[2] if outs[1] is None else outs[1].dtype
        dw2 = multiply(wgrad_call(dy_along_rows, out_along_rows, second, to_y, into, outs[1], how), second.fp4)
    del out
    if wanted.x or wanted.w1:
        along_rows, along_f = quantize_rows(dpre, first, "gradient", layout, (bool(wanted.w1), bool(wanted.x)))
        del dpre
        if wanted.x:
            x_rows = rows if layout.a_idx is None else like_x.shape[0]
            slots = multiply_rows(dgrad_call(along_f, w1, first, layout, dtypes[0], x_rows, how), first.fp4)
            dx = sum_of_slots(slots, groups, layout.a_idx, x_rows, dtypes[0])
        if wanted.w1:
            into = dtypes[1] if outs[0] is None else outs[0].dtype
            dw1 = multiply(wgrad_call(along_rows, x, first, layout, into, outs[0], how), first.fp4)
    return MlpGradients(dx, dw1, dw2, dprobs)


_RULES = MlpRules(_forward, _gradients, False)

# --- any config -----------------------------------------------------------------------------------------------------


def quantised_mlp(op: str, given: MlpArguments, config: Config) -> torch.Tensor:
    """y of the MLP, its operands quantised by ``config``; the public functions say the rest."""
    trans_w1, trans_w2 = bool(given.trans_w1), bool(given.trans_w2)
    gate = checked_gate(op, given.activation, given.clamp_limit, given.limit, given.alpha)
    pair_x, pair1, pair2 = (as_pair(op, name, getattr(given, name)) for name in ("x", "w1", "w2"))
    rows = checked_mlp_rows(
        op, pair_x.data, pair1.data, pair2.data, given.group_lens, given.group_offs, trans_w1, trans_w2,
        given.out_dtype, given.num_cu, given.schedule, given.a_idx, given.out_idx, given.out_rows,
    )  # fmt: skip
    check_config(op, config)
    probs = checked_probs(op, given.probs, rows)
    w1, w2 = pair1.data, pair2.data
    check_weights_main_grad(op, w1, w2, given.pattern)
    weights: Any = tuple(w if into_main_grad(op, w, given.pattern) else None for w in (w1, w2))
    values = [w if weight is None else weight.detach() for w, weight in zip((w1, w2), weights)]
    x = rows.a
    cast_to = autocast_dtype(x.device)
    if cast_to is not None:  # what is quantised already stays
        x, *values = (t if isinstance(t, QuantizedTensor) else t.to(cast_to) for t in (x, *values))
    inputs = Inputs(x, values[0], values[1], probs)
    dtype = cast_to or torch.promote_types(x.dtype, w1.dtype)
    out_dtype = given.out_dtype or cast_to or torch.promote_types(dtype, w2.dtype)
    a_idx, out_idx, how = given.a_idx, given.out_idx, How(given.num_cu, given.schedule)
    if 0 in (*x.shape, *w1.shape, *w2.shape, rows.size):  # nothing to quantise
        inputs = Inputs(dequantized(x), dequantized(values[0]), dequantized(values[1]), probs)
        y = plain_mlp(
            op, inputs, rows, a_idx, out_idx, PlainSettings(gate, trans_w1, trans_w2, out_dtype, *how), weights
        )
    else:
        mlp = _quantised(op, inputs, (pair_x, pair1, pair2), rows, given, config, gate, dtype, out_dtype, weights)
        y = differentiable_mlp(inputs, mlp)
    for weight in weights:
        if weight is not None:
            # said here, not in the backward, which a compiler traces as a function without side effects on attributes
            weight.grad_added_to_main_grad = True
    return rows.shaped(y)


def _quantised(
    op: str, inputs: Inputs, pairs: Any, rows: Any, given: MlpArguments, config: Config, gate: Gate,
    dtype: torch.dtype, out_dtype: torch.dtype, weights: Any,
) -> Mlp:  # fmt: skip
    """The MLP of quantised inputs: for the forward, and for the gradients that there will be."""
    x, w1, w2, probs = inputs
    needed = torch.is_grad_enabled()
    of = (x, weights[0] if weights[0] is not None else w1, weights[1] if weights[1] is not None else w2, probs)
    need_x, need_w1, _, need_probs = (
        needed and t is not None and (t.requires_grad or under_transforms()) for t in of
    )  # fmt: skip
    first = Scheme.of(config, x.device, False, bool(given.trans_w1))
    second = Scheme.of(config, x.device, False, bool(given.trans_w2))
    pair_x, pair1, pair2 = pairs
    if pair_x.data_t is not None:  # both sides of the gradient of w1 are rotated alike
        first = first._replace(sign_mask=pair_x.data_t.sign_mask)
    layout = Layout.of(rows.groups, rows.size, given.a_idx, None)
    x_along_rows, x_along_k = quantized_rows(op, pair_x._replace(data=x), config, first, layout, (need_w1, True))
    w1_along_n, w1_along_k = quantized_weight(op, pair1._replace(data=w1), config, first, (need_x, True))
    through = need_x or need_w1 or need_probs
    w2_along_n, w2_along_f = quantized_weight(op, pair2._replace(data=w2), config, second, (through, True))
    like_x, like_y = shapes_for_indices(x, rows, given.a_idx, given.out_idx)
    kept = (
        *rows.groups, layout.offs, layout.offs_padded, given.a_idx, given.out_idx, like_x,
        *_tensors(x_along_rows, w1_along_n, w2_along_n),
    )  # fmt: skip
    operands = (*_tensors(x_along_k, w1_along_k, w2_along_f), like_y)
    settings = Settings(first, second, How(given.num_cu, given.schedule), gate, dtype, out_dtype)
    return Mlp(op, kept, operands, settings, _RULES, weights)


def quantised_mlp_calls(op: str, given: MlpArguments, config: Config) -> dict[str, Any]:
    """The six products of an MLP and its backward, for `turbo_core.explain` and the doctor."""
    trans_w1, trans_w2 = bool(given.trans_w1), bool(given.trans_w2)
    checked_gate(op, given.activation, given.clamp_limit, given.limit, given.alpha)
    x, w1, w2 = (as_pair(op, name, getattr(given, name)).data for name in ("x", "w1", "w2"))
    rows = checked_mlp_rows(
        op, x, w1, w2, given.group_lens, given.group_offs, trans_w1, trans_w2, given.out_dtype, given.num_cu,
        given.schedule, given.a_idx, given.out_idx, given.out_rows,
    )  # fmt: skip
    dtype = autocast_dtype(x.device) or torch.promote_types(x.dtype, w1.dtype)
    features = w2.shape[2 if trans_w2 else 1]
    out = torch.empty((1, 1), dtype=dtype, device=x.device).expand(rows.size, features)  # its metadata alone are read
    groups = rows.groups
    how: tuple[Any, ...] = (given.num_cu, given.pattern, None, given.schedule)
    first = quantised_grouped_calls(
        op, rows.a, w1, *groups, trans_w1, dtype, config, *how, given.a_idx, None, None
    )  # fmt: skip
    second = quantised_grouped_calls(
        op, out, w2, *groups, trans_w2, given.out_dtype, config, *how, None, given.out_idx, given.out_rows
    )
    named = {f"first {role}": call for role, call in first.items()}
    return {**named, **{f"second {role}": call for role, call in second.items()}}
