# SPDX-License-Identifier: MIT
"""`FP8AllToAll`: rows exchanged among ranks in FP8, each with the scale of the rank that quantised it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from turbo_core import UnsupportedError
from turbo_core.low_precision import Float8QuantConfig, ScalingGranularity, ScalingStrategy, fp8_dtype
from turbo_core.sharding import refuse_sharded
from turbo_quant.pytorch.ops.checks import DTYPES, what
from turbo_quant.pytorch.ops.dequantize import dequantize_fp8
from turbo_quant.pytorch.ops.quantize import quantize_fp8

__all__ = ["FP8AllToAll"]

_Splits = list[int] | None


def _check_splits(name: str, splits: Any, rows: int | None, world_size: int) -> list[int]:
    """Rows for each rank; ``rows`` is what they add up to, where that is known."""
    op = "FP8AllToAll"
    if splits is None:
        if rows is None or rows % world_size:
            raise UnsupportedError(
                f"{op}: {name}=None with {rows} rows; a multiple of the {world_size} ranks is accepted"
            )
        return [rows // world_size] * world_size
    splits = list(splits)
    valid = len(splits) == world_size and all(isinstance(n, int) and n >= 0 for n in splits)
    if not valid or (rows is not None and sum(splits) != rows):
        total = "" if rows is None else f" that add up to {rows}"
        raise UnsupportedError(f"{op}: {name}={splits}; {world_size} numbers{total} are accepted")
    return splits


def _check(x: Any, config: Any, quantised: bool) -> None:
    op = "FP8AllToAll"
    refuse_sharded(op, "its local tensor (to_local) is accepted", input=x)
    if not isinstance(x, torch.Tensor) or x.dim() == 0 or x.dtype not in DTYPES:
        accepted = ", ".join(map(str, DTYPES))
        raise UnsupportedError(f"{op}: input is {what(x)}; at least 1 dimension in one of {accepted} is accepted")
    if config is None and not quantised:
        return
    if not isinstance(config, Float8QuantConfig):
        raise UnsupportedError(f"{op}: config={config!r}; a Float8QuantConfig is accepted")
    if config.granularity is not ScalingGranularity.TENSORWISE or config.strategy is not ScalingStrategy.DYNAMIC:
        raise UnsupportedError(
            f"{op}: config has {config.granularity} and {config.strategy}; TENSORWISE and DYNAMIC are accepted"
        )


def _exchange(
    x: torch.Tensor, group: Any, receive: list[int], send: list[int], dtype: torch.dtype | None
) -> torch.Tensor:
    """What this rank receives; ``dtype`` is the FP8 type on the wire, None sends x as it is."""
    if dist.get_world_size(group) == 1:
        return x.clone()
    shape = (sum(receive), *x.shape[1:])
    if dtype is None:
        out = x.new_empty(shape)
        dist.all_to_all_single(out, x.contiguous(), receive, send, group=group)
        return out
    width = math.prod(x.shape[1:])
    q, scale_inv = quantize_fp8(x, dtype, ScalingGranularity.TENSORWISE)
    received = q.new_empty((shape[0], width))
    scales = scale_inv.new_empty(len(send))
    # bytes, because not every backend knows the FP8 types
    rows = q.view(x.shape[0], width).view(torch.uint8)
    works = (
        dist.all_to_all_single(received.view(torch.uint8), rows, receive, send, group=group, async_op=True),
        dist.all_gather_into_tensor(scales, scale_inv.view(1), group=group, async_op=True),
    )
    for work in works:
        work.wait()
    scale_of_row = torch.cat([scales[rank].expand(n) for rank, n in enumerate(receive)])[:, None]
    out = dequantize_fp8(received, x.dtype, ScalingGranularity.ROWWISE, axis=-1, scale_inv=scale_of_row)
    return out.view(shape)


class _Exchange(torch.autograd.Function):
    """`_exchange`; its gradient is the exchange back, itself differentiable."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group: Any, receive: list[int], send: list[int], there: Any, back: Any
    ) -> torch.Tensor:
        ctx.rest = group, send, receive, back, there
        return _exchange(x, group, receive, send, there)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _Exchange.apply(grads[0], *ctx.rest), None, None, None, None, None


class FP8AllToAll(torch.autograd.Function):
    """All-to-all of rows in FP8: ``FP8AllToAll.apply(group, input, output_split_sizes, input_split_sizes, fwd_quant,
    bwd_quant, config)``.

    Each rank quantises its input with one scale (TENSORWISE) and sends the bytes; the scales travel too, and every row
    is dequantised with the scale of the rank that it came from. With one rank nothing is rounded. The host waits for
    nothing but what the collectives themselves wait for.

    Args:
        group: process group, None for the default one.
        input: [T, ...], bfloat16, float16 or float32, any strides.
        output_split_sizes, input_split_sizes: rows from and to each rank, as in torch's all_to_all_single; None: equal.
        fwd_quant, bwd_quant: whether the input, and the gradient, are sent in FP8; else in their own dtype.
        config: a Float8QuantConfig, TENSORWISE and DYNAMIC. HYBRID sends E4M3 forward, E5M2 backward.

    Returns:
        [sum(output_split_sizes), ...] in the input's dtype; differentiable in the input.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been sent.
    """

    @staticmethod
    def forward(
        ctx: Any,
        group: Any,
        input: torch.Tensor,
        output_split_sizes: _Splits,
        input_split_sizes: _Splits,
        fwd_quant: bool,
        bwd_quant: bool,
        config: Float8QuantConfig | None,
    ) -> torch.Tensor:
        _check(input, config, fwd_quant or bwd_quant)
        world_size = dist.get_world_size(group)
        send = _check_splits("input_split_sizes", input_split_sizes, input.shape[0], world_size)
        equal = input.shape[0] if output_split_sizes is None else None
        receive = _check_splits("output_split_sizes", output_split_sizes, equal, world_size)
        back = fp8_dtype(config.format, input.device, is_forward=False) if bwd_quant and config else None
        dtype = fp8_dtype(config.format, input.device) if fwd_quant and config else None
        ctx.rest = group, send, receive, back, dtype
        return _exchange(input, group, receive, send, dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, _Exchange.apply(grads[0], *ctx.rest), None, None, None, None, None
