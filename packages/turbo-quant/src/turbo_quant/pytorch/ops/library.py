# SPDX-License-Identifier: MIT
"""The registered ops ``turbo_quant::*``: arguments as the dispatcher schema takes them, to the calls and back.

Outputs that are not wanted are empty tensors. None of the ops is differentiable: the public functions detach.
"""

from __future__ import annotations

import torch

from turbo_core.library import register_op
from turbo_core.low_precision import ScalingGranularity
from turbo_quant.calls import (
    DequantizeFloatCall,
    DequantizeMxCall,
    MxDirection,
    QuantizeFloatCall,
    QuantizeMxCall,
)
from turbo_quant.pytorch.kernels.quantize_impl import dequantize, quantize_float, quantize_mx
from turbo_quant.pytorch.kernels.shuffle import (
    shuffle_scale_bytes,
    shuffle_weight_bytes,
    unshuffle_scale_bytes,
    unshuffle_weight_bytes,
)
from turbo_quant.shapes import SHUFFLED_SCALE_COLUMNS, SHUFFLED_SCALE_ROWS, Spec, float_specs, mx_specs, round_up

__all__ = [
    "run_dequantize_float",
    "run_dequantize_mx",
    "run_quantize_float",
    "run_quantize_mx",
    "shuffle_scale_op",
    "shuffle_weight_op",
    "unshuffle_scale_op",
    "unshuffle_weight_op",
]

_Optional = torch.Tensor | None
_Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

_library = torch.library.Library("turbo_quant", "FRAGMENT")
# --- quantise -------------------------------------------------------------------------------------------------------


def _float_call(
    x: torch.Tensor,
    out_dtype: torch.dtype,
    granularity: str,
    block_size: int,
    row: bool,
    column: bool,
    tile: bool,
    group_offs: _Optional,
    group_offs_padded: _Optional,
    amax: _Optional = None,
    k_major: bool = False,
) -> QuantizeFloatCall:
    kind = ScalingGranularity(granularity)
    groups = group_offs, group_offs_padded
    return QuantizeFloatCall(x, out_dtype, kind, block_size, row, column, tile, *groups, amax, k_major)


def _mx_call(
    x: torch.Tensor,
    format: str,
    row: list[bool] | None,
    column: list[bool] | None,
    sign_mask: int,
    rng: _Optional,
    group_offs: _Optional,
    group_offs_padded: _Optional,
) -> QuantizeMxCall:
    row_direction = None if row is None else MxDirection(*row)
    column_direction = None if column is None else MxDirection(*column)
    return QuantizeMxCall(x, format, row_direction, column_direction, sign_mask, rng, group_offs, group_offs_padded)


def _filled(outputs: tuple[_Optional, ...], x: torch.Tensor) -> _Four:
    a, b, c, d = (x.new_empty(0) if output is None else output for output in outputs)
    return a, b, c, d


def _fakes(specs: tuple[Spec | None, ...], x: torch.Tensor) -> _Four:
    a, b, c, d = (x.new_empty(0) if spec is None else _fake(spec, x) for spec in specs)
    return a, b, c, d


def _fake(spec: Spec, x: torch.Tensor) -> torch.Tensor:
    if spec.strides is None:
        return x.new_empty(spec.shape, dtype=spec.dtype)
    return x.new_empty_strided(spec.shape, spec.strides, dtype=spec.dtype)


def _quantize_float(x: torch.Tensor, *arguments: object) -> _Four:
    return _filled(quantize_float(_float_call(x, *arguments)), x)  # type: ignore[arg-type]


def _quantize_float_fake(x: torch.Tensor, *arguments: object) -> _Four:
    return _fakes(float_specs(_float_call(x, *arguments)), x)  # type: ignore[arg-type]


def _quantize_mx(x: torch.Tensor, *arguments: object) -> _Four:
    return _filled(quantize_mx(_mx_call(x, *arguments)), x)  # type: ignore[arg-type]


def _quantize_mx_fake(x: torch.Tensor, *arguments: object) -> _Four:
    return _fakes(mx_specs(_mx_call(x, *arguments)), x)  # type: ignore[arg-type]


# --- dequantise -----------------------------------------------------------------------------------------------------


def _dequantize_float(
    q: torch.Tensor, scale_inv: torch.Tensor, granularity: str, block_size: int, axis: int, out_dtype: torch.dtype
) -> torch.Tensor:
    kind = ScalingGranularity(granularity)
    return dequantize(DequantizeFloatCall(q, scale_inv, kind, block_size, axis, out_dtype))


def _dequantize_float_fake(
    q: torch.Tensor, scale_inv: torch.Tensor, granularity: str, block_size: int, axis: int, out_dtype: torch.dtype
) -> torch.Tensor:
    return q.new_empty(q.shape, dtype=out_dtype)


