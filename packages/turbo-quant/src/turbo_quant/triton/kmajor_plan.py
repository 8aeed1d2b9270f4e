# SPDX-License-Identifier: MIT
"""What is launched for `QuantizeFloatCall.k_major`: payloads and scales in the orders in which matrix products read."""

from __future__ import annotations

import math
from typing import Any

import torch

from turbo_core.device import DeviceFacts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_core.low_precision import ScalingGranularity, fp8_amax_floor, fp8_max
from turbo_quant.calls import FloatOutputs, QuantizeFloatCall, specs
from turbo_quant.formats import allocate
from turbo_quant.triton.float_plan import as_bytes, fp8_constants, needs_wide, tensor_amax, unbuffered_for
from turbo_quant.triton.kmajor_kernel import kmajor_kernel, line_amax_kernel
from turbo_quant.triton.tiles import choose

__all__ = ["plan_kmajor"]

_LINE_CHUNKS = 32  # of columns, at most: each program of the second launch reads a maximum of every chunk


def plan_kmajor(call: QuantizeFloatCall, facts: DeviceFacts) -> tuple[FloatOutputs, list[Launch]]:
    """Outputs of a call, not yet written, and the launches that write them: one, or one more where maxima come first.

    x whose columns are adjacent in memory is quantised as its transpose, whose column payload is x's row payload.
    """
    x = call.x
    by_columns = x.stride(2) != 1 and x.stride(1) == 1 and x.shape[2] > 1
    outputs = FloatOutputs(*allocate(specs(call), x.device))  # type: ignore[arg-type]
    row, row_scale, column, column_scale = outputs
    stored = column if column is None else column.transpose(1, 2)
    if call.has_one_scale():
        if by_columns and call.tile and row_scale is not None:
            row_scale = row_scale.transpose(1, 2)
        scales = row_scale, None
    else:
        lines = row_scale if row_scale is None else row_scale.transpose(1, 2)
        scales = (column_scale, lines) if by_columns else (lines, column_scale)
    if by_columns:
        return outputs, _launches(call, x.transpose(1, 2), (stored, scales[0], row, scales[1]), facts)
    return outputs, _launches(call, x, (row, scales[0], stored, scales[1]), facts)


