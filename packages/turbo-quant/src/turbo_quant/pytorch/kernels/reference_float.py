# SPDX-License-Identifier: MIT
"""Float32 scales in plain PyTorch, on any device: scale = fp8_max / max(amax, floor), q = round(clamp(x scale)).

The formula and the shapes are in `turbo_quant.calls`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from turbo_core.low_precision import ScalingGranularity, fp8_amax_floor, fp8_max
from turbo_quant.calls import DequantizeFloatCall, FloatOutputs, QuantizeFloatCall
from turbo_quant.orders import reordered, transposed
from turbo_quant.pytorch.kernels.grouping import gather_groups, only_rows_of_groups, rows_of_groups

__all__ = ["dequantize_float", "quantize_float"]


def block_amax(x: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """max |x| of each block[0] x block[1] piece of x [B,R,C]; pieces at the end may be shorter. NaN propagates."""
    for dim, size in ((1, block[0]), (2, block[1])):
        if size == 1:
            continue
        missing = -x.shape[dim] % size
        if missing:
            x = torch.nn.functional.pad(x, (0, missing) if dim == 2 else (0, 0, 0, missing))
        x = x.unflatten(dim, (x.shape[dim] // size, size)).abs().amax(dim + 1)
    return x.abs()


def spread(values: torch.Tensor, block: tuple[int, int], like: torch.Tensor) -> torch.Tensor:
    """The inverse of blocking: [B,R,C], each element with the value of its block."""
    for dim, size in ((1, block[0]), (2, block[1])):
        if size > 1:
            values = values.repeat_interleave(size, dim).narrow(dim, 0, like.shape[dim])
    return values


class _Scales(NamedTuple):
    """Of blocks: whether all of it is finite, what x is multiplied with, and what its codes are."""

    finite: torch.Tensor
    scale: torch.Tensor
    scale_inv: torch.Tensor


def _scales(amax: torch.Tensor, dtype: torch.dtype) -> _Scales:
    finite = amax.isfinite()
    # not `largest / amax`: torch makes that a reciprocal and a product, rounded twice
    scale = torch.full_like(amax, fp8_max(dtype)) / amax.clamp(min=fp8_amax_floor(dtype))
    return _Scales(finite, scale, torch.where(finite, scale.reciprocal(), torch.nan).contiguous())


def _codes(x: torch.Tensor, finite: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    largest = fp8_max(dtype)
    q = torch.where(finite, x * scale, 0.0)
    return q.clamp(-largest, largest).to(dtype, memory_format=torch.contiguous_format)


def _quantize(
    x: torch.Tensor, dtype: torch.dtype, block: tuple[int, int], amax: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    finite, scale, scale_inv = _scales(block_amax(x, block) if amax is None else amax, dtype)
    return _codes(x, spread(finite, block, x), spread(scale, block, x), dtype), scale_inv


def quantize_float(call: QuantizeFloatCall) -> FloatOutputs:
    """Answer a `QuantizeFloatCall`."""
    if call.k_major:
        return reordered(call, quantize_float) if call.group_offs is None else _quantize_groups(call)
    x, dtype, size = call.x.float(), call.out_dtype, call.block_size
    rows, columns = x.shape[1:]
    if call.granularity is ScalingGranularity.TENSORWISE:
        amax = None if call.amax is None else call.amax.view(1, 1, 1)
        q, scale_inv = _quantize(x.reshape(1, 1, -1), dtype, (1, x.numel()), amax)
        return FloatOutputs(q.view(x.shape), scale_inv.view(()), None, None)
    if call.granularity is ScalingGranularity.ROWWISE:
        row = _quantize(x, dtype, (1, columns)) if call.row else (None, None)
        column = _quantize(x, dtype, (rows, 1)) if call.column else (None, None)
        return FloatOutputs(*row, *column)
    row = _quantize(x, dtype, (size if call.tile else 1, size)) if call.row else (None, None)
    column: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    if call.column and call.group_offs is not None:
        column = _quantize_padded(call, gather_groups(call.x[0], *rows_of_groups(call))[None].float())
    elif call.column:
        column = _quantize(x, dtype, (size, 1))
    return FloatOutputs(*row, *column)


def _quantize_padded(call: QuantizeFloatCall, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """BLOCKWISE columns of padded groups [1,P,C]; scales past the last group are zeros."""
    size = call.block_size
    q, scale_inv = _quantize(groups, call.out_dtype, (size, 1))
    first_row = torch.arange(scale_inv.shape[1], device=groups.device) * size
    return q, torch.where((first_row < call.group_offs_padded[-1])[None, :, None], scale_inv, 0.0)


def _quantize_groups(call: QuantizeFloatCall) -> FloatOutputs:
    """Groups with ``k_major``."""
    x, dtype, size = call.x[0].float(), call.out_dtype, call.block_size
    source, inside = rows_of_groups(call)
    groups = gather_groups(x, source, inside)[None]
    tensorwise = call.granularity is ScalingGranularity.TENSORWISE
    if call.row_idx is None or tensorwise:
        x = only_rows_of_groups(x, source, inside)
    x = x[None]
    if tensorwise:
        amax = call.amax
        if amax is None:
            amax = groups.abs().amax() if groups.numel() else groups.new_zeros(())
        finite, scale, scale_inv = _scales(amax, dtype)
        row = _codes(x, finite, scale, dtype) if call.row else None
        column = transposed(_codes(groups, finite, scale, dtype)) if call.column else None
        return FloatOutputs(row, scale_inv.view(()), column, None)
    row = _quantize(x, dtype, (1, size or x.shape[2])) if call.row else (None, None)
    if row[1] is not None and size:
        row = row[0], transposed(row[1])
    if not call.column:
        return FloatOutputs(*row, None, None)
    if size:
        column = _quantize_padded(call, groups)
    else:
        column = _quantize_columns_of_groups(groups, call.group_offs_padded, dtype)
    return FloatOutputs(*row, transposed(column[0]), column[1])


def _quantize_columns_of_groups(
    groups: torch.Tensor, offs_padded: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Payload of padded groups [1,P,C] with one scale a group and column, and the scales [1,G,C]."""
    _, P, C = groups.shape
    G = offs_padded.shape[0] - 1
    group = torch.searchsorted(offs_padded[1:].contiguous(), torch.arange(P, device=groups.device), right=True)
    # the bits of |x| order as the numbers do, NaN last; group G is what lies past the last
    bits = groups[0].abs().view(torch.int32)
    amax = bits.new_zeros((G + 1, C)).scatter_reduce(0, group[:, None].expand(P, C), bits, "amax")
    finite, scale, scale_inv = _scales(amax.view(torch.float32), dtype)
    return _codes(groups, finite[group][None], scale[group][None], dtype), scale_inv[None, :G].contiguous()


def dequantize_float(call: DequantizeFloatCall) -> torch.Tensor:
    """Answer a `DequantizeFloatCall`."""
    q, scale_inv, size = call.q.float(), call.scale_inv, call.block_size
    if call.granularity is ScalingGranularity.BLOCKWISE:
        block = {2: (1, size), 1: (size, 1), 0: (size, size)}[call.axis]
        scale_inv = spread(scale_inv, block, q)
    return (q * scale_inv).to(call.out_dtype).contiguous()