def _dequantize_mx(
    q: torch.Tensor,
    scale: torch.Tensor,
    format: str,
    size: int,
    transpose: bool,
    rht: bool,
    sign_mask: int,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    return dequantize(DequantizeMxCall(q, scale, format, size, transpose, rht, sign_mask, out_dtype))


def _dequantize_mx_fake(
    q: torch.Tensor,
    scale: torch.Tensor,
    format: str,
    size: int,
    transpose: bool,
    rht: bool,
    sign_mask: int,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    B, L, _ = q.shape
    return q.new_empty((B, size, L) if transpose else (B, L, size), dtype=out_dtype)


# --- shuffles -------------------------------------------------------------------------------------------------------


def _shuffle_scale(scale: torch.Tensor) -> torch.Tensor:
    return shuffle_scale_bytes(scale.view(torch.uint8)).view(scale.dtype)


def _shuffle_scale_fake(scale: torch.Tensor) -> torch.Tensor:
    *leading, rows, columns = scale.shape
    return scale.new_empty((*leading, round_up(rows, SHUFFLED_SCALE_ROWS), round_up(columns, SHUFFLED_SCALE_COLUMNS)))


def _unshuffle_scale(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return unshuffle_scale_bytes(scale.view(torch.uint8), rows, columns).view(scale.dtype)


def _unshuffle_scale_fake(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return scale.new_empty((*scale.shape[:-2], rows, columns))


def _shuffle_weight(payload: torch.Tensor) -> torch.Tensor:
    return shuffle_weight_bytes(payload.view(torch.uint8)).view(payload.dtype)


def _unshuffle_weight(payload: torch.Tensor) -> torch.Tensor:
    return unshuffle_weight_bytes(payload.view(torch.uint8)).view(payload.dtype)


def _same_shape_fake(payload: torch.Tensor) -> torch.Tensor:
    return payload.new_empty(payload.shape)


quantize_float_op = register_op(
    _library,
    "quantize_float(Tensor x, ScalarType out_dtype, str granularity, int block_size, bool row, bool column, bool tile, "
    "Tensor? group_offs, Tensor? group_offs_padded, Tensor? amax=None, bool k_major=False) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _quantize_float,
    _quantize_float_fake,
)
quantize_mx_op = register_op(
    _library,
    "quantize_mx(Tensor x, str format, bool[]? row, bool[]? column, int sign_mask, Tensor? rng, Tensor? group_offs, "
    "Tensor? group_offs_padded) -> (Tensor, Tensor, Tensor, Tensor)",
    _quantize_mx,
    _quantize_mx_fake,
)
dequantize_float_op = register_op(
    _library,
    "dequantize_float(Tensor q, Tensor scale_inv, str granularity, int block_size, int axis, ScalarType out_dtype) "
    "-> Tensor",
    _dequantize_float,
    _dequantize_float_fake,
)
dequantize_mx_op = register_op(
    _library,
    "dequantize_mx(Tensor q, Tensor scale, str format, SymInt size, bool transpose, bool rht, int sign_mask, "
    "ScalarType out_dtype) -> Tensor",
    _dequantize_mx,
    _dequantize_mx_fake,
)
shuffle_scale_op = register_op(_library, "shuffle_scale(Tensor scale) -> Tensor", _shuffle_scale, _shuffle_scale_fake)
unshuffle_scale_op = register_op(
    _library,
    "unshuffle_scale(Tensor scale, SymInt rows, SymInt columns) -> Tensor",
    _unshuffle_scale,
    _unshuffle_scale_fake,
)
shuffle_weight_op, unshuffle_weight_op = (
    register_op(_library, f"{name}(Tensor payload) -> Tensor", function, _same_shape_fake)
    for name, function in (("shuffle_weight", _shuffle_weight), ("unshuffle_weight", _unshuffle_weight))
)

# --- from calls -----------------------------------------------------------------------------------------------------


def run_quantize_float(call: QuantizeFloatCall) -> _Four:
    """The registered op on the fields of ``call``."""
    x, out_dtype, granularity, *rest = call
    four: _Four = quantize_float_op(x.detach(), out_dtype, granularity.value, *rest)
    return four


def run_quantize_mx(call: QuantizeMxCall) -> _Four:
    """Likewise."""
    x, format, row, column, *rest = call
    flags = [None if direction is None else list(direction) for direction in (row, column)]
    four: _Four = quantize_mx_op(x.detach(), format, *flags, *rest)
    return four


def run_dequantize_float(call: DequantizeFloatCall) -> torch.Tensor:
    """Likewise."""
    q, scale_inv, granularity, *rest = call
    x: torch.Tensor = dequantize_float_op(q, scale_inv, granularity.value, *rest)
    return x


def run_dequantize_mx(call: DequantizeMxCall) -> torch.Tensor:
    """Likewise."""
    x: torch.Tensor = dequantize_mx_op(*call)
    return x
