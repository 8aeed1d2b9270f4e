# SPDX-License-Identifier: MIT
"""`dequantize_fp8` and `dequantize_fp4`: x = q * scale_inv."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import MX_BLOCK_SIZE, MX_PADDING, ScalingGranularity, ScalingRecipe
from turbo_core.sharding import shardable
from turbo_quant.calls import (
    SHUFFLED_SCALE_COLUMNS,
    SHUFFLED_SCALE_ROWS,
    DequantizeFloatCall,
    DequantizeMxCall,
    ShuffleWeightCall,
    UnshuffleScaleCall,
    ceil_div,
    round_up,
)
from turbo_quant.formats import MX_FORMATS, mx_format_of
from turbo_quant.pytorch.kernels.shuffle import WEIGHT_ROWS
from turbo_quant.pytorch.ops import checks
from turbo_quant.pytorch.ops.library import (
    run_dequantize_float,
    run_dequantize_mx,
    unshuffle_scale,
    unshuffle_weight,
)
from turbo_quant.pytorch.ops.plan import (
    FP4_GRANULARITIES,
    FP8_GRANULARITIES,
    MX_BLOCKWISE,
    ROWWISE,
    TENSORWISE,
    batched,
    rowwise_view,
)
from turbo_quant.pytorch.ops.sharding import dequantize_rules

__all__ = ["dequantize_fp4", "dequantize_fp8"]


def _check_scale(op: str, scale: Any, shape: list[int], dtypes: tuple[str, ...], device: torch.device) -> None:
    valid = isinstance(scale, torch.Tensor) and list(scale.shape) == shape and scale.device == device
    if not valid or str(scale.dtype).removeprefix("torch.") not in dtypes:
        accepted = f"{' or '.join(dtypes)} of shape {shape} on {device}"
        raise UnsupportedError(f"{op}: scale_inv is {checks.what(scale)}; {accepted} is accepted")


def plan_dequantize(
    op: str,
    bits: int,
    x: Any,
    out_dtype: Any,
    granularity: Any,
    *,
    scale_inv: Any,
    block_size: Any = None,
    axis: Any = None,
    scaling_recipe: Any = None,
    size: Any = None,
    sign_mask: Any = 0,
    of_source: bool = False,
) -> DequantizeFloatCall | DequantizeMxCall:
    """The call for checked arguments; shuffles are undone here.

    of_source: a batch of MX copies along the rows comes back in the shape of its source too, not as it is stored.
    """
    checks.check_granularity(op, granularity, FP8_GRANULARITIES if bits == 8 else FP4_GRANULARITIES)
    if not isinstance(x, torch.Tensor):
        raise UnsupportedError(f"{op}: x is {x!r}; a tensor is accepted")
    checks.check_payload_dtype(op, "x.dtype", x.dtype, granularity, bits)
    checks.check_rank(op, "x", x, granularity)
    checks.check_out_dtype(op, out_dtype)
    checks.check_underived(op, x=x, scale_inv=scale_inv)
    checks.check_sign_mask(op, sign_mask)
    block = checks.check_block_size(op, granularity, block_size)
    recipe = checks.check_recipe(op, "scaling_recipe", scaling_recipe, granularity)
    rank = x.dim()
    x = x.detach()
    if granularity is MX_BLOCKWISE:
        axis = checks.check_axis(op, axis, rank, (rank - 2, rank - 1))
        transpose = axis == rank - 2 and (rank == 2 or of_source)
        return _plan_mx(op, x, scale_inv, recipe, transpose, size, sign_mask, out_dtype)
    if size is not None:
        raise UnsupportedError(f"{op}: size={size!r}; only MX_BLOCKWISE payloads are padded, None is accepted")
    if granularity is TENSORWISE:
        checks.check_axis(op, axis, rank, tuple(range(rank)), required=False)
        if isinstance(scale_inv, torch.Tensor) and scale_inv.numel() == 1:
            scale_inv = scale_inv.reshape(())
        _check_scale(op, scale_inv, [], ("float32",), x.device)
        view = x if rank == 3 else x.reshape(rowwise_view(x.shape, rank - 1) if rank else (1, 1, 1))
        return DequantizeFloatCall(view, scale_inv, granularity, 0, 0, out_dtype)
    if granularity is ROWWISE:
        axis = checks.check_axis(op, axis, rank, tuple(range(rank)))
        _check_scale(op, scale_inv, [1 if i == axis else n for i, n in enumerate(x.shape)], ("float32",), x.device)
        B, R, C = rowwise_view(x.shape, axis)
        last = axis == rank - 1
        scale_inv = scale_inv.reshape((B, R, 1) if last else (B, 1, C))
        return DequantizeFloatCall(x.reshape(B, R, C), scale_inv, granularity, 0, 2 if last else 1, out_dtype)
    tile = recipe.use_2d_block
    axis = checks.check_axis(op, axis, rank, (rank - 2, rank - 1), required=not tile)
    shape = list(x.shape)
    for dim in (rank - 2, rank - 1) if tile else (axis,):
        shape[dim] = ceil_div(shape[dim], block)
    _check_scale(op, scale_inv, shape, ("float32",), x.device)
    kind = 0 if tile else 2 if axis == rank - 1 else 1
    return DequantizeFloatCall(batched(x), batched(scale_inv), granularity, block, kind, out_dtype)


def _plan_mx(
    op: str,
    x: torch.Tensor,
    scale: Any,
    recipe: ScalingRecipe,
    transpose: bool,
    size: Any,
    sign_mask: int,
    out_dtype: torch.dtype,
) -> DequantizeMxCall:
    format = mx_format_of(x.dtype)
    rows, values = x.shape[-2], x.shape[-1] * MX_FORMATS[format].per_byte
    if values % MX_PADDING:
        raise UnsupportedError(f"{op}: x holds {values} values in a row; a multiple of {MX_PADDING} is accepted")
    if size is None:
        size = values
    if isinstance(size, bool) or not isinstance(size, (int, torch.SymInt)) or not 0 <= size <= values:
        raise UnsupportedError(f"{op}: size={size!r}; None or a number from 0 to {values} is accepted")
    columns = values // MX_BLOCK_SIZE
    shape = [*x.shape[:-2], rows, columns]
    if recipe.shuffle_scale:
        shape[-2:] = [round_up(rows, SHUFFLED_SCALE_ROWS), round_up(columns, SHUFFLED_SCALE_COLUMNS)]
    _check_scale(op, scale, shape, ("float8_e8m0fnu", "uint8"), x.device)
    if recipe.shuffle_scale:
        scale = unshuffle_scale(UnshuffleScaleCall(scale.contiguous(), rows, columns))
    if recipe.shuffle_out:
        if rows % WEIGHT_ROWS:
            raise UnsupportedError(f"{op}: shuffle_out with {rows} rows of x; a multiple of {WEIGHT_ROWS} is accepted")
        x = unshuffle_weight(ShuffleWeightCall(x.contiguous()))
    return DequantizeMxCall(batched(x), batched(scale), format, size, transpose, recipe.use_rht, sign_mask, out_dtype)


def run(call: DequantizeFloatCall | DequantizeMxCall, x: torch.Tensor) -> torch.Tensor:
    """The result in the public shape."""
    if isinstance(call, DequantizeMxCall):
        result: torch.Tensor = run_dequantize_mx(call)
        return result if x.dim() == 3 else result.squeeze(0)
    result = run_dequantize_float(call)
    return result.view(x.shape)


@shardable(dequantize_rules(8))
def dequantize_fp8(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    *,
    block_size: int | None = None,
    axis: int | None = None,
    scale_inv: torch.Tensor,
    scaling_recipe: ScalingRecipe | None = None,
    size: int | None = None,
    sign_mask: int = 0,
) -> torch.Tensor:
    """The inverse of `quantize_fp8`: q * scale_inv in float32, rounded once. Not differentiable.

    Args:
        x: a payload, any strides.
        out_dtype: bfloat16, float16 or float32.
        block_size, axis, scaling_recipe, sign_mask: those of the quantisation. Shuffles and the rotation are undone.
        scale_inv: as the quantisation gave it; for MX_BLOCKWISE also uint8.
        size: MX_BLOCKWISE: how many values along ``axis`` are wanted, the rest being padding; None: all.

    Returns:
        A contiguous tensor of the shape of what was quantised. An MX copy along the last but one axis is stored
        transposed: of two dimensions it comes back as [size, N]; a batch stays as it is stored, [B, N, size].

    Raises:
        UnsupportedError: an argument is outside the above.
    """
    call = plan_dequantize(
        "dequantize_fp8",
        8,
        x,
        out_dtype,
        granularity,
        scale_inv=scale_inv,
        block_size=block_size,
        axis=axis,
        scaling_recipe=scaling_recipe,
        size=size,
        sign_mask=sign_mask,
    )
    return run(call, x)


@shardable(dequantize_rules(4))
def dequantize_fp4(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    *,
    block_size: int | None = None,
    axis: int | None = None,
    scale_inv: torch.Tensor,
    scaling_recipe: ScalingRecipe | None = None,
    size: int | None = None,
    sign_mask: int = 0,
) -> torch.Tensor:
    """The inverse of `quantize_fp4`; arguments as for `dequantize_fp8`, x is float4_e2m1fn_x2 or uint8."""
    call = plan_dequantize(
        "dequantize_fp4",
        4,
        x,
        out_dtype,
        granularity,
        scale_inv=scale_inv,
        block_size=block_size,
        axis=axis,
        scaling_recipe=scaling_recipe,
        size=size,
        sign_mask=sign_mask,
    )
    return run(call, x)
