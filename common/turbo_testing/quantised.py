# SPDX-License-Identifier: MIT
"""What a GEMM of quantised operands must equal, built from turbo_quant's public functions and float64 products.

Two yardsticks: `references.gemm` of the original inputs, within the SNR that `gate` demands; and `product` of the
dequantised inputs, which a backend must equal but for its final rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turbo_core.low_precision import (
    Float4QuantConfig,
    Float8QuantConfig,
    Format,
    ScaleDtype,
    ScalingGranularity,
    ScalingRecipe,
    fp8_dtype,
)
from turbo_testing import references

__all__ = ["FP4_CONFIGS", "FP8_CONFIGS", "gate", "product", "round_trip"]

_MX: dict[str, Any] = {"granularity": ScalingGranularity.MX_BLOCKWISE, "block_size": 32, "scale_dtype": ScaleDtype.E8M0}
_BLOCKS: dict[str, Any] = {"granularity": ScalingGranularity.BLOCKWISE, "block_size": 128}

FP8_CONFIGS = {
    "tensorwise-e4m3": Float8QuantConfig(),
    "tensorwise-e5m2": Float8QuantConfig(format=Format.E5M2),
    "tensorwise-hybrid": Float8QuantConfig(format=Format.HYBRID),
    "rowwise-e4m3": Float8QuantConfig(granularity=ScalingGranularity.ROWWISE),
    "rowwise-e5m2": Float8QuantConfig(format=Format.E5M2, granularity=ScalingGranularity.ROWWISE),
    "rowwise-hybrid": Float8QuantConfig(format=Format.HYBRID, granularity=ScalingGranularity.ROWWISE),
    "blockwise-e4m3": Float8QuantConfig(**_BLOCKS),
    "blockwise-e5m2": Float8QuantConfig(format=Format.E5M2, **_BLOCKS),
    "blockwise-hybrid": Float8QuantConfig(format=Format.HYBRID, **_BLOCKS),
    "mx-e4m3": Float8QuantConfig(**_MX),
    "mx-e5m2": Float8QuantConfig(format=Format.E5M2, **_MX),
    "mx-hybrid": Float8QuantConfig(format=Format.HYBRID, **_MX),
}
FP4_CONFIGS = {
    "mxfp4": Float4QuantConfig(),
    "mxfp4-sr": Float4QuantConfig(use_gradient_sr=True),
    "mxfp4-preshuffled": Float4QuantConfig(use_preshuffle=True),
}


def gate(config: Float8QuantConfig | Float4QuantConfig) -> float:
    """The SNR in dB that results must exceed."""
    if isinstance(config, Float4QuantConfig):
        return 10.0
    return 25.0 if config.format is Format.E4M3 else 20.0


def round_trip(x: Tensor, config: Float8QuantConfig | Float4QuantConfig, which: str, axis: int) -> Tensor:
    """float64 of what is left of ``x`` (``a``, ``b`` or the ``gradient``) when quantised along ``axis`` and back.

    No stochastic rounding, no rotation: where both sides of a product are rotated, `product` does it.
    """
    import turbo_quant

    granularity = config.granularity
    tiles = which == "b" and granularity in (ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE)
    options: dict[str, Any] = {"block_size": config.block_size, "scaling_recipe": ScalingRecipe(use_2d_block=tiles)}
    if granularity is ScalingGranularity.TENSORWISE or granularity is ScalingGranularity.ROWWISE:
        options = {}
    if granularity is not ScalingGranularity.TENSORWISE:
        options["axis"] = axis
    fp4 = isinstance(config, Float4QuantConfig)
    if fp4:
        dtype = getattr(torch, "float4_e2m1fn_x2", torch.uint8)
    elif granularity is ScalingGranularity.MX_BLOCKWISE:  # a storage format: OCP on every device
        coarse = config.format is Format.E5M2 or (config.format is Format.HYBRID and which == "gradient")
        dtype = torch.float8_e5m2 if coarse else torch.float8_e4m3fn
    else:
        dtype = fp8_dtype(config.format, x.device, is_forward=which != "gradient")
    quantise, dequantise = (
        (turbo_quant.quantize_fp4, turbo_quant.dequantize_fp4)
        if fp4
        else (turbo_quant.quantize_fp8, turbo_quant.dequantize_fp8)
    )
    q, scale_inv = quantise(x, dtype, granularity, **options)
    if granularity is ScalingGranularity.MX_BLOCKWISE:
        options["size"] = x.shape[axis]
    return dequantise(q, torch.float32, granularity, scale_inv=scale_inv, **options).double()


def product(
    a: Tensor,
    b: Tensor,
    grad_out: Tensor,
    trans_a: bool,
    trans_b: bool,
    config: Float8QuantConfig | Float4QuantConfig,
    rotate: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """C, dA and dB in float64 of operands quantised along each product's contraction, in the inputs' layouts.

    ``rotate`` is applied along M to both sides of dB before they are quantised (an orthogonal transform).
    """
    a, b, grad_out = a.detach(), b.detach(), grad_out.detach()
    along_k, along_m = (0, 1) if trans_a else (1, 0)  # of a
    b_along_k, b_along_n = (1, 0) if trans_b else (0, 1)
    c = references.gemm(round_trip(a, config, "a", along_k), round_trip(b, config, "b", b_along_k), trans_a, trans_b)
    g_n = round_trip(grad_out, config, "gradient", 1)
    grad_a, _ = references.gemm_backward(a, round_trip(b, config, "b", b_along_n), g_n, trans_a, trans_b)
    if rotate is not None:
        a, grad_out = rotate(a, along_m), rotate(grad_out, 0)
    g_m, a_m = round_trip(grad_out, config, "gradient", 0), round_trip(a, config, "a", along_m)
    _, grad_b = references.gemm_backward(a_m, b.new_zeros(b.shape), g_m, trans_a, trans_b)
    return c, grad_a, grad_b
