# SPDX-License-Identifier: MIT
"""The operands that users pass to gemm_fp8 and gemm_fp4: checked, and quantised where they are not yet."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig, ScalingGranularity, ScalingRecipe
from turbo_gemm.calls import Operand
from turbo_gemm.pytorch.ops.gemm_checks import check_gemm, check_main_grad
from turbo_gemm.pytorch.ops.gemm_fp8_quantize import Quantised, Scheme, mx_direction, quantize
from turbo_quant import QuantizedTensor, QuantizedTensorPair, check_quantized_tensor

__all__ = ["as_pair", "checked", "dequantized", "operand_recipe", "quantized"]

_PRESHUFFLE_ALIGNMENT = 16  # rows of a tile of AITER's payload order


def checked(
    op: str,
    a: Any,
    b: Any,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    config: Float8QuantConfig | Float4QuantConfig,
    pattern: str | None,
    bias: torch.Tensor | None,
) -> tuple[QuantizedTensorPair, QuantizedTensorPair]:
    """a and b as pairs, where they and all other arguments fit together."""
    a, b = as_pair(op, "a", a), as_pair(op, "b", b)
    check_gemm(a.data, b.data, trans_a, trans_b, out_dtype, bias, op)
    if isinstance(config, Float4QuantConfig) and config.use_preshuffle:
        sizes = [*a.data.shape, *b.data.shape]
        if any(size % _PRESHUFFLE_ALIGNMENT for size in sizes):
            raise UnsupportedError(
                f"{op}: config.use_preshuffle with a of shape {sizes[:2]} and b of shape {sizes[2:]}; multiples of "
                f"{_PRESHUFFLE_ALIGNMENT} are accepted"
            )
    if pattern is not None:
        check_main_grad(b.data, pattern, op)
    return a, b


def as_pair(op: str, name: str, x: Any) -> QuantizedTensorPair:
    """``x`` as a pair: what the forward reads, to which the gradient belongs, and what is given for the backward.

    That it is a matrix is checked afterwards.
    """
    if not isinstance(x, QuantizedTensorPair):
        return QuantizedTensorPair(x)
    if x.data_t is not None and not isinstance(x.data_t, QuantizedTensor):
        raise UnsupportedError(
            f"{op}: {name}.data_t is a {type(x.data_t).__name__}; a QuantizedTensor or None is accepted"
        )
    return x


def dequantized(source: torch.Tensor) -> torch.Tensor:
    """The matrix in its original dtype; its gradient is that of the source."""
    if not isinstance(source, QuantizedTensor):
        return source
    x: torch.Tensor = _Dequantised.apply(source)
    return x


class _Dequantised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: QuantizedTensor) -> torch.Tensor:
        return source.dequantize()

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> torch.Tensor:
        return grad_out


def quantized(
    op: str,
    name: str,
    x: QuantizedTensorPair,
    config: Float8QuantConfig | Float4QuantConfig,
    scheme: Scheme,
    wanted: tuple[bool, bool],
) -> Quantised:
    """Operand ``name`` (a or b), or a batch of such, with scales along the dimensions that are ``wanted``.

    What the user has is used. A payload for the backward that is missing is made from the dequantised values, which
    rounds a second time, unless one serves both (TENSORWISE, tiles of BLOCKWISE).
    """
    if not isinstance(x.data, QuantizedTensor) and x.data_t is None:
        return quantize(x.data, scheme, name, wanted)
    found: list[Operand | None] = [None, None]
    for dim in (0, 1):
        given = x.data if dim == scheme.contraction(name) else x.data_t
        if wanted[dim] and isinstance(given, QuantizedTensor):
            _check(op, name, given, x, config, scheme, dim)
            found[dim] = _given(given, x, name, scheme)
    for dim in (0, 1):
        if wanted[dim] and found[dim] is None:
            found[dim] = _made(x.data, found[1 - dim], name, scheme, dim)
    return found[0], found[1]


def _is_transposed(given: QuantizedTensor, x: QuantizedTensorPair, scheme: Scheme) -> bool:
    """Whether it is the transpose of the matrix, which ``data_t`` is for TENSORWISE."""
    return given is x.data_t and scheme.granularity is ScalingGranularity.TENSORWISE


def _given(given: QuantizedTensor, x: QuantizedTensorPair, name: str, scheme: Scheme) -> Operand:
    """What the user has, as a GEMM reads it."""
    data = given.qdata.mT if _is_transposed(given, x, scheme) else given.qdata
    scale = given.scale_inv
    if scheme.granularity is ScalingGranularity.TENSORWISE:
        scale = scale.reshape(())  # others may have made it [1]
    tiles = name == "b" and scheme.granularity is ScalingGranularity.BLOCKWISE
    return Operand(data, scale, tiles=tiles)


def _made(source: torch.Tensor, known: Operand | None, name: str, scheme: Scheme, dim: int) -> Operand | None:
    """With scales along ``dim``, which the user does not have."""
    if known is not None and (known.tiles or scheme.granularity is ScalingGranularity.TENSORWISE):
        return known
    if isinstance(source, QuantizedTensor):
        source = source.to(torch.float32).dequantize()
    return quantize(source, scheme, name, (dim == 0, dim == 1))[dim]


def operand_recipe(name: str, scheme: Scheme, dim: int) -> ScalingRecipe:
    """What operand ``name`` must have been quantised with along ``dim``."""
    if scheme.granularity is ScalingGranularity.MX_BLOCKWISE:
        tile, rht, stochastic, shuffle_scale, shuffle_out = mx_direction(scheme, name, dim)
        return ScalingRecipe(tile, stochastic, rht, shuffle_scale, shuffle_out)
    return ScalingRecipe(use_2d_block=name == "b" and scheme.granularity is ScalingGranularity.BLOCKWISE)


def _check(
    op: str,
    name: str,
    given: QuantizedTensor,
    x: QuantizedTensorPair,
    config: Float8QuantConfig | Float4QuantConfig,
    scheme: Scheme,
    dim: int,
) -> None:
    what = name if given is x.data else f"{name}.data_t"
    shape, device = tuple(x.data.shape), x.data.device
    if _is_transposed(given, x, scheme):
        shape = (*shape[:-2], shape[-1], shape[-2])
    if tuple(given.shape) != shape or given.device != device:
        accepted = f"{list(shape)} on {device} is accepted"
        raise UnsupportedError(f"{op}: {what} has shape {list(given.shape)} on {given.device}; {accepted}")
    if given.is_grouped_tensor:
        raise UnsupportedError(f"{op}: {what} is a grouped tensor; one without groups is accepted")
    try:
        check_quantized_tensor(given, config, dim - 2, operand_recipe(name, scheme, dim))
    except UnsupportedError as refusal:
        raise UnsupportedError(f"{op}: {what} is not as config asks: {refusal}") from None
