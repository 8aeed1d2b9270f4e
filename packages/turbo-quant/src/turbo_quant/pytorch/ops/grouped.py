# SPDX-License-Identifier: MIT
"""Quantise rows that belong to groups (experts): row copies stay tight, column copies are padded group by group.

The padding is computed on the device, without a host sync: outputs have a fixed upper bound of rows, and the returned
lens and offs say where each group is.
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import MX_PADDING, ScalingGranularity, ScalingRecipe
from turbo_quant.pytorch.kernels.grouping import row_of_padded_row
from turbo_quant.pytorch.ops import checks
from turbo_quant.pytorch.ops.dequantize import plan_dequantize, run
from turbo_quant.pytorch.ops.plan import BLOCKWISE, MX_BLOCKWISE, Options, make_groups, quantize
from turbo_quant.pytorch.ops.quantize import options_of_one, options_of_two, quantize_two

__all__ = [
    "grouped_dequantize_fp4",
    "grouped_dequantize_fp8",
    "grouped_quantize_fp4",
    "grouped_quantize_fp4_with_trans",
    "grouped_quantize_fp8",
    "grouped_quantize_fp8_with_trans",
]

_Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_Eight = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
]
_GRANULARITIES = (BLOCKWISE, MX_BLOCKWISE)


def options_of_groups(
    op: str, bits: int, two: bool, x: Any, out_dtype: Any, granularity: Any, lens: Any, offs: Any, **keywords: Any
) -> Options:
    """Checked arguments of a grouped quantisation of one copy or two."""
    options = (options_of_two if two else options_of_one)(op, bits, x, out_dtype, granularity, **keywords)
    checks.check_granularity(op, options.granularity, _GRANULARITIES)
    for recipe in (options.row, options.column):
        if recipe is not None and (recipe.shuffle_scale or recipe.shuffle_out):
            raise UnsupportedError(f"{op}: {recipe}; grouped payloads and scales have no shuffled order")
        if recipe is not None and recipe.use_2d_block and options.granularity is BLOCKWISE:
            raise UnsupportedError(f"{op}: use_2d_block with BLOCKWISE; with groups 1-D blocks are accepted")
    multiple = MX_PADDING if options.granularity is MX_BLOCKWISE else options.block_size
    return options._replace(groups=make_groups(op, options.x, lens, offs, multiple))


def quantize_one(
    op: str, bits: int, x: Any, out_dtype: Any, granularity: Any, lens: Any, offs: Any, **keywords: Any
) -> _Four:
    """One copy and its groups."""
    options = options_of_groups(op, bits, False, x, out_dtype, granularity, lens, offs, **keywords)
    row, column = quantize(op, options)
    if row is not None:
        return *row, lens, offs
    groups = options.groups
    return *column, groups.lens_padded, groups.offs_padded  # type: ignore[misc, union-attr]


def _two(op: str, bits: int, x: Any, out_dtype: Any, granularity: Any, lens: Any, offs: Any, **keywords: Any) -> _Eight:
    options = options_of_groups(op, bits, True, x, out_dtype, granularity, lens, offs, **keywords)
    groups = options.groups
    return *quantize_two(op, options), lens, offs, groups.lens_padded, groups.offs_padded  # type: ignore[union-attr]


def grouped_quantize_fp8(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor,
    *,
    block_size: int | None = None,
    axis: int | None = None,
    scaling_recipe: ScalingRecipe | None = None,
    sign_mask: int = 0,
    rng: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise x [M,N], whose rows belong to G groups, so that no block holds rows of two groups.

    Args:
        granularity: BLOCKWISE (1-D blocks, ``block_size``) or MX_BLOCKWISE.
        group_lens: [G], rows of each group, int64 or int32, on x's device; some may be 0, their sum may be under M.
        group_offs: [G+1], where each begins.
        axis: 1: along N, where groups change nothing. 0: along M, each group padded with zero rows to a multiple of
            ``block_size`` or 128; rows of x that belong to no group are not read.
        others: as for `quantize_fp8`, without shuffles.

    Returns:
        (q, scale, lens, offs). axis 1: q, scale as `quantize_fp8` gives them, and the groups as they came.
        axis 0: int64 lens and offs of the padded groups; BLOCKWISE: q [P,N] with P = M + G*block_size,
        scale [ceil(P/block_size),N]; MX_BLOCKWISE: q [N,P] with P = M + G*127 rounded up to 128, scale [N,P/32].
        What lies past the last group is zeros.
    """
    return quantize_one(
        "grouped_quantize_fp8",
        8,
        x,
        out_dtype,
        granularity,
        group_lens,
        group_offs,
        block_size=block_size,
        axis=axis,
        scaling_recipe=scaling_recipe,
        sign_mask=sign_mask,
        rng=rng,
    )


def grouped_quantize_fp8_with_trans(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor,
    *,
    block_size: int | None = None,
    scaling_recipe: ScalingRecipe | None = None,
    scaling_recipe_for_trans: ScalingRecipe | None = None,
    sign_mask: int = 0,
    rng: torch.Tensor | None = None,
) -> _Eight:
    """Both copies of x in one pass: (q_row, s_row, q_col, s_col, lens_row, offs_row, lens_col, offs_col).

    The row copy and its groups as `grouped_quantize_fp8` gives them for axis 1, the column copy as for axis 0.
    """
    return _two(
        "grouped_quantize_fp8_with_trans",
        8,
        x,
        out_dtype,
        granularity,
        group_lens,
        group_offs,
        block_size=block_size,
        scaling_recipe=scaling_recipe,
        scaling_recipe_for_trans=scaling_recipe_for_trans,
        sign_mask=sign_mask,
        rng=rng,
    )


