# SPDX-License-Identifier: MIT
"""The operands that users pass to gemm_fp8 and gemm_fp4, taken apart: plain tensors, `QuantizedTensor`s and pairs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig, ScalingGranularity, ScalingRecipe
from turbo_gemm.pytorch.ops.quant_operands import Copies, Copy, Scheme, mx_direction, quantize
from turbo_quant import QuantizedTensor, QuantizedTensorPair, check_quantized_tensor

__all__ = ["Input", "as_input", "copies_of"]


class Input(NamedTuple):
    """One operand.

    Attributes:
        source: the matrix, or its copy for the forward; what the gradient belongs to.
        backward: its copy for the other operand's gradient, where the user has one.
    """

    source: torch.Tensor
    backward: QuantizedTensor | None = None

    def plain(self) -> torch.Tensor:
        """The matrix in its original dtype; its gradient is that of the source."""
        if not isinstance(self.source, QuantizedTensor):
            return self.source
        x: torch.Tensor = _Dequantised.apply(self.source)
        return x


class _Dequantised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: QuantizedTensor) -> torch.Tensor:
        return source.dequantize()

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> torch.Tensor:
        return grad_out


def as_input(op: str, name: str, x: Any) -> Input:
    """``x`` as an `Input`; that it is a matrix is checked afterwards."""
    if not isinstance(x, QuantizedTensorPair):
        return Input(x)
    data, data_t = x
    if data_t is not None and not isinstance(data_t, QuantizedTensor):
        raise UnsupportedError(
            f"{op}: {name}.data_t is a {type(data_t).__name__}; a QuantizedTensor or None is accepted"
        )
    return Input(data, data_t)


def copies_of(
    op: str,
    name: str,
    x: Input,
    config: Float8QuantConfig | Float4QuantConfig,
    scheme: Scheme,
    wanted: tuple[bool, bool],
) -> Copies:
    """The quantised copies of operand ``name`` (a or b) with scales along the dimensions that are ``wanted``.

    What the user has is used. A copy for the backward that is missing is made from the dequantised values, which
    rounds a second time, unless one copy serves both (TENSORWISE, tiles of BLOCKWISE).
    """
    if not isinstance(x.source, QuantizedTensor) and x.backward is None:
        return quantize(x.source, scheme, name, wanted)
    found: list[Copy | None] = [None, None]
    for dim in (0, 1):
        given = x.source if dim == scheme.contraction(name) else x.backward
        if wanted[dim] and isinstance(given, QuantizedTensor):
            _check(op, name, given, x, config, scheme, dim)
            found[dim] = _taken(given, x, name, scheme)
    for dim in (0, 1):
        if wanted[dim] and found[dim] is None:
            found[dim] = _made(x.source, found[1 - dim], name, scheme, dim)
    return found[0], found[1]


def _is_turned(given: QuantizedTensor, x: Input, scheme: Scheme) -> bool:
    """Whether it is the transpose of the matrix, which a copy for the backward is for TENSORWISE."""
    return given is x.backward and scheme.granularity is ScalingGranularity.TENSORWISE


def _taken(given: QuantizedTensor, x: Input, name: str, scheme: Scheme) -> Copy:
    """The user's copy as a GEMM reads it."""
    data = given.qdata.t() if _is_turned(given, x, scheme) else given.qdata
    return Copy(data, given.scale_inv, name == "b" and scheme.granularity is ScalingGranularity.BLOCKWISE)


def _made(source: torch.Tensor, known: Copy | None, name: str, scheme: Scheme, dim: int) -> Copy | None:
    """The copy along ``dim`` that the user does not have."""
    if known is not None and (known.tiles or scheme.granularity is ScalingGranularity.TENSORWISE):
        return known
    if isinstance(source, QuantizedTensor):
        source = source.to(torch.float32).dequantize()
    return quantize(source, scheme, name, (dim == 0, dim == 1))[dim]


def _recipe(name: str, scheme: Scheme, dim: int) -> ScalingRecipe:
    """What the copy of operand ``name`` along ``dim`` must have been made with."""
    if scheme.granularity is ScalingGranularity.MX_BLOCKWISE:
        tile, rht, stochastic, shuffle_scale, shuffle_out = mx_direction(scheme, name, dim)
        return ScalingRecipe(tile, stochastic, rht, shuffle_scale, shuffle_out)
    return ScalingRecipe(use_2d_block=name == "b" and scheme.granularity is ScalingGranularity.BLOCKWISE)


def _check(
    op: str,
    name: str,
    given: QuantizedTensor,
    x: Input,
    config: Float8QuantConfig | Float4QuantConfig,
    scheme: Scheme,
    dim: int,
) -> None:
    what = name if given is x.source else f"{name}.data_t"
    shape, device = tuple(x.source.shape), x.source.device
    if _is_turned(given, x, scheme):
        shape = shape[::-1]
    if tuple(given.shape) != shape or given.device != device:
        accepted = f"{list(shape)} on {device} is accepted"
        raise UnsupportedError(f"{op}: {what} has shape {list(given.shape)} on {given.device}; {accepted}")
    if given.is_grouped_tensor:
        raise UnsupportedError(f"{op}: {what} is a grouped tensor; one without groups is accepted")
    try:
        check_quantized_tensor(given, config, dim - 2, _recipe(name, scheme, dim))
    except UnsupportedError as refusal:
        raise UnsupportedError(f"{op}: {what} is not as config asks: {refusal}") from None
