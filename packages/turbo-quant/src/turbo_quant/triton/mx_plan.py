# SPDX-License-Identifier: MIT
"""What is launched to quantise to MX: outputs and launches of a call, from its tensors' metadata alone."""

from __future__ import annotations

import math
from typing import Any

import torch

from turbo_core.device import DeviceFacts
from turbo_core.launch import Launch
from turbo_core.low_precision import MX_PADDING
from turbo_quant.calls import MxDirection, MxOutputs, QuantizeMxCall, ceil_div, round_up, specs
from turbo_quant.formats import MX_FORMATS, allocate, payload_dtype
from turbo_quant.triton.float_plan import needs_wide, unbuffered_for
from turbo_quant.triton.group_rows_plan import ALL_ROWS, Rows, mark_rows, rows_of
from turbo_quant.triton.mx_kernel import OPTIONS, WANTED, mx_groups_kernel, mx_kernel
from turbo_quant.triton.tiles import casts_natively, choose

__all__ = ["mx_constants", "plan_quantize"]

_Pair = tuple[torch.Tensor, ...] | None  # payload and scales as bytes
_LARGEST_CODE = {"e4m3": 0x7E, "e5m2": 0x7B, "e2m1": 0x7}


def mx_constants(format: str, facts: DeviceFacts) -> dict[str, Any]:
    """The kernels' constants for an MX format."""
    dtype = payload_dtype(format)
    native = format != "e2m1" and casts_natively(facts, str(dtype).removeprefix("torch."))
    return {"MANTISSA": MX_FORMATS[format].mantissa, "LOWEST": MX_FORMATS[format].exponent_min, "NATIVE": native}


def _option(direction: MxDirection | None) -> int:
    if direction is None:
        return 0
    return int(WANTED.value) + sum(bit for name, bit in OPTIONS.items() if getattr(direction, name))


def _launch(
    call: QuantizeMxCall,
    row: _Pair,
    column: _Pair,
    facts: DeviceFacts,
    rows: Rows = ALL_ROWS,
) -> Launch:
    x = call.x
    B, R, C = x.shape
    stride_b, stride_r, stride_c = x.stride()
    if C == 1:
        stride_c = 1
    varying, grouped = rows is not ALL_ROWS, rows.offs is not None
    row_width, col_width = round_up(C, MX_PADDING), round_up(call.column_rows(), MX_PADDING)
    native = mx_constants(call.format, facts)
    row_option = 0 if row is None else _option(call.row)
    col_option = 0 if column is None else _option(call.column)
    stochastic = (row_option | col_option) & OPTIONS["stochastic"]
    rotated = (row_option | col_option) & OPTIONS["rht"]
    kind = "mx row" if column is None else "mx column e2m1" if call.format == "e2m1" else "mx column"
    plain = not (grouped or stochastic or rotated or stride_c != 1)
    tile = choose(kind, facts, multiple=(C if column is None else math.gcd(R, C)) if plain else 1)
    block_r, block_c = tile.rows, tile.columns
    tiles_r = ceil_div(col_width if grouped or column is not None else R, block_r)
    tiles_c = -(-(C if row is None else row_width) // block_c)
    return Launch(
        mx_groups_kernel if varying else mx_kernel,
        (B * tiles_r * tiles_c, 1, 1),
        {
            "x_ptr": x,
            "row_ptr": None if row is None else row[0],
            "row_scale_ptr": None if row is None else row[1],
            "col_ptr": None if column is None else column[0],
            "col_scale_ptr": None if column is None else column[1],
            "rng_ptr": call.rng if stochastic else None,
            "mark_ptr": rows.mark,
            **rows.arguments(),
            "R": R,
            "C": C,
            "tiles_r": tiles_r,
            "tiles_c": tiles_c,
            "row_width": row_width,
            "col_width": col_width,
            "stride_b": 0 if varying else stride_b,
            "stride_r": stride_r,
            "stride_c": stride_c,
            "sign_mask": call.sign_mask if rotated else 0,
        },
        {
            "ROW": row_option,
            "COLUMN": col_option,
            "GROUPS": rows.most(),
            "BLOCK_R": block_r,
            "BLOCK_C": block_c,
            "P": tile.stripes,
            "MASK_R": varying or tiles_r * block_r != R,
            "MASK_C": tiles_c * block_c != C,
            "WIDE": needs_wide(block_r * max(stride_r, row_width), block_c * max(stride_c, col_width)),
            "E_MAX": MX_FORMATS[call.format].exponent_max,
            "LARGEST": _LARGEST_CODE[call.format],
            # only amax of e4m3 can round to what is not in the format, and NVIDIA's cast saturates
            "CLAMP": call.format == "e4m3" and not (native["NATIVE"] and facts.vendor == "nvidia"),
            **native,
        },
        tile.launch_options(),
        unbuffered_for(stride_c),
        zeroed=tuple(  # what pads shuffled scales
            name
            for name, copy, direction in (("row_scale_ptr", row, call.row), ("col_scale_ptr", column, call.column))
            if copy is not None and direction is not None and direction.shuffle_scale
        ),
    )


def plan_quantize(call: QuantizeMxCall, facts: DeviceFacts) -> tuple[MxOutputs, list[Launch]]:
    """Outputs of a call, not yet written, and the launches that write them."""
    outputs = MxOutputs(*allocate(specs(call), call.x.device))  # type: ignore[arg-type]
    row, column = _bytes(*outputs[:2]), _bytes(*outputs[2:])
    cleared = call.group_lens is not None and call.row_idx is None  # rows of the row copy that belong to no group
    if call.group_offs is None or (column is None and not cleared):
        return outputs, [_launch(call, row, column, facts)]
    groups = rows_of(call)
    # groups begin at any row: tiles and shuffled lines of the row copy then need a launch of their own
    aligned = call.row is not None and (call.row.tile or call.row.shuffle_scale or call.row.shuffle_out)
    if row is None or not (aligned or groups.idx is not None):
        return outputs, [_launch(call, row, column, facts, groups)]
    launches: list[Launch] = []
    every = Rows()
    if cleared:
        mark = mark_rows(call, groups)
        launches, every = [mark], Rows(mark=mark.arguments["mark_ptr"])
    launches.append(_launch(call, row, None, facts, every))
    if column is not None:
        launches.append(_launch(call, None, column, facts, groups))
    return outputs, launches


def _bytes(payload: torch.Tensor | None, scale: torch.Tensor | None) -> _Pair:
    return None if payload is None or scale is None else (payload.view(torch.uint8), scale.view(torch.uint8))