_Payloads = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def _launches(call: QuantizeFloatCall, x: torch.Tensor, payloads: _Payloads, facts: DeviceFacts) -> list[Launch]:
    """Of x [B,R,C] into row [B,R,C], row_scale [B,blocks_c,R] (tiles: [B,blocks_r,blocks_c]) and column [B,C,R],
    column_scale [B,blocks_r,C].
    """
    row, row_scale, column, column_scale = payloads
    B, R, C = x.shape
    stride_b, stride_r, stride_c = x.stride()
    size = call.block_size
    strides = {"stride_b": stride_b, "stride_r": stride_r, "stride_c": 1 if C == 1 else stride_c}
    launches: list[Launch] = []
    row_amax = column_amax = None
    row_chunks = column_chunks = 1
    if call.granularity is ScalingGranularity.TENSORWISE:
        kind = "tensor"
        if call.amax is not None:
            row_amax = call.amax.view(torch.int32)
        else:
            launch = tensor_amax(x, call, facts)
            row_amax, row_chunks = launch.arguments["partial_ptr"], launch.arguments["chunks"]
            launches.append(launch)
    elif call.granularity is ScalingGranularity.ROWWISE:
        kind = "line"
        launch = _line_amax(x, row is not None, column is not None, facts)
        row_amax, row_chunks = launch.arguments["row_amax_ptr"], launch.arguments["chunks_c"]
        column_amax, column_chunks = launch.arguments["column_amax_ptr"], launch.arguments["chunks_r"]
        launches.append(launch)
    else:
        kind = "tile" if call.tile else "block"
    tile = choose("kmajor lines" if kind == "line" else "kmajor", facts, multiple=math.gcd(R, C))
    words = column is not None and R % 16 == 0
    column_bytes = as_bytes(column)
    tiles_r, tiles_c = -(-R // tile.rows), -(-C // tile.columns)
    masked = R % tile.rows != 0 or C % tile.columns != 0
    tiled = row_scale is not None and call.tile
    launches.append(
        Launch(
            kmajor_kernel,
            (B * tiles_r * tiles_c, 1, 1),
            {
                "x_ptr": x,
                "row_ptr": as_bytes(row),
                "row_scale_ptr": row_scale,
                "column_ptr": column_bytes.view(torch.int32) if words and column_bytes is not None else column_bytes,
                "column_scale_ptr": column_scale,
                "row_amax_ptr": row_amax,
                "column_amax_ptr": column_amax,
                "R": R,
                "C": C,
                "tiles_r": tiles_r,
                "tiles_c": tiles_c,
                "blocks_r": -(-R // (size or R)),
                "blocks_c": -(-C // (size or C)),
                "scale_stride_r": row_scale.stride(1) if tiled and row_scale is not None else 1,
                "scale_stride_c": row_scale.stride(2) if tiled and row_scale is not None else 1,
                "row_chunks": row_chunks,
                "column_chunks": column_chunks,
                **strides,
                "largest": fp8_max(call.out_dtype),
                "floor": fp8_amax_floor(call.out_dtype),
            },
            {
                "KIND": kind,
                "ROW": row is not None,
                "COLUMN": column is not None,
                "P": size or 4,
                "STEP": 512 if kind == "tensor" else min(16, power_of_two(max(row_chunks, column_chunks))),
                "BLOCK_R": tile.rows,
                "BLOCK_C": tile.columns,
                "WORDS": words,
                "MASKED": masked,
                "WIDE": needs_wide(tile.rows * max(stride_r, C), tile.columns * max(stride_c, R)),
                "QUICK": facts.vendor == "nvidia" and x.dtype != torch.float32,
                "TWICE": facts.vendor == "nvidia" and row is not None and column is not None,
                **fp8_constants(call.out_dtype, facts),
            },
            tile.launch_options(),
            ALL if masked else unbuffered_for(stride_c),  # masks and buffers both take scalar registers
        )
    )
    return launches


def _line_amax(x: torch.Tensor, row: bool, column: bool, facts: DeviceFacts) -> Launch:
    """Maxima of the rows and columns of x, of some elements of each."""
    B, R, C = x.shape
    stride_b, stride_r, stride_c = x.stride()
    tile = choose("line amax", facts, multiple=math.gcd(R, C))
    height = tile.rows * -(-R // (tile.rows * _LINE_CHUNKS))
    chunks_r, chunks_c = -(-R // height), -(-C // tile.columns)
    arguments: dict[str, Any] = {
        "x_ptr": x,
        "row_amax_ptr": torch.empty((B, chunks_c, R), dtype=torch.int32, device=x.device) if row else None,
        "column_amax_ptr": torch.empty((B, chunks_r, C), dtype=torch.int32, device=x.device) if column else None,
        "R": R,
        "C": C,
        "chunks_r": chunks_r,
        "chunks_c": chunks_c,
        "height": height,
        "stride_b": stride_b,
        "stride_r": stride_r,
        "stride_c": 1 if C == 1 else stride_c,
    }
    constants = {
        "ROW": row,
        "COLUMN": column,
        "BLOCK_R": tile.rows,
        "BLOCK_C": tile.columns,
        "MASKED": R % tile.rows != 0 or C % tile.columns != 0,
        "WIDE": needs_wide(tile.rows * stride_r, tile.columns * stride_c),
        "STAGES": tile.num_stages,
    }
    grid = (B * chunks_r * chunks_c, 1, 1)
    return Launch(line_amax_kernel, grid, arguments, constants, tile.launch_options(), unbuffered_for(stride_c))
