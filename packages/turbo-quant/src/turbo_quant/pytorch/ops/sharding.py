# SPDX-License-Identifier: MIT
"""How a device mesh may divide quantisation: so that no block that shares a scale is cut.

Along a dimension that no block spans a tensor may be divided anywhere, else at multiples of the block; rows of ROWWISE
not at all. TENSORWISE may be divided anywhere: the ranks agree on the amax. What depends on the place of an element in
the whole tensor, stochastic rounding and shuffles, is computed whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turbo_core.low_precision import MX_BLOCK_SIZE, MX_PADDING, ScalingGranularity, ScalingRecipe
from turbo_core.sharding import WHOLE, Rule, Shapes, Split, full_pieces

__all__ = ["dequantize_rules", "quantize_rules", "quantize_two_rules"]

TENSORWISE, ROWWISE = ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE
MX_BLOCKWISE = ScalingGranularity.MX_BLOCKWISE

_Outputs = tuple[Split | None, ...]


def _recipe(recipe: Any) -> ScalingRecipe:
    return recipe if isinstance(recipe, ScalingRecipe) else ScalingRecipe()


def _copy(
    shape: Sequence[int],
    dim: int,
    axis: int | None,
    bits: int,
    recipe: ScalingRecipe,
    arguments: Mapping[str, Any],
    parts: int,
) -> _Outputs | None:
    """Payload and scale of the copy along ``axis`` where x is divided along ``dim``; None where it may not be."""
    granularity, size = arguments["granularity"], shape[dim]
    if granularity is TENSORWISE:
        return Split(dim, size), None
    if granularity is ROWWISE:
        return None if dim == axis else (Split(dim, size),) * 2
    rank = len(shape)
    spanned = dim == axis or (recipe.use_2d_block and dim >= rank - 2)
    if granularity is not MX_BLOCKWISE:
        block = arguments["block_size"]
        if not spanned:
            return (Split(dim, size),) * 2
        return None if size % (block * parts) else (Split(dim, size), Split(dim, size // block))
    shuffled = recipe.shuffle_scale or recipe.shuffle_out
    if recipe.use_sr or (shuffled and dim >= rank - 2):
        return None
    out = dim if dim < rank - 2 or axis == rank - 1 else 2 * rank - 3 - dim  # a copy along M is stored transposed
    if dim == axis:
        divided = (Split(out, size * bits // 8), Split(out, size // MX_BLOCK_SIZE))
        return None if size % (MX_PADDING * parts) else divided
    return None if spanned and size % (MX_BLOCK_SIZE * parts) else (Split(out, size),) * 2


def quantize_rules(bits: int) -> Any:
    """The rules of quantize_fp8 (8 bits) and quantize_fp4 (4)."""

    def rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
        x, axis = shapes.get("x", ()), arguments["axis"]
        axis = axis % len(x) if isinstance(axis, int) and x else None
        recipe = _recipe(arguments["scaling_recipe"])
        found = [WHOLE]
        for dim in range(len(x)):
            outputs = _copy(x, dim, axis, bits, recipe, arguments, parts)
            if outputs is not None:
                found.append(Rule({"x": dim}, outputs))
        return full_pieces(found, shapes, parts)

    return rules


def quantize_two_rules(bits: int) -> Any:
    """The rules of their forms with two copies: divided as both may be."""

    def rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
        x = shapes.get("x", ())
        recipes = _recipe(arguments["scaling_recipe"]), _recipe(arguments["scaling_recipe_for_trans"])
        found = [WHOLE]
        for dim in range(len(x)):
            row, column = (_copy(x, dim, len(x) - 1 - i, bits, recipes[i], arguments, parts) for i in range(2))
            if row is not None and column is not None:
                found.append(Rule({"x": dim}, (*row, *column)))
        return found

    return rules


def _dequantized(
    shape: Sequence[int], dim: int, axis: int | None, bits: int, arguments: Mapping[str, Any], parts: int
) -> Rule | None:
    """The rule that divides a payload along ``dim``; None where there is none."""
    granularity, size, rank = arguments["granularity"], shape[dim], len(shape)
    recipe = _recipe(arguments["scaling_recipe"])
    if granularity is TENSORWISE or (granularity is ROWWISE and dim == axis):
        return Rule({"x": dim}, (Split(dim, size),))
    out = dim
    if granularity is MX_BLOCKWISE:
        if dim == rank - 1:
            size *= 2 if bits == 4 else 1
            if size % (MX_PADDING * parts) or arguments["size"] is not None:
                return None
        if dim >= rank - 2:
            if recipe.shuffle_scale or recipe.shuffle_out:
                return None
            out = dim if axis == rank - 1 or rank == 3 else 2 * rank - 3 - dim  # a batch stays as it is stored
    elif granularity is not ROWWISE:
        spanned = dim == axis or (recipe.use_2d_block and dim >= rank - 2)
        if spanned and size % (arguments["block_size"] * parts):
            return None
    return Rule({"x": dim, "scale_inv": dim}, (Split(out, size),))


def dequantize_rules(bits: int) -> Any:
    """The rules of dequantize_fp8 (8 bits) and dequantize_fp4 (4)."""

    def rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
        x, axis = shapes.get("x", ()), arguments["axis"]
        axis = axis % len(x) if isinstance(axis, int) and x else None
        found = (_dequantized(x, dim, axis, bits, arguments, parts) for dim in range(len(x)))
        return [WHOLE, *(rule for rule in found if rule is not None)]

    return rules
