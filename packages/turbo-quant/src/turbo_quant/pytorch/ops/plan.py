# SPDX-License-Identifier: MIT
"""From the public arguments to a call: any rank and axis becomes [B,R,C]; and from its outputs back."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from turbo_core import UnsupportedError
from turbo_core.library import under_transforms
from turbo_core.low_precision import ScalingGranularity, ScalingRecipe
from turbo_quant.calls import MxDirection, QuantizeFloatCall, QuantizeMxCall
from turbo_quant.formats import mx_format_of
from turbo_quant.pytorch.kernels.grouping import pad_groups
from turbo_quant.pytorch.kernels.shuffle import WEIGHT_ROWS
from turbo_quant.pytorch.ops import checks
from turbo_quant.pytorch.ops.library import run_quantize_float, run_quantize_mx
from turbo_quant.pytorch.ops.random import rng_state

__all__ = [
    "FP4_GRANULARITIES",
    "FP8_GRANULARITIES",
    "Groups",
    "Options",
    "plan_float",
    "plan_mx",
    "quantize",
    "rowwise_view",
]

TENSORWISE, ROWWISE = ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE
BLOCKWISE, MX_BLOCKWISE = ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE
FP8_GRANULARITIES = (TENSORWISE, ROWWISE, BLOCKWISE, MX_BLOCKWISE)
FP4_GRANULARITIES = (MX_BLOCKWISE,)

Pair = tuple[torch.Tensor, torch.Tensor]


class Groups(NamedTuple):
    """Where the rows of groups begin, tight and padded for the column copy; int64 on the device."""

    lens: torch.Tensor
    offs: torch.Tensor
    lens_padded: torch.Tensor
    offs_padded: torch.Tensor


class Options(NamedTuple):
    """The arguments of a quantise function, checked.

    Attributes:
        row, column: the recipes of the copies wanted.
        axis: of a ROWWISE copy of any rank, else None.
        amax: of a whole of which x is a piece, TENSORWISE.
    """

    x: torch.Tensor
    out_dtype: torch.dtype
    granularity: ScalingGranularity
    block_size: int
    row: ScalingRecipe | None
    column: ScalingRecipe | None
    axis: int | None
    sign_mask: int
    rng: torch.Tensor | None
    groups: Groups | None = None
    amax: torch.Tensor | None = None


def rowwise_view(shape: torch.Size, axis: int) -> tuple[int, int, int]:
    """[B,R,C] in which a copy along ``axis`` is a row copy (last axis) or a column copy."""
    if axis == len(shape) - 1:
        return 1, math.prod(shape[:-1]), shape[-1]
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def batched(x: torch.Tensor) -> torch.Tensor:
    """[B,R,C] of a tensor with 2 or 3 dimensions."""
    return x if x.dim() == 3 else x.unsqueeze(0)


def check_quantize(
    op: str,
    x: Any,
    out_dtype: Any,
    granularity: Any,
    block_size: Any,
    bits: int,
    sign_mask: Any,
    rng: Any,
    accepted: tuple[ScalingGranularity, ...],
) -> int:
    """What all quantise functions check; returns the block size of the call."""
    checks.check_granularity(op, granularity, accepted)
    checks.check_input(op, x, granularity)
    checks.check_payload_dtype(op, "out_dtype", out_dtype, granularity, bits)
    checks.check_sign_mask(op, sign_mask)
    checks.check_rng(op, rng, x.device)
    return checks.check_block_size(op, granularity, block_size)


def make_groups(op: str, x: torch.Tensor, group_lens: Any, group_offs: Any, multiple: int) -> Groups:
    """Checked groups, with the padding of their column copy."""
    checks.check_groups(op, x, group_lens, group_offs)
    lens_padded, offs_padded = pad_groups(group_lens, multiple)
    return Groups(group_lens, group_offs.long(), lens_padded, offs_padded)


# --- calls ----------------------------------------------------------------------------------------------------------


def plan_float(options: Options) -> QuantizeFloatCall:
    """The call of a TENSORWISE, ROWWISE or BLOCKWISE quantisation; two tile copies are one."""
    x, granularity = options.x, options.granularity
    row, column = options.row is not None, options.column is not None
    tile = bool((options.row or options.column or ScalingRecipe()).use_2d_block)
    if granularity is TENSORWISE:
        x, row, column = x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1] if x.dim() else 1), True, False
    elif options.axis is not None:
        x = x.reshape(rowwise_view(x.shape, options.axis))
    else:
        x = batched(x)
    groups = None if tile or options.groups is None or not column else options.groups
    return QuantizeFloatCall(
        x,
        options.out_dtype,
        granularity,
        options.block_size,
        row or tile,
        column and not tile,
        tile,
        None if groups is None else groups.offs,
        None if groups is None else groups.offs_padded,
        options.amax,
    )


def _direction(op: str, recipe: ScalingRecipe | None, rows: int) -> MxDirection | None:
    if recipe is None:
        return None
    if recipe.shuffle_out and rows % WEIGHT_ROWS:
        raise UnsupportedError(
            f"{op}: shuffle_out with {rows} rows of payload; a multiple of {WEIGHT_ROWS} is accepted"
        )
    tile, stochastic, rht, shuffle_scale, shuffle_out = recipe
    return MxDirection(tile, rht, stochastic, shuffle_scale, shuffle_out)


def plan_mx(op: str, options: Options) -> QuantizeMxCall:
    """The call of an MX quantisation."""
    x = batched(options.x)
    row, column = _direction(op, options.row, x.shape[1]), _direction(op, options.column, x.shape[2])
    rng = None
    if any(direction is not None and direction.stochastic for direction in (row, column)):
        rng = rng_state(x.device) if options.rng is None else options.rng
    groups = options.groups if column is not None else None
    return QuantizeMxCall(
        x,
        mx_format_of(options.out_dtype),
        row,
        column,
        options.sign_mask,
        rng,
        None if groups is None else groups.offs,
        None if groups is None else groups.offs_padded,
    )


# --- and back -------------------------------------------------------------------------------------------------------


def _pair(payload: torch.Tensor | None, scale: torch.Tensor | None, options: Options) -> Pair | None:
    """Of 2-D inputs without the batch; e2m1 payloads as the type that was asked for, which may be uint8."""
    if payload is None or scale is None:
        return None
    if options.x.dim() == 2:
        payload, scale = payload.squeeze(0), scale.squeeze(0)
    return (_bytes_of(payload) if options.out_dtype is torch.uint8 else payload), scale


def _bytes_of(payload: torch.Tensor) -> torch.Tensor:
    if not under_transforms():
        return payload.view(torch.uint8)
    seen: torch.Tensor = _Bytes.apply(payload)
    return seen


class _Bytes(torch.autograd.Function):
    """The view, with a rule for vmap, which torch 2.11 lacks."""

    @staticmethod
    def forward(payload: torch.Tensor) -> torch.Tensor:
        return payload.view(torch.uint8)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], payload: torch.Tensor) -> tuple[torch.Tensor, int | None]:
        return _bytes_of(payload), in_dims[0]


def quantize(op: str, options: Options) -> tuple[Pair | None, Pair | None]:
    """(row pair, column pair) as the public functions return them, None where not wanted."""
    x = options.x
    if options.granularity is MX_BLOCKWISE:
        outputs = run_quantize_mx(plan_mx(op, options))
        return _pair(*outputs[:2], options), _pair(*outputs[2:], options)
    call = plan_float(options)
    outputs = run_quantize_float(call)
    if options.granularity is TENSORWISE:
        return (outputs.row.view(x.shape), outputs.row_scale_inv), None
    if options.axis is not None:
        shape = list(x.shape)
        shape[options.axis] = 1
        q, scale_inv = outputs[:2] if call.row else outputs[2:]
        return (q.view(x.shape), scale_inv.view(shape)), None
    row = _pair(*outputs[:2], options)
    column = row if call.tile else _pair(*outputs[2:], options)
    return (None if options.row is None else row), (None if options.column is None else column)
