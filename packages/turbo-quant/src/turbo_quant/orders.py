# SPDX-License-Identifier: MIT
"""The memory order of `QuantizeFloatCall.k_major` made by copies, for what has no kernel that writes in it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from turbo_core.low_precision import memory_dtype
from turbo_quant.calls import FloatOutputs, QuantizeFloatCall

__all__ = ["reordered", "transposed"]


def reordered(call: QuantizeFloatCall, quantize: Callable[[QuantizeFloatCall], FloatOutputs]) -> FloatOutputs:
    """A call with ``k_major`` by ``quantize``, which answers those without."""
    plain, one = call._replace(k_major=False), call.has_one_scale()
    row, row_scale, column, column_scale = quantize(plain._replace(row=True, column=False) if one else plain)
    if one:
        column = row if call.column else None
    elif row_scale is not None and call.block_size:  # one for a row has no order
        row_scale = transposed(row_scale)
    return FloatOutputs(
        row if call.row else None, row_scale, None if column is None else transposed(column), column_scale
    )


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, stored transposed."""
    B, R, C = tensor.shape
    stored = tensor.new_empty((B, C, R))
    stored.view(memory_dtype(stored.dtype)).copy_(tensor.view(memory_dtype(tensor.dtype)).transpose(1, 2))
    return stored.transpose(1, 2)
