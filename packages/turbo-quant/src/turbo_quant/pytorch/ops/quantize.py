# SPDX-License-Identifier: MIT
"""`quantize_fp8`, `quantize_fp4` and their `_with_trans` duals, which give both copies in one pass over x."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from turbo_core.low_precision import ScalingGranularity, ScalingRecipe
from turbo_core.sharding import amax_over, shardable
from turbo_quant.pytorch.ops import checks
from turbo_quant.pytorch.ops.plan import (
    BLOCKWISE,
    FP4_GRANULARITIES,
    FP8_GRANULARITIES,
    MX_BLOCKWISE,
    ROWWISE,
    TENSORWISE,
    Options,
    Pair,
    check_quantize,
    quantize,
)
from turbo_quant.pytorch.ops.sharding import quantize_rules, quantize_two_rules

__all__ = ["quantize_fp4", "quantize_fp4_with_trans", "quantize_fp8", "quantize_fp8_with_trans"]

_DUAL_GRANULARITIES = (ROWWISE, BLOCKWISE, MX_BLOCKWISE)


def options_of_one(
    op: str,
    bits: int,
    x: Any,
    out_dtype: Any,
    granularity: Any,
    *,
    block_size: Any = None,
    axis: Any = None,
    scaling_recipe: Any = None,
    sign_mask: Any = 0,
    rng: Any = None,
) -> Options:
    """Checked arguments of a function that makes one copy."""
    accepted = FP8_GRANULARITIES if bits == 8 else FP4_GRANULARITIES
    size = check_quantize(op, x, out_dtype, granularity, block_size, bits, sign_mask, rng, accepted)
    recipe = checks.check_recipe(op, "scaling_recipe", scaling_recipe, granularity)
    rank = x.dim()
    if granularity is TENSORWISE:
        checks.check_axis(op, axis, rank, tuple(range(rank)), required=False)
        return Options(x, out_dtype, granularity, 0, recipe, None, None, sign_mask, rng)
    if granularity is ROWWISE:
        axis = checks.check_axis(op, axis, rank, tuple(range(rank)))
        last = axis == rank - 1
        return Options(x, out_dtype, granularity, 0, recipe if last else None, None if last else recipe, axis, 0, None)
    tile = granularity is BLOCKWISE and recipe.use_2d_block
    axis = checks.check_axis(op, axis, rank, (rank - 2, rank - 1), required=not tile)
    last = axis != rank - 2
    row, column = (recipe, None) if last else (None, recipe)
    return Options(x, out_dtype, granularity, size, row, column, None, sign_mask, rng)


def options_of_two(
    op: str,
    bits: int,
    x: Any,
    out_dtype: Any,
    granularity: Any,
    *,
    block_size: Any = None,
    scaling_recipe: Any = None,
    scaling_recipe_for_trans: Any = None,
    sign_mask: Any = 0,
    rng: Any = None,
) -> Options:
    """Checked arguments of a function that makes both copies."""
    accepted = _DUAL_GRANULARITIES if bits == 8 else FP4_GRANULARITIES
    size = check_quantize(op, x, out_dtype, granularity, block_size, bits, sign_mask, rng, accepted)
    if granularity is ROWWISE:
        checks.check_rank(op, "x", x, BLOCKWISE)
    row = checks.check_recipe(op, "scaling_recipe", scaling_recipe, granularity)
    column = checks.check_recipe(op, "scaling_recipe_for_trans", scaling_recipe_for_trans, granularity)
    return Options(x, out_dtype, granularity, size, row, column, None, sign_mask, rng)


def quantize_one(op: str, bits: int, *arguments: Any, **keywords: Any) -> Pair:
    """The only copy."""
    row, column = quantize(op, options_of_one(op, bits, *arguments, **keywords))
    pair = row if row is not None else column
    return pair  # type: ignore[return-value]


def quantize_pieces(op: str, bits: int) -> Callable[..., Pair]:
    """The function ``op`` that makes one copy, of pieces, for `turbo_core.sharding.shardable`."""

    def function(
        x: torch.Tensor, out_dtype: Any, granularity: Any, *, divided: Mapping[str, tuple[str, ...]], **keywords: Any
    ) -> Pair:
        options = options_of_one(op, bits, x, out_dtype, granularity, **keywords)
        if granularity is TENSORWISE and divided["x"]:
            options = options._replace(amax=amax_over(x, divided["x"]))
        row, column = quantize(op, options)
        return row if row is not None else column  # type: ignore[return-value]

    return function


def is_mixed(options: Options) -> bool:
    """Whether the copies are tiles one way and pieces of a line the other, which takes two passes."""
    both = options.row is not None and options.column is not None
    return both and options.granularity is BLOCKWISE and options.row != options.column


def quantize_two(op: str, options: Options) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both copies."""
    if is_mixed(options):
        row, column = quantize(op, options._replace(column=None))[0], quantize(op, options._replace(row=None))[1]
    else:
        row, column = quantize(op, options)
    return *row, *column  # type: ignore[misc]


