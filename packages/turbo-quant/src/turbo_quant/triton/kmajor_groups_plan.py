# SPDX-License-Identifier: MIT
"""What is launched for groups in K-major order: maxima of what counts, then payloads and scales, from one reading each.

Where the groups' rows are those that ``row_idx`` names, the row copy, of x itself, has a launch of its own.
"""

from __future__ import annotations

import math

import torch

from turbo_core.device import DeviceFacts
from turbo_core.launch import Launch
from turbo_core.low_precision import MX_PADDING, ScalingGranularity, fp8_amax_floor, fp8_max
from turbo_quant.calls import FloatOutputs, QuantizeFloatCall, ceil_div, padded_rows
from turbo_quant.triton.float_plan import needs_wide, unbuffered_for
from turbo_quant.triton.group_amax_kernel import group_amax_kernel, group_scales_kernel
from turbo_quant.triton.group_rows_plan import Rows, mark_rows, rows_of
from turbo_quant.triton.kmajor_plan import Maxima, Payloads, line_amax, payload_launch
from turbo_quant.triton.tiles import choose

__all__ = ["launches_of_groups"]

_AMAX_PROGRAMS = 4  # programs a compute unit that look for the maximum of a tensor
_SCALES_COLUMNS = 256  # of a group, that a program finds the scales of


def launches_of_groups(call: QuantizeFloatCall, outputs: FloatOutputs, facts: DeviceFacts) -> list[Launch]:
    """The launches that write ``outputs``."""
    row, row_scale, column, column_scale = outputs
    one = call.has_one_scale()
    if row_scale is not None and not one:
        row_scale = row_scale.transpose(1, 2)
    stored = None if column is None else column.transpose(1, 2)
    groups = rows_of(call)
    if groups.idx is None:
        payloads = Payloads(row, row_scale, stored, column_scale)
        launches, maxima = _maxima(call, payloads, groups, facts)
        return [*launches, payload_launch(call, call.x, payloads, maxima, facts, groups)]
    rows, columns = Payloads(row, row_scale, None, None), Payloads(None, None, stored, column_scale)
    if one:
        launches = [mark_rows(call, groups)]
        marked = Rows(mark=launches[0].arguments["mark_ptr"])
        amax, maxima = _maxima(call, rows, marked, facts)
        launches += amax
        if row is not None:
            launches.append(payload_launch(call, call.x, rows, maxima, facts, marked))
            columns = columns._replace(row_scale=None)
        else:
            columns = columns._replace(row_scale=row_scale)
        if row is None or stored is not None:
            launches.append(payload_launch(call, call.x, columns, maxima, facts, groups))
        return launches
    launches = []
    for payloads, which in ((rows, Rows()), (columns, groups)):
        if payloads.row is not None or payloads.column is not None:
            amax, maxima = _maxima(call, payloads, which, facts)
            launches += [*amax, payload_launch(call, call.x, payloads, maxima, facts, which)]
    return launches


def _maxima(call: QuantizeFloatCall, payloads: Payloads, rows: Rows, facts: DeviceFacts) -> tuple[list[Launch], Maxima]:
    """The launches that find what the scales need, and where it will be."""
    x = call.x
    if call.granularity is ScalingGranularity.BLOCKWISE:
        return [], Maxima()
    if call.granularity is ScalingGranularity.TENSORWISE:
        if call.amax is not None:
            return [], Maxima(call.amax.view(torch.int32))
        launch = _tensor_amax(x, rows, facts)
        return [launch], Maxima(launch.arguments["partial_ptr"], launch.arguments["chunks"])
    lines = line_amax(x, payloads.row is not None, payloads.column is not None, facts, rows)
    maxima = Maxima(lines.arguments["row_amax_ptr"], lines.arguments["chunks_c"])
    if payloads.column is None:
        return [lines], maxima
    scales = _group_scales(call, lines.arguments["column_amax_ptr"], payloads.column_scale, rows, facts)
    launches = [lines, scales] if rows.groups else [lines]
    return launches, maxima._replace(column=scales.arguments["amax_ptr"])


def _tensor_amax(x: torch.Tensor, rows: Rows, facts: DeviceFacts) -> Launch:
    """Some maxima of the rows that count."""
    _, R, C = x.shape
    _, stride_r, stride_c = x.stride()
    tile = choose("walk", facts, multiple=math.gcd(C, 16))
    tiles_c = ceil_div(C, tile.columns)
    most = R if rows.offs is None else padded_rows(rows.count, rows.groups)
    chunks = max(1, min(facts.compute_units * _AMAX_PROGRAMS, ceil_div(most, tile.rows) * tiles_c))
    arguments = {
        "x_ptr": x,
        "partial_ptr": torch.empty((chunks,), dtype=torch.int32, device=x.device),
        **{name: value for name, value in rows.arguments().items() if name not in ("idx_ptr", "rows")},
        "mark_ptr": rows.mark,
        "R": R,
        "C": C,
        "tiles_c": tiles_c,
        "chunks": chunks,
        "stride_r": stride_r,
        "stride_c": 1 if C == 1 else stride_c,
    }
    constants = {
        "GROUPS": rows.most(),
        "BLOCK_R": tile.rows,
        "BLOCK_C": tile.columns,
        "WIDE": needs_wide(tile.rows * stride_r, tile.columns * stride_c),
    }
    options, unbuffered = tile.launch_options(), unbuffered_for(stride_c)
    return Launch(group_amax_kernel, (chunks, 1, 1), arguments, constants, options, unbuffered)


def _group_scales(
    call: QuantizeFloatCall, part: torch.Tensor, scale_inv: torch.Tensor | None, rows: Rows, facts: DeviceFacts
) -> Launch:
    """amax [G,C] and scales of groups from the maxima of 128 padded rows each."""
    C = call.x.shape[2]
    tiles_c = ceil_div(C, _SCALES_COLUMNS)
    arguments = {
        "part_ptr": part,
        "amax_ptr": torch.empty((rows.groups, C), dtype=torch.int32, device=part.device),
        "scale_inv_ptr": scale_inv,
        "padded_ptr": rows.padded,
        "C": C,
        "tiles_c": tiles_c,
        "largest": fp8_max(call.out_dtype),
        "floor": fp8_amax_floor(call.out_dtype),
    }
    quick = facts.vendor == "nvidia" and call.x.dtype != torch.float32
    constants = {"ROWS": MX_PADDING, "BLOCK_C": _SCALES_COLUMNS, "STEP": 16, "QUICK": quick}
    options = {"num_warps": 4, "enable_fp_fusion": False}
    return Launch(group_scales_kernel, (rows.groups * tiles_c, 1, 1), arguments, constants, options)
