# SPDX-License-Identifier: MIT
"""The shapes and dtypes of what the quantise calls give back, for fakes, for empty inputs and for backends."""

from __future__ import annotations

from typing import NamedTuple

import torch

from turbo_core.low_precision import MX_BLOCK_SIZE, MX_PADDING, ScalingGranularity
from turbo_quant.calls import MxDirection, QuantizeFloatCall, QuantizeMxCall
from turbo_quant.formats import MX_FORMATS, payload_dtype, scale_dtype

__all__ = ["SHUFFLED_SCALE_COLUMNS", "SHUFFLED_SCALE_ROWS", "Spec", "ceil_div", "float_specs", "mx_specs", "round_up"]

SHUFFLED_SCALE_ROWS, SHUFFLED_SCALE_COLUMNS = 256, 8  # padding of scales in the preshuffled order


class Spec(NamedTuple):
    """One output: its shape, dtype and strides (None: contiguous)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None


def transposed(B: int, R: int, C: int, dtype: torch.dtype) -> Spec:
    """[B,R,C], in memory [B,C,R]."""
    return Spec((B, R, C), dtype, (R * C, 1, R))


def ceil_div(n: int, d: int) -> int:
    """n / d, rounded up."""
    return (n + d - 1) // d


def round_up(n: int, multiple: int) -> int:
    """The next multiple."""
    return ceil_div(n, multiple) * multiple


def float_specs(call: QuantizeFloatCall) -> tuple[Spec | None, Spec | None, Spec | None, Spec | None]:
    """row, row_scale_inv, column, column_scale_inv; None where not wanted."""
    B, R, C = call.x.shape
    size, wide = call.block_size, torch.float32
    row_scale: tuple[int, ...]
    column_rows = R if call.group_offs is None else R + (call.group_offs.shape[0] - 1) * size
    if call.granularity is ScalingGranularity.TENSORWISE:
        row_scale, column_scale = (), (0,)
    elif call.granularity is ScalingGranularity.ROWWISE:
        row_scale, column_scale = (B, R, 1), (B, 1, C)
    else:
        row_scale = (B, ceil_div(R, size) if call.tile else R, ceil_div(C, size))
        column_scale = (B, ceil_div(column_rows, size), C)
    if call.k_major:
        lines = call.granularity is ScalingGranularity.BLOCKWISE and not call.tile
        row_spec = transposed(*row_scale, wide) if lines else Spec(row_scale, wide)  # type: ignore[arg-type]
        one = call.has_one_scale()
        return (
            Spec((B, R, C), call.out_dtype) if call.row else None,
            row_spec if call.row or one else None,
            transposed(B, R, C, call.out_dtype) if call.column else None,
            Spec(column_scale, wide) if call.column and not one else None,
        )
    return (
        Spec((B, R, C), call.out_dtype) if call.row else None,
        Spec(row_scale, wide) if call.row else None,
        Spec((B, column_rows, C), call.out_dtype) if call.column else None,
        Spec(column_scale, wide) if call.column else None,
    )


def _mx_pair(direction: MxDirection | None, format: str, B: int, L: int, K: int) -> tuple[Spec | None, Spec | None]:
    if direction is None:
        return None, None
    Kp = round_up(K, MX_PADDING)
    rows, columns = L, Kp // MX_BLOCK_SIZE
    if direction.shuffle_scale:
        rows, columns = round_up(rows, SHUFFLED_SCALE_ROWS), round_up(columns, SHUFFLED_SCALE_COLUMNS)
    payload = Spec((B, L, Kp // MX_FORMATS[format].per_byte), payload_dtype(format))
    return payload, Spec((B, rows, columns), scale_dtype())


def mx_specs(call: QuantizeMxCall) -> tuple[Spec | None, Spec | None, Spec | None, Spec | None]:
    """row, row_scale, column, column_scale; None where not wanted."""
    B, R, C = call.x.shape
    column_rows = R if call.group_offs is None else R + (call.group_offs.shape[0] - 1) * (MX_PADDING - 1)
    return *_mx_pair(call.row, call.format, B, R, C), *_mx_pair(call.column, call.format, B, C, column_rows)
