# SPDX-License-Identifier: MIT
"""What is launched for `QuantizeFloatCall.k_major`: payloads and scales in the orders in which matrix products read."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from turbo_core.device import DeviceFacts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_core.low_precision import MX_PADDING, ScalingGranularity, fp8_amax_floor, fp8_max
from turbo_quant.calls import FloatOutputs, QuantizeFloatCall, ceil_div, padded_rows, specs
from turbo_quant.formats import allocate
from turbo_quant.triton.float_plan import as_bytes, fp8_constants, needs_wide, tensor_amax, unbuffered_for
from turbo_quant.triton.group_rows_plan import ALL_ROWS, Rows
from turbo_quant.triton.kmajor_kernel import (
    kmajor_groups_kernel,
    kmajor_kernel,
    line_amax_groups_kernel,
    line_amax_kernel,
)
from turbo_quant.triton.tiles import choose

__all__ = ["Maxima", "Payloads", "line_amax", "payload_launch", "plan_kmajor"]

_LINE_CHUNKS = 32  # of columns, at most: each program of the second launch reads a maximum of every chunk


def plan_kmajor(call: QuantizeFloatCall, facts: DeviceFacts) -> tuple[FloatOutputs, list[Launch]]:
    """Outputs of a call, not yet written, and the launches that write them: one, or one more where maxima come first.

    x whose columns are adjacent in memory is quantised as its transpose, whose column payload is x's row payload.
    """
    outputs = FloatOutputs(*allocate(specs(call), call.x.device))  # type: ignore[arg-type]
    if call.group_offs is not None:
        from turbo_quant.triton.kmajor_groups_plan import launches_of_groups

        return outputs, launches_of_groups(call, outputs, facts)
    return outputs, launches_of(call, outputs, facts)


class Payloads(NamedTuple):
    """What a launch writes of x [B,R,C], or None.

    Attributes:
        row: [B,R,C].
        row_scale: [B,blocks_c,R]; of tiles [B,blocks_r,blocks_c], any strides.
        column: [B,C,rows of the column copy].
        column_scale: [B,blocks_r,C]; of groups ROWWISE [1,G,C], written by another launch.
    """

    row: torch.Tensor | None
    row_scale: torch.Tensor | None
    column: torch.Tensor | None
    column_scale: torch.Tensor | None


class Maxima(NamedTuple):
    """Maxima that a launch before has found, int32: how many a line or tensor has, or None where there is none."""

    row: torch.Tensor | None = None
    row_chunks: int = 1
    column: torch.Tensor | None = None
    column_chunks: int = 1


def launches_of(call: QuantizeFloatCall, outputs: FloatOutputs, facts: DeviceFacts) -> list[Launch]:
    """Without groups."""
    x = call.x
    by_columns = x.stride(2) != 1 and x.stride(1) == 1 and x.shape[2] > 1
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
        x, payloads = x.transpose(1, 2), Payloads(stored, scales[0], row, scales[1])
    else:
        payloads = Payloads(row, scales[0], stored, scales[1])
    launches: list[Launch] = []
    maxima = Maxima()
    if call.granularity is ScalingGranularity.TENSORWISE:
        if call.amax is not None:
            maxima = Maxima(call.amax.view(torch.int32))
        else:
            launches = [tensor_amax(x, call, facts)]
            found = launches[0].arguments
            maxima = Maxima(found["partial_ptr"], found["chunks"])
    elif call.granularity is ScalingGranularity.ROWWISE:
        launches = [line_amax(x, payloads.row is not None, payloads.column is not None, facts)]
        found = launches[0].arguments
        maxima = Maxima(found["row_amax_ptr"], found["chunks_c"], found["column_amax_ptr"], found["chunks_r"])
    return [*launches, payload_launch(call, x, payloads, maxima, facts)]


def payload_launch(
    call: QuantizeFloatCall,
    x: torch.Tensor,
    payloads: Payloads,
    maxima: Maxima,
    facts: DeviceFacts,
    rows: Rows = ALL_ROWS,
) -> Launch:
    """The launch that quantises x [B,R,C]."""
    row, row_scale, column, column_scale = payloads
    B, R, C = x.shape
    stride_b, stride_r, stride_c = x.stride()
    size = call.block_size
    if call.granularity is ScalingGranularity.BLOCKWISE:
        kind = "tile" if call.tile else "block"
    else:
        kind = "tensor" if call.granularity is ScalingGranularity.TENSORWISE else "line"
    varying, grouped = rows is not ALL_ROWS, rows.offs is not None
    multiple = math.gcd(C, 16) if varying else math.gcd(R, C)
    tile = choose("kmajor lines" if kind == "line" else "kmajor", facts, multiple=multiple)
    rows_out = column.shape[2] if grouped and column is not None else R
    words = column is not None and (grouped or R % 16 == 0)
    column_bytes = as_bytes(column)
    tiles_r = max(1, padded_rows(rows.count, rows.groups) // tile.rows) if grouped else ceil_div(R, tile.rows)
    tiles_c = ceil_div(C, tile.columns)
    masked = varying or R % tile.rows != 0 or C % tile.columns != 0
    tiled = row_scale is not None and call.tile
    return Launch(
        kmajor_groups_kernel if varying else kmajor_kernel,
        (B * tiles_r * tiles_c, 1, 1),
        {
            "x_ptr": x,
            "row_ptr": as_bytes(row),
            "row_scale_ptr": row_scale,
            "column_ptr": column_bytes.view(torch.int32) if words and column_bytes is not None else column_bytes,
            "column_scale_ptr": column_scale,
            "row_amax_ptr": maxima.row,
            "column_amax_ptr": maxima.column,
            "mark_ptr": rows.mark,
            **rows.arguments(),
            "R": R,
            "C": C,
            "tiles_r": tiles_r,
            "tiles_c": tiles_c,
            "blocks_r": ceil_div(rows_out, size or rows_out or 1),
            "blocks_c": ceil_div(C, size or C),
            "scale_stride_r": row_scale.stride(1) if tiled and row_scale is not None else 1,
            "scale_stride_c": row_scale.stride(2) if tiled and row_scale is not None else 1,
            "row_chunks": maxima.row_chunks,
            "column_chunks": maxima.column_chunks,
            "stride_b": 0 if varying else stride_b,
            "stride_r": stride_r,
            "stride_c": 1 if C == 1 else stride_c,
            "rows_out": rows_out if varying else 1,
            "largest": fp8_max(call.out_dtype),
            "floor": fp8_amax_floor(call.out_dtype),
        },
        {
            "KIND": kind,
            "ROW": row is not None,
            "COLUMN": column is not None,
            "GROUPS": rows.most(),
            "P": size or 4,
            "STEP": 512 if kind == "tensor" else min(16, power_of_two(max(maxima.row_chunks, maxima.column_chunks))),
            "BLOCK_R": tile.rows,
            "BLOCK_C": tile.columns,
            "WORDS": words,
            "MASKED": masked,
            "WIDE": needs_wide(tile.rows * max(stride_r, C), tile.columns * max(stride_c, rows_out)),
            "QUICK": facts.vendor == "nvidia" and x.dtype != torch.float32,
            "TWICE": facts.vendor == "nvidia" and row is not None and column is not None,
            **fp8_constants(call.out_dtype, facts),
        },
        tile.launch_options(),
        ALL if masked else unbuffered_for(stride_c),  # masks and buffers both take scalar registers
    )


def line_amax(x: torch.Tensor, row: bool, column: bool, facts: DeviceFacts, rows: Rows = ALL_ROWS) -> Launch:
    """Maxima of the rows and columns of x, of some elements of each; of groups those of 128 padded rows each."""
    B, R, C = x.shape
    stride_b, stride_r, stride_c = x.stride()
    varying = rows is not ALL_ROWS
    multiple = math.gcd(R, C)
    if varying:
        multiple = math.gcd(C, 16) if stride_c == 1 else 1
    tile = choose("line amax", facts, multiple=multiple)
    if rows.offs is None:
        height = tile.rows * ceil_div(R, tile.rows * _LINE_CHUNKS)
        chunks_r = ceil_div(R, height)
    else:
        height, chunks_r = MX_PADDING, padded_rows(rows.count, rows.groups) // MX_PADDING
    chunks_c = ceil_div(C, tile.columns)
    arguments: dict[str, Any] = {
        "x_ptr": x,
        "row_amax_ptr": torch.empty((B, chunks_c, R), dtype=torch.int32, device=x.device) if row else None,
        "column_amax_ptr": torch.empty((B, chunks_r, C), dtype=torch.int32, device=x.device) if column else None,
        **rows.arguments(),
        "R": R,
        "C": C,
        "chunks_r": chunks_r,
        "chunks_c": chunks_c,
        "height": height,
        "stride_b": 0 if varying else stride_b,
        "stride_r": stride_r,
        "stride_c": 1 if C == 1 else stride_c,
    }
    constants = {
        "ROW": row,
        "COLUMN": column,
        "GROUPS": rows.most(),
        "BLOCK_R": tile.rows,
        "BLOCK_C": tile.columns,
        "MASKED": varying or R % tile.rows != 0 or C % tile.columns != 0,
        "WIDE": needs_wide(tile.rows * stride_r, tile.columns * stride_c),
        "STAGES": tile.num_stages,
    }
    grid = (B * chunks_r * chunks_c, 1, 1)
    kernel = line_amax_groups_kernel if varying else line_amax_kernel
    return Launch(kernel, grid, arguments, constants, tile.launch_options(), unbuffered_for(stride_c))
