# SPDX-License-Identifier: MIT
"""What is launched to dequantise: the result and the launch of a call, from its tensors' metadata alone."""

from __future__ import annotations

import math

import torch

from turbo_core.device import DeviceFacts
from turbo_core.launch import Launch, power_of_two
from turbo_core.low_precision import ScalingGranularity
from turbo_quant.calls import DequantizeFloatCall, DequantizeMxCall
from turbo_quant.triton.dequantize_kernel import dequantize_float_kernel, dequantize_mx_kernel
from turbo_quant.triton.float_plan import as_bytes, fp8_constants, needs_wide
from turbo_quant.triton.mx_plan import mx_constants
from turbo_quant.triton.tiles import choose

__all__ = ["plan_dequantize_float", "plan_dequantize_mx"]


def plan_dequantize_float(call: DequantizeFloatCall, facts: DeviceFacts) -> tuple[torch.Tensor, list[Launch]]:
    """The result of a call, not yet written, and the launch that writes it."""
    q, scale = call.q, call.scale_inv
    B, R, C = q.shape
    out = torch.empty((B, R, C), dtype=call.out_dtype, device=q.device)
    if call.granularity is ScalingGranularity.TENSORWISE:
        size_r, size_c, scale = R, C, scale.expand(B, 1, 1)
    elif call.granularity is ScalingGranularity.ROWWISE:
        size_r, size_c = (1, C) if call.axis == 2 else (R, 1)
    else:
        size = call.block_size
        size_r, size_c = {2: (1, size), 1: (size, 1), 0: (size, size)}[call.axis]
    one = call.granularity is ScalingGranularity.TENSORWISE
    by_row = size_r == 1 and scale.stride(0) == R * scale.stride(1)
    if B > 1 and q.stride(0) == R * q.stride(1) and (one or by_row):
        size_r = B * R if one else 1
        B, R = 1, B * R
    tile = choose("dequantize", facts, multiple=math.gcd(C, size_c, R if q.stride(2) != 1 else C))
    block_r, block_c = min(tile.rows, power_of_two(R)), min(tile.columns, power_of_two(C))
    size_r, size_c = min(size_r, R), min(size_c, C)
    parts_r, tiles_r, full_r = _cut(R, size_r, block_r)
    parts_c, tiles_c, full_c = _cut(C, size_c, block_c)
    launch = Launch(
        dequantize_float_kernel,
        (B * tiles_r * tiles_c, 1, 1),
        {
            "q_ptr": as_bytes(q),
            "scale_ptr": scale,
            "out_ptr": out,
            "R": R,
            "C": C,
            "tiles_r": tiles_r,
            "tiles_c": tiles_c,
            "blocks_r": -(-R // size_r),
            "blocks_c": -(-C // size_c),
            "size_r": size_r,
            "size_c": size_c,
            "parts_r": parts_r,
            "parts_c": parts_c,
            **dict(zip(("stride_b", "stride_r", "stride_c"), q.stride(), strict=True)),
            **dict(zip(("scale_b", "scale_r", "scale_c"), scale.stride(), strict=True)),
        },
        {
            "P_R": min(power_of_two(size_r), 2 * block_r),
            "P_C": min(power_of_two(size_c), 2 * block_c),
            "EXACT_R": power_of_two(size_r) == size_r,
            "EXACT_C": power_of_two(size_c) == size_c,
            "BLOCK_R": block_r,
            "BLOCK_C": block_c,
            "MASKED": not (full_r and full_c),
            "WIDE": needs_wide(block_r * max(q.stride(1), C), block_c * q.stride(2)),
            **fp8_constants(q.dtype, facts),
        },
        tile.launch_options(),
    )
    return out, [launch]


def _cut(extent: int, size: int, block: int) -> tuple[int, int, bool]:
    """Along one axis: tiles in a block of ``size`` (1 if a tile holds blocks), all tiles, whether all are full."""
    P = power_of_two(size)
    if block >= P:
        step, parts = block // P * size, 1
    else:
        step, parts = size, -(-size // block)
    tiles = -(-extent // step) * parts
    return parts, tiles, tiles * block == extent


def plan_dequantize_mx(call: DequantizeMxCall, facts: DeviceFacts) -> tuple[torch.Tensor, list[Launch]]:
    """The result of a call, not yet written, and the launch that writes it."""
    q, scale = call.q.view(torch.uint8), call.scale.view(torch.uint8)
    B, L, _ = q.shape
    size = call.size
    out = torch.empty((B, size, L) if call.transpose else (B, L, size), dtype=call.out_dtype, device=q.device)
    tile = choose("mx dequantize", facts)
    block_l, block_k = tile.rows, tile.columns
    tiles_l, tiles_k = -(-L // block_l), -(-size // block_k)
    launch = Launch(
        dequantize_mx_kernel,
        (B * tiles_l * tiles_k, 1, 1),
        {
            "q_ptr": q,
            "scale_ptr": scale,
            "out_ptr": out,
            "L": L,
            "size": size,
            "tiles_l": tiles_l,
            "tiles_k": tiles_k,
            **dict(zip(("stride_b", "stride_l", "stride_k"), q.stride(), strict=True)),
            **dict(zip(("scale_b", "scale_l", "scale_k"), scale.stride(), strict=True)),
            "sign_mask": call.sign_mask if call.rht else 0,
        },
        {
            "RHT": call.rht,
            "TRANSPOSE": call.transpose,
            "BLOCK_L": block_l,
            "BLOCK_K": block_k,
            "MASK_L": L % block_l != 0,
            "MASK_K": size % block_k != 0,
            "WIDE": needs_wide(block_l * max(q.stride(1), size), block_k * max(q.stride(2), L)),
            **mx_constants(call.format, facts),
        },
        tile.launch_options(),
    )
    return out, [launch]
