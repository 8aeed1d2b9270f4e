# SPDX-License-Identifier: MIT
"""Float32 scales in plain PyTorch, on any device: scale = fp8_max / max(amax, floor), q = round(clamp(x scale)).

The formula and the shapes are in `turbo_quant.calls`.
"""

from __future__ import annotations

import torch

from turbo_core.low_precision import ScalingGranularity, fp8_amax_floor, fp8_max
from turbo_quant.calls import DequantizeFloatCall, FloatOutputs, QuantizeFloatCall
from turbo_quant.orders import reordered
from turbo_quant.pytorch.kernels.grouping import gather_groups

__all__ = ["dequantize_float", "quantize_float"]


def block_amax(x: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """max |x| of each block[0] x block[1] piece of x [B,R,C]; pieces at the end may be shorter. NaN propagates."""
    for dim, size in ((1, block[0]), (2, block[1])):
        if size == 1:
            continue
        missing = -x.shape[dim] % size
        if missing:
            x = torch.nn.functional.pad(x, (0, missing) if dim == 2 else (0, 0, 0, missing))
        x = x.unflatten(dim, (-1, size)).abs().amax(dim + 1)
    return x.abs()


def spread(values: torch.Tensor, block: tuple[int, int], like: torch.Tensor) -> torch.Tensor:
    """The inverse of blocking: [B,R,C], each element with the value of its block."""
    for dim, size in ((1, block[0]), (2, block[1])):
        if size > 1:
            values = values.repeat_interleave(size, dim).narrow(dim, 0, like.shape[dim])
    return values


def _quantize(
    x: torch.Tensor, dtype: torch.dtype, block: tuple[int, int], amax: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    largest = fp8_max(dtype)
    amax = block_amax(x, block) if amax is None else amax
    finite = amax.isfinite()
    # not `largest / amax`: torch makes that a reciprocal and a product, rounded twice
    scale = torch.full_like(amax, largest) / amax.clamp(min=fp8_amax_floor(dtype))
    scale_inv = torch.where(finite, scale.reciprocal(), torch.nan)
    q = torch.where(spread(finite, block, x), x * spread(scale, block, x), 0.0)
    return q.clamp(-largest, largest).to(dtype, memory_format=torch.contiguous_format), scale_inv.contiguous()


def quantize_float(call: QuantizeFloatCall) -> FloatOutputs:
    """Answer a `QuantizeFloatCall`."""
    if call.k_major:
        return reordered(call, quantize_float)
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
    if call.column and call.group_offs is not None and call.group_offs_padded is not None:
        column = _quantize_padded_groups(call, call.group_offs, call.group_offs_padded)
    elif call.column:
        column = _quantize(x, dtype, (size, 1))
    return FloatOutputs(*row, *column)


def _quantize_padded_groups(
    call: QuantizeFloatCall, offs: torch.Tensor, padded: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    size = call.block_size
    rows = call.x.shape[1] + (offs.numel() - 1) * size
    x = gather_groups(call.x[0], offs, padded, rows)[None].float()
    q, scale_inv = _quantize(x, call.out_dtype, (size, 1))
    first_row = torch.arange(scale_inv.shape[1], device=x.device) * size
    return q, torch.where((first_row < padded[-1])[None, :, None], scale_inv, 0.0)


def dequantize_float(call: DequantizeFloatCall) -> torch.Tensor:
    """Answer a `DequantizeFloatCall`."""
    q, scale_inv, size = call.q.float(), call.scale_inv, call.block_size
    if call.granularity is ScalingGranularity.BLOCKWISE:
        block = {2: (1, size), 1: (size, 1), 0: (size, size)}[call.axis]
        scale_inv = spread(scale_inv, block, q)
    return (q * scale_inv).to(call.out_dtype).contiguous()
