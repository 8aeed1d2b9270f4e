# SPDX-License-Identifier: MIT
"""Weights quantised once for several steps, in the form that the GEMM ops want, and the check of such operands."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import (
    Float4QuantConfig,
    Float8QuantConfig,
    Format,
    ScalingGranularity,
    ScalingRecipe,
    is_fp8_dtype,
)
from turbo_quant.formats import fp4_dtype
from turbo_quant.pytorch.ops.quantize import quantize_fp4_with_trans, quantize_fp8_with_trans
from turbo_quant.pytorch.quantized_tensor import QuantizedTensor

__all__ = ["QuantizedTensorPair", "check_quantized_tensor", "create_quantized_weight"]

Config = Float8QuantConfig | Float4QuantConfig


class QuantizedTensorPair(NamedTuple):
    """An operand for forward and the copy of it for backward.

    ``data_t`` is the same matrix quantised along its other dimension (axis -2), made from the original; for TENSORWISE,
    which has no axis, it is the transpose of ``data``, its payload transposed in memory.
    """

    data: torch.Tensor | QuantizedTensor
    data_t: QuantizedTensor | None = None


def _check_config(op: str, config: Any) -> Config:
    if not isinstance(config, (Float8QuantConfig, Float4QuantConfig)):
        raise UnsupportedError(f"{op}: config={config!r}; a Float8QuantConfig or a Float4QuantConfig is accepted")
    return config


def _weight_recipe(config: Config) -> ScalingRecipe | None:
    """The recipe of a GEMM's second operand."""
    if isinstance(config, Float4QuantConfig):
        return ScalingRecipe(use_2d_block=True, shuffle_scale=config.use_preshuffle, shuffle_out=config.use_preshuffle)
    if config.granularity in (ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE):
        return ScalingRecipe(use_2d_block=True)
    return None


def create_quantized_weight(
    weight: torch.Tensor,
    dest_dtype: torch.dtype,
    quant_config: Float8QuantConfig | Float4QuantConfig,
    need_weight_transpose_cache: bool = False,
) -> tuple[QuantizedTensor, QuantizedTensor | None]:
    """Quantise a weight [N,K] or [B,N,K] with the recipe that the GEMM ops expect of one.

    FP4: 32 x 32 tiles, shuffled with ``use_preshuffle``. FP8 BLOCKWISE and MX_BLOCKWISE: tiles.

    Returns:
        (qt, qt_t): quantised along -1, requiring grad where the weight does; and, where asked, along -2, both in one
        pass over the weight (see `QuantizedTensorPair`), else None.
    """
    op = "create_quantized_weight"
    config = _check_config(op, quant_config)
    granularity, recipe = config.granularity, _weight_recipe(config)
    block_size = config.block_size if granularity is ScalingGranularity.BLOCKWISE else None
    if not need_weight_transpose_cache or granularity is ScalingGranularity.TENSORWISE:
        qt = QuantizedTensor.quantize(
            weight, dest_dtype, granularity, axis=-1, block_size=block_size, scaling_recipe=recipe
        )
        if not need_weight_transpose_cache:
            return qt, None
        turned = qt.detach().transpose(-1, -2)
        turned.qdata = turned.qdata.contiguous()
        return qt, turned
    if not isinstance(weight, torch.Tensor) or weight.dim() not in (2, 3):
        raise UnsupportedError(f"{op}: weight is {weight!r}; a tensor of 2 or 3 dimensions is accepted")
    dual = quantize_fp4_with_trans if isinstance(config, Float4QuantConfig) else quantize_fp8_with_trans
    q, scale, q_t, scale_t = dual(
        weight,
        dest_dtype,
        granularity,
        block_size=block_size,
        scaling_recipe=recipe,
        scaling_recipe_for_trans=recipe,
    )
    described: dict[str, Any] = {
        "shape": tuple(weight.shape),
        "orig_dtype": weight.dtype,
        "dest_dtype": dest_dtype,
        "granularity": granularity,
        "block_size": block_size,
        "scaling_recipe": recipe,
    }
    return (
        QuantizedTensor(q, scale, quantized_axis=-1, requires_grad=weight.requires_grad, **described),
        QuantizedTensor(q_t, scale_t, quantized_axis=-2, **described),
    )


_FORMATS = {
    torch.float8_e4m3fn: Format.E4M3,
    torch.float8_e4m3fnuz: Format.E4M3,
    torch.float8_e5m2: Format.E5M2,
    torch.float8_e5m2fnuz: Format.E5M2,
    torch.uint8: Format.E2M1_X2,
    fp4_dtype(): Format.E2M1_X2,
}


def check_quantized_tensor(
    qt: QuantizedTensor,
    config: Float8QuantConfig | Float4QuantConfig,
    axis: int | None = None,
    scaling_recipe: ScalingRecipe | None = None,
) -> None:
    """That ``qt`` is what ``config`` would make along ``axis`` (None: any) with ``scaling_recipe`` (None: no option).

    HYBRID is taken as the forward's E4M3.

    Raises:
        UnsupportedError: it is not; the message says in what.
    """
    op = "check_quantized_tensor"
    config = _check_config(op, config)
    if not isinstance(qt, QuantizedTensor):
        raise UnsupportedError(f"{op}: qt={type(qt).__name__}; a QuantizedTensor is accepted")

    def must(name: str, found: Any, wanted: Any) -> None:
        if found != wanted:
            raise UnsupportedError(f"{op}: {name} is {found}; the config asks for {wanted}")

    must("granularity", qt.granularity, config.granularity)
    format = Format.E4M3 if config.format is Format.HYBRID else config.format
    must(f"the format of {qt.real_dtype}", _FORMATS.get(qt.real_dtype), format)
    if config.granularity is ScalingGranularity.BLOCKWISE:
        must("block_size", qt.block_size, config.block_size)
    recipe = scaling_recipe or ScalingRecipe()
    must("scaling_recipe", qt.scaling_recipe or ScalingRecipe(), recipe)
    tiles = config.granularity is ScalingGranularity.BLOCKWISE and recipe.use_2d_block
    if axis is not None and config.granularity is not ScalingGranularity.TENSORWISE and not tiles:
        must("quantized_axis", qt.quantized_axis, axis % qt.dim() - qt.dim())
    if is_fp8_dtype(qt.real_dtype) and qt.granularity is ScalingGranularity.MX_BLOCKWISE:
        must("the type", qt.real_dtype in (torch.float8_e4m3fn, torch.float8_e5m2), True)