@shardable(quantize_rules(8), quantize_pieces("quantize_fp8", 8), replicated=("rng",))
def quantize_fp8(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    *,
    block_size: int | None = None,
    axis: int | None = None,
    scaling_recipe: ScalingRecipe | None = None,
    sign_mask: int = 0,
    rng: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise to FP8: x ~ q * scale_inv.

    The maths (scales, rounding, NaN and infinity, the rotation, stochastic rounding) are those of `turbo_quant.calls`,
    the same bits on every backend. Not differentiable.

    Args:
        x: bfloat16, float16 or float32, any strides. TENSORWISE: any rank; ROWWISE: at least 1 dimension; BLOCKWISE
            and MX_BLOCKWISE: [M,N] or [B,M,N].
        out_dtype: one of torch's four FP8 types; for MX_BLOCKWISE float8_e4m3fn or float8_e5m2.
        block_size: edge of a block for BLOCKWISE; 32 or None for MX_BLOCKWISE; else None.
        axis: the dimension along which elements share a scale. ROWWISE: any; BLOCKWISE and MX_BLOCKWISE: one of the
            last two. TENSORWISE, and tiles of BLOCKWISE, do not need it.
        scaling_recipe: BLOCKWISE: use_2d_block for block x block tiles. MX_BLOCKWISE: every option; use_2d_block is
            one exponent for a 32 x 32 tile, and does not go with use_rht.
        sign_mask: 16 bits, the signs of the rotation (use_rht).
        rng: int64 [2] on x's device, seed and offset for use_sr; None: `rng_state` of the device.

    Returns:
        (q, scale_inv), contiguous. TENSORWISE: q like x, scale 0-dim. ROWWISE: q like x, scale with 1 at ``axis``.
        BLOCKWISE: q like x; scale [..,M,ceil(N/b)], [..,ceil(M/b),N], or of tiles [..,ceil(M/b),ceil(N/b)].
        MX_BLOCKWISE: along N q [..,M,Np], scale [..,M,Np/32]; along M transposed, q [..,N,Mp], scale [..,N,Mp/32];
        Np, Mp are N, M rounded up to 128, the rest is zeros, scales are float8_e8m0fnu.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
    """
    return quantize_one(
        "quantize_fp8",
        8,
        x,
        out_dtype,
        granularity,
        block_size=block_size,
        axis=axis,
        scaling_recipe=scaling_recipe,
        sign_mask=sign_mask,
        rng=rng,
    )


@shardable(quantize_two_rules(8), replicated=("rng",))
def quantize_fp8_with_trans(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    *,
    block_size: int | None = None,
    scaling_recipe: ScalingRecipe | None = None,
    scaling_recipe_for_trans: ScalingRecipe | None = None,
    sign_mask: int = 0,
    rng: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both copies of x [M,N] or [B,M,N] in one pass: along N (rows) and along M (columns), each from x itself.

    Args:
        granularity: ROWWISE, BLOCKWISE or MX_BLOCKWISE.
        scaling_recipe, scaling_recipe_for_trans: of the row and of the column copy.
        others: as for `quantize_fp8`.

    Returns:
        (q_row, scale_row, q_col, scale_col), each as `quantize_fp8` gives them for that axis. Tiles of BLOCKWISE are
        the same both ways: then the last two are the first two.
    """
    op = "quantize_fp8_with_trans"
    options = options_of_two(
        op,
        8,
        x,
        out_dtype,
        granularity,
        block_size=block_size,
        scaling_recipe=scaling_recipe,
        scaling_recipe_for_trans=scaling_recipe_for_trans,
        sign_mask=sign_mask,
        rng=rng,
    )
    return quantize_two(op, options)


@shardable(quantize_rules(4), replicated=("rng",))
def quantize_fp4(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    *,
    block_size: int | None = None,
    axis: int | None = None,
    scaling_recipe: ScalingRecipe | None = None,
    sign_mask: int = 0,
    rng: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise to MXFP4; as `quantize_fp8` for MX_BLOCKWISE, with two values in a byte (the first in the low half).

    Args:
        out_dtype: torch.float4_e2m1fn_x2, or uint8 for the same bits.
        granularity: MX_BLOCKWISE.
        others: as for `quantize_fp8`.

    Returns:
        (q, scale): along N q [..,M,Np/2], scale [..,M,Np/32]; along M q [..,N,Mp/2], scale [..,N,Mp/32]. With
        shuffles the bytes are in the order of `shuffle_scale` (padded to 256 rows, 8 columns) and `shuffle_weight`.
    """
    return quantize_one(
        "quantize_fp4",
        4,
        x,
        out_dtype,
        granularity,
        block_size=block_size,
        axis=axis,
        scaling_recipe=scaling_recipe,
        sign_mask=sign_mask,
        rng=rng,
    )


@shardable(quantize_two_rules(4), replicated=("rng",))
def quantize_fp4_with_trans(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    *,
    block_size: int | None = None,
    axis: int | None = None,
    scaling_recipe: ScalingRecipe | None = None,
    scaling_recipe_for_trans: ScalingRecipe | None = None,
    sign_mask: int = 0,
    rng: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both MXFP4 copies of x in one pass: (q_row, scale_row, q_col, scale_col), each as `quantize_fp4` gives it.

    ``axis`` must stay None; the rest is as for `quantize_fp8_with_trans`.
    """
    op = "quantize_fp4_with_trans"
    if axis is not None:
        raise checks.UnsupportedError(f"{op}: axis={axis!r}; both axes are made, None is accepted")
    options = options_of_two(
        op,
        4,
        x,
        out_dtype,
        granularity,
        block_size=block_size,
        scaling_recipe=scaling_recipe,
        scaling_recipe_for_trans=scaling_recipe_for_trans,
        sign_mask=sign_mask,
        rng=rng,
    )
    return quantize_two(op, options)
