# SPDX-License-Identifier: MIT
"""MX blocks in plain PyTorch, on any device: byte from the bits of amax, q = round(x 2^(127 - byte)).

The formula, the shapes and the random numbers are in `turbo_quant.calls`.
"""

from __future__ import annotations

import torch

from turbo_core.low_precision import MX_BLOCK_SIZE, MX_PADDING
from turbo_quant.calls import DequantizeMxCall, MxDirection, MxOutputs, QuantizeMxCall
from turbo_quant.formats import E2M1_VALUES, MX_FORMATS, payload_dtype, scale_dtype
from turbo_quant.pytorch.kernels.grouping import gather_groups, only_rows_of_groups, rows_of_groups
from turbo_quant.pytorch.kernels.hadamard import rotate, unrotate
from turbo_quant.pytorch.kernels.philox import philox_uniform
from turbo_quant.pytorch.kernels.shuffle import shuffle_scale_bytes, shuffle_weight_bytes

__all__ = ["dequantize_mx", "quantize_mx"]

_NAN_BYTE = 255


def _next_up(value: float) -> float:
    return torch.nextafter(torch.tensor(value), torch.tensor(torch.inf)).item()


# code of |v| = how many of these are at most |v|; a tie goes to the even code, so every second one is not included
_E2M1_STEPS = tuple(
    middle if code % 2 else _next_up(middle)
    for code, middle in enumerate((low + high) / 2 for low, high in zip(E2M1_VALUES, E2M1_VALUES[1:], strict=False))
)


def _scale_bytes(amax: torch.Tensor, format: str) -> torch.Tensor:
    """The E8M0 byte of each block, int32; 255 where amax is not finite."""
    mantissa, exponent_max, *_ = MX_FORMATS[format]
    bits = amax.contiguous().view(torch.int32) + (1 << (22 - mantissa))
    byte = ((bits >> 23) - exponent_max).clamp(0, 254)
    return torch.where(amax.isfinite(), byte, _NAN_BYTE)


def _power_of_two(byte: torch.Tensor) -> torch.Tensor:
    """2^(byte - 127), float32; NaN for 255."""
    bits = torch.where(byte == 0, 1 << 22, byte << 23)  # 2^-127 is a subnormal
    return torch.where(byte == _NAN_BYTE, 0x7FC00000, bits).to(torch.int32).view(torch.float32)


def _stochastic(v: torch.Tensor, u: torch.Tensor, format: str) -> torch.Tensor:
    """v moved to one of the two values of the format around it, up in magnitude if u < the fraction between them."""
    mantissa, _, exponent_min, largest, _ = MX_FORMATS[format]
    size = v.abs()
    exponent = ((size.view(torch.int32) >> 23) - 127).clamp(min=exponent_min)
    ulp = ((exponent - mantissa + 127) << 23).view(torch.float32)
    steps = size / ulp
    whole = steps.floor()
    rounded = ulp * (whole + (u < steps - whole))
    return torch.copysign(rounded.clamp(max=largest), v)


def _encode(v: torch.Tensor, format: str) -> torch.Tensor:
    """Payload bytes of v [..., Kp], to nearest even and saturating; e2m1 packed two a byte."""
    largest = MX_FORMATS[format].largest
    if format != "e2m1":
        return v.clamp(-largest, largest).to(payload_dtype(format)).view(torch.uint8)
    steps = torch.tensor(_E2M1_STEPS, device=v.device)
    code = torch.bucketize(v.abs(), steps, right=True, out_int32=True).to(torch.uint8) | v.signbit() * 8
    low, high = code.to(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)
    return low | high << 4


def _decode(q: torch.Tensor, format: str) -> torch.Tensor:
    """float32 values of payload bytes."""
    if format != "e2m1":
        return q.view(payload_dtype(format)).float()
    table = torch.tensor((*E2M1_VALUES, *(-value for value in E2M1_VALUES)), device=q.device)
    return table[torch.stack((q & 15, q >> 4), dim=-1).flatten(-2).int()]


def _quantize(
    y: torch.Tensor, direction: MxDirection, call: QuantizeMxCall, *, column: bool, end: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One copy of y [B,L,K], blocks along the last dimension; bytes from ``end`` on are 0."""
    B, L, K = y.shape
    y = torch.nn.functional.pad(y.float(), (0, -K % MX_PADDING))
    if direction.rht:
        y = rotate(y, call.sign_mask)
    blocks = y.reshape(B, L, -1, MX_BLOCK_SIZE)
    amax = blocks.abs().amax(-1)
    if direction.tile:
        amax = torch.nn.functional.pad(amax, (0, 0, 0, -L % MX_BLOCK_SIZE)).unflatten(1, (-1, MX_BLOCK_SIZE)).amax(2)
        amax = amax.repeat_interleave(MX_BLOCK_SIZE, 1)[:, :L]
    byte = _scale_bytes(amax, call.format)
    good = byte != _NAN_BYTE
    factor = _power_of_two(torch.where(good, 254 - byte, 0))
    v = torch.where(good[..., None], blocks * factor[..., None], 0.0).view(y.shape)
    if direction.stochastic and call.rng is not None:
        v = _stochastic(v, philox_uniform(v.shape, call.rng, column=column), call.format)
    if end is not None:
        v = torch.where(torch.arange(v.shape[-1], device=v.device) < end, v, 0.0)
    q, scale = _encode(v, call.format), byte.to(torch.uint8)
    if direction.shuffle_out:
        q = shuffle_weight_bytes(q)
    if direction.shuffle_scale:
        scale = shuffle_scale_bytes(scale)
    return q.view(payload_dtype(call.format)), scale.view(scale_dtype())


def quantize_mx(call: QuantizeMxCall) -> MxOutputs:
    """Answer a `QuantizeMxCall`."""
    x = call.x
    row: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    column = row
    groups = None if call.group_offs is None else rows_of_groups(call)
    if call.row is not None:
        cleared = groups is not None and call.group_lens is not None and call.row_idx is None
        counted = only_rows_of_groups(x[0], *groups)[None] if cleared else x
        row = _quantize(counted, call.row, call, column=False)
    if call.column is not None:
        end = None
        if groups is not None:
            x = gather_groups(x[0], *groups)[None]
            end = call.group_offs_padded[-1]
        column = _quantize(x.transpose(1, 2), call.column, call, column=True, end=end)
    return MxOutputs(*row, *column)


def dequantize_mx(call: DequantizeMxCall) -> torch.Tensor:
    """Answer a `DequantizeMxCall`."""
    values = _decode(call.q.contiguous().view(torch.uint8), call.format)
    factor = _power_of_two(call.scale.contiguous().view(torch.uint8).int())
    x = (values.unflatten(-1, (-1, MX_BLOCK_SIZE)) * factor[..., None]).flatten(-2)
    if call.rht:
        x = unrotate(x, call.sign_mask)
    x = x[..., : call.size]
    if call.transpose:
        x = x.transpose(1, 2)
    return x.to(call.out_dtype).contiguous()
