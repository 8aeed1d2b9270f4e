# SPDX-License-Identifier: MIT
"""The TURBO backend: the four calls of `turbo_quant.calls` by the HIP kernels of the native library.

Outputs are allocated here, tensors become addresses; the rest is `turbo_core.native.NativeLibrary`.
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.calls import empty
from turbo_core.low_precision import BLOCK_SIZE, ScalingGranularity
from turbo_core.native import NativeLibrary, address, float_code, fp8_code
from turbo_quant.calls import (
    SHUFFLED_SCALE_COLUMNS,
    SHUFFLED_SCALE_ROWS,
    DequantizeFloatCall,
    DequantizeMxCall,
    FloatOutputs,
    MxDirection,
    MxOutputs,
    QuantizeFloatCall,
    QuantizeMxCall,
    ceil_div,
    specs,
)
from turbo_quant.formats import allocate

__all__ = ["reset", "run", "why_not"]

MAX_SIZE = 2**31  # of a dimension; kMaxSize in csrc/kernels/launch.h
MAX_TILES = 2**24  # of a call; kMaxTiles there
TILE = 128
NARROW_TILE = 64  # columns of a tile of float32 in the MX kernels

_library = NativeLibrary("turbo_quant")
reset = _library.reset

Call = QuantizeFloatCall | QuantizeMxCall | DequantizeFloatCall | DequantizeMxCall


# --- can it run -------------------------------------------------------------------------------------------------------


def why_not(call: Call) -> str | None:
    """Why the HIP kernels cannot answer ``call``; None when they can."""
    data = call.x if isinstance(call, (QuantizeFloatCall, QuantizeMxCall)) else call.q
    if (reason := _library.why_not(data.device)) is not None:
        return reason
    if isinstance(call, QuantizeFloatCall):
        if call.k_major:
            return "K-major payloads are wanted; the HIP kernels write in the order of x"
        if call.amax is not None:
            return "amax is given; the HIP kernels look for it themselves"
        blockwise = call.granularity is ScalingGranularity.BLOCKWISE
        if blockwise and call.block_size != BLOCK_SIZE:
            return f"block_size={call.block_size}; the HIP kernels have blocks of {BLOCK_SIZE}"
    if isinstance(call, QuantizeMxCall) and (call.group_lens is not None or call.row_idx is not None):
        return "groups have gaps or rows that are named; the HIP kernels take groups that lie one after the other"
    groups = 0
    if isinstance(call, (QuantizeFloatCall, QuantizeMxCall)) and call.group_offs is not None:
        groups = call.group_offs.shape[0] - 1
    B, rows, columns = data.shape
    tiles = B * (ceil_div(rows, TILE) + groups) * ceil_div(columns, NARROW_TILE)
    if max(data.shape) >= MAX_SIZE or tiles > MAX_TILES:
        return f"a tensor of {list(data.shape)}; up to 2**31 - 1 a dimension and 2**24 tiles are accepted"
    return None


# --- float scales -----------------------------------------------------------------------------------------------------


def _result(call: DequantizeFloatCall | DequantizeMxCall) -> torch.Tensor:
    spec: Any = specs(call)
    return empty(spec, call.q.device)


def _offsets(offs: torch.Tensor | None) -> torch.Tensor | None:
    return None if offs is None else offs.contiguous()


def _quantize_float(call: QuantizeFloatCall) -> FloatOutputs:
    x = call.x
    extension = _library.extension
    row, row_scale, column, column_scale = allocate(specs(call), x.device)
    offs, padded = _offsets(call.group_offs), _offsets(call.group_offs_padded)
    granularity = getattr(extension, call.granularity.name)
    words = extension.quantize_float_scratch(granularity, x.shape[0], x.shape[2], call.column)
    make = torch.zeros if call.granularity is ScalingGranularity.ROWWISE else torch.empty
    scratch = make((words,), dtype=torch.int32, device=x.device) if words else None
    index, stream = _library.where(x)
    status = extension.quantize_float(
        index,
        stream,
        x=x.data_ptr(),
        strides=x.stride(),
        size=x.shape,
        x_dtype=float_code("x.dtype", x.dtype),
        out_dtype=fp8_code("out_dtype", call.out_dtype),
        granularity=granularity,
        block_size=call.block_size,
        tile=call.tile,
        row=address(row),
        row_scale_inv=address(row_scale),
        column=address(column),
        column_scale_inv=address(column_scale),
        group_offs=address(offs),
        group_offs_padded=address(padded),
        groups=0 if offs is None else offs.shape[0] - 1,
        scratch=address(scratch),
    )
    _library.check(status)
    return FloatOutputs(row, row_scale, column, column_scale)


def _dequantize_float(call: DequantizeFloatCall) -> torch.Tensor:
    q, scale_inv = call.q, call.scale_inv.contiguous()
    extension = _library.extension
    out = _result(call)
    index, stream = _library.where(q)
    status = extension.dequantize_float(
        index,
        stream,
        q=q.data_ptr(),
        strides=q.stride(),
        size=q.shape,
        scale_inv=scale_inv.data_ptr(),
        q_dtype=fp8_code("q.dtype", q.dtype),
        granularity=getattr(extension, call.granularity.name),
        block_size=call.block_size,
        axis=call.axis,
        out=out.data_ptr(),
        out_dtype=float_code("out_dtype", call.out_dtype),
    )
    _library.check(status)
    return out


# --- MX ---------------------------------------------------------------------------------------------------------------


def _flags(direction: MxDirection | None) -> int:
    if direction is None:
        return 0
    extension = _library.extension
    flags = {
        extension.MX_TILE: direction.tile,
        extension.MX_RHT: direction.rht,
        extension.MX_STOCHASTIC: direction.stochastic,
        extension.MX_SHUFFLE_SCALE: direction.shuffle_scale,
        extension.MX_SHUFFLE_OUT: direction.shuffle_out,
    }
    return sum(flag for flag, wanted in flags.items() if wanted)


def _clear_padding(scale: torch.Tensor | None, direction: MxDirection | None, lines: int, length: int) -> None:
    """Zeros for what the kernels leave out of shuffled scales: lines beyond the last, bytes beyond the last block."""
    if scale is None or direction is None or not direction.shuffle_scale:
        return
    padded_length = ceil_div(length, TILE) * TILE // 32
    if lines % SHUFFLED_SCALE_ROWS or padded_length % SHUFFLED_SCALE_COLUMNS:
        scale.view(torch.uint8).zero_()


def _quantize_mx(call: QuantizeMxCall) -> MxOutputs:
    x = call.x
    extension = _library.extension
    _, rows, columns = x.shape
    offs, padded = _offsets(call.group_offs), _offsets(call.group_offs_padded)
    groups = 0 if offs is None else offs.shape[0] - 1
    row, row_scale, column, column_scale = allocate(specs(call), x.device)
    _clear_padding(row_scale, call.row, rows, columns)
    _clear_padding(column_scale, call.column, columns, rows + groups * (TILE - 1))
    rng = None if call.rng is None else call.rng.contiguous()
    index, stream = _library.where(x)
    status = extension.quantize_mx(
        index,
        stream,
        x=x.data_ptr(),
        strides=x.stride(),
        size=x.shape,
        x_dtype=float_code("x.dtype", x.dtype),
        format=extension.MX_FORMATS[call.format],
        row=dict(payload=address(row), scale=address(row_scale), flags=_flags(call.row)),
        column=dict(payload=address(column), scale=address(column_scale), flags=_flags(call.column)),
        sign_mask=call.sign_mask,
        rng=address(rng),
        group_offs=address(offs),
        group_offs_padded=address(padded),
        groups=groups,
    )
    _library.check(status)
    return MxOutputs(row, row_scale, column, column_scale)


def _dequantize_mx(call: DequantizeMxCall) -> torch.Tensor:
    q, scale = call.q, call.scale.contiguous()
    extension = _library.extension
    B, lines, _ = q.shape
    out = _result(call)
    index, stream = _library.where(q)
    status = extension.dequantize_mx(
        index,
        stream,
        q=q.data_ptr(),
        strides=q.stride(),
        size=(B, lines, scale.shape[2] * 32),
        scale=scale.data_ptr(),
        format=extension.MX_FORMATS[call.format],
        wanted=call.size,
        transpose=call.transpose,
        rht=call.rht,
        sign_mask=call.sign_mask,
        out=out.data_ptr(),
        out_dtype=float_code("out_dtype", call.out_dtype),
    )
    _library.check(status)
    return out


_RUNS: dict[type, Any] = {
    QuantizeFloatCall: _quantize_float,
    QuantizeMxCall: _quantize_mx,
    DequantizeFloatCall: _dequantize_float,
    DequantizeMxCall: _dequantize_mx,
}


def run(call: Call) -> Any:
    """Answer a call."""
    return _RUNS[type(call)](call)