def grouped_quantize_fp4(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor,
    *,
    block_size: int | None = None,
    axis: int | None = None,
    scaling_recipe: ScalingRecipe | None = None,
    sign_mask: int = 0,
    rng: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `grouped_quantize_fp8` for MX_BLOCKWISE, with MXFP4 payloads (two values a byte)."""
    return quantize_one(
        "grouped_quantize_fp4",
        4,
        x,
        out_dtype,
        granularity,
        group_lens,
        group_offs,
        block_size=block_size,
        axis=axis,
        scaling_recipe=scaling_recipe,
        sign_mask=sign_mask,
        rng=rng,
    )


def grouped_quantize_fp4_with_trans(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor,
    *,
    block_size: int | None = None,
    scaling_recipe: ScalingRecipe | None = None,
    scaling_recipe_for_trans: ScalingRecipe | None = None,
    sign_mask: int = 0,
    rng: torch.Tensor | None = None,
) -> _Eight:
    """As `grouped_quantize_fp8_with_trans` for MX_BLOCKWISE, with MXFP4 payloads."""
    return _two(
        "grouped_quantize_fp4_with_trans",
        4,
        x,
        out_dtype,
        granularity,
        group_lens,
        group_offs,
        block_size=block_size,
        scaling_recipe=scaling_recipe,
        scaling_recipe_for_trans=scaling_recipe_for_trans,
        sign_mask=sign_mask,
        rng=rng,
    )


# --- and back -------------------------------------------------------------------------------------------------------


def dequantize_one(
    op: str,
    bits: int,
    x: Any,
    out_dtype: Any,
    granularity: Any,
    group_offs: Any,
    group_offs_padded: Any,
    total_M: Any,
    *,
    axis: Any,
    **keywords: Any,
) -> torch.Tensor:
    """The rows without the padding of their groups."""
    checks.check_granularity(op, granularity, _GRANULARITIES if bits == 8 else (MX_BLOCKWISE,))
    if not isinstance(x, torch.Tensor) or x.dim() != 2:
        raise UnsupportedError(f"{op}: x is {checks.what(x)}; with groups 2 dimensions are accepted")
    axis = checks.check_axis(op, axis, 2, (0, 1))
    if axis == 1:
        return run(plan_dequantize(op, bits, x, out_dtype, granularity, axis=1, **keywords), x)
    for name, value in (("group_offs", group_offs), ("group_offs_padded", group_offs_padded)):
        checks.check_offs(op, name, value, x.device)
    if group_offs.shape != group_offs_padded.shape:
        raise UnsupportedError(
            f"{op}: group_offs is {checks.what(group_offs)}, group_offs_padded {checks.what(group_offs_padded)}; "
            f"they must be of one size"
        )
    if total_M is None:
        total_M = int(group_offs[-1])
    if isinstance(total_M, bool) or not isinstance(total_M, (int, torch.SymInt)) or total_M < 0:
        raise UnsupportedError(f"{op}: total_M={total_M!r}; None or a number of rows is accepted")
    padded = run(plan_dequantize(op, bits, x, out_dtype, granularity, axis=0, **keywords), x)
    if padded.shape[0] == 0:
        return padded.new_zeros((total_M, padded.shape[1]))
    # the same map as tight -> padded, with the two sides exchanged
    source, inside = row_of_padded_row(group_offs_padded.long(), group_offs.long(), total_M, padded.shape[0])
    return torch.where(inside[:, None], padded[source], 0)


def grouped_dequantize_fp8(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    group_offs: torch.Tensor,
    group_offs_padded: torch.Tensor,
    *,
    block_size: int | None = None,
    axis: int | None = None,
    scale_inv: torch.Tensor,
    scaling_recipe: ScalingRecipe | None = None,
    total_M: int | None = None,
    size: int | None = None,
    sign_mask: int = 0,
) -> torch.Tensor:
    """The inverse of `grouped_quantize_fp8`.

    Args:
        group_offs, group_offs_padded: [G+1], the groups of the tight rows and of the copy; read for axis 0 alone.
        axis: 1 or 0, as quantised.
        total_M: axis 0: rows of the result, those past the last group are zeros. None: group_offs[-1], which waits
            for the device.
        size: axis 1: N, to drop the padding of an MX row copy; None: all.
        others: as for `dequantize_fp8`.

    Returns:
        [M,N] without the padding of groups.
    """
    return dequantize_one(
        "grouped_dequantize_fp8",
        8,
        x,
        out_dtype,
        granularity,
        group_offs,
        group_offs_padded,
        total_M,
        axis=axis,
        block_size=block_size,
        scale_inv=scale_inv,
        scaling_recipe=scaling_recipe,
        size=size,
        sign_mask=sign_mask,
    )


def grouped_dequantize_fp4(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    *,
    block_size: int | None = None,
    axis: int | None = None,
    scale_inv: torch.Tensor,
    scaling_recipe: ScalingRecipe | None = None,
    group_offs: torch.Tensor | None = None,
    group_offs_padded: torch.Tensor | None = None,
    total_M: int | None = None,
    size: int | None = None,
    sign_mask: int = 0,
) -> torch.Tensor:
    """The inverse of `grouped_quantize_fp4`; the groups are needed for axis 0. Else as `grouped_dequantize_fp8`."""
    return dequantize_one(
        "grouped_dequantize_fp4",
        4,
        x,
        out_dtype,
        granularity,
        group_offs,
        group_offs_padded,
        total_M,
        axis=axis,
        block_size=block_size,
        scale_inv=scale_inv,
        scaling_recipe=scaling_recipe,
        size=size,
        sign_mask=sign_mask,
    )
