# SPDX-License-Identifier: MIT
"""The backend TRITON of FP8 attention: payloads of q, k and v with one scale for FP8_ROWS rows, and their attention.

    scale     = fp8_max / max(max |x|, floor)          over the rows and all columns
    q         = round_to_fp8(clamp(x * scale, -fp8_max, fp8_max))
    scale_inv = 1 / scale                             floor: turbo_core's fp8_amax_floor

A block that holds NaN or an infinity has scale_inv NaN and a payload of zeros, as in turbo_quant.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from turbo_attention.calls import ForwardCall
from turbo_attention.fp8_calls import FP8_ROWS, Fp8Result, fp8_forward_specs
from turbo_attention.triton.attention import forward_launches, why_not_widths
from turbo_core.calls import outputs
from turbo_core.device import DeviceFacts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_core.low_precision import fp8_amax_floor, fp8_max

__all__ = ["plan", "quantize_launch", "why_not"]


def why_not(call: ForwardCall) -> str | None:
    """What the kernels have against ``call``."""
    return why_not_widths(call)


def plan(call: ForwardCall, facts: DeviceFacts) -> tuple[Fp8Result, list[Launch]]:
    """The result to be, and the launches that fill it."""
    dtype = torch.float8_e4m3fnuz if facts.fp8_fnuz else torch.float8_e4m3fn
    result = outputs(fp8_forward_specs(call, dtype), call.q.device)
    payloads, scales = result.payloads(call)
    launches = [quantize_launch(*rows) for rows in zip(call[:3], payloads[:3], scales, strict=True)]
    return result, [*launches, *forward_launches(payloads, result, facts, scales=scales)]


@triton.jit
def quantize_rows_kernel(
    x, q, scale_inv, stride_xb, stride_xs, stride_xh, stride_qb, stride_qs, stride_qh, heads, blocks, length, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FP8_MAX: tl.constexpr, AMAX_FLOOR: tl.constexpr,
):  # fmt: skip
    """x, q [B,S,H,width] by strides; scale_inv float32 [B,H,blocks]. One program is one block of rows of a head."""
    program = tl.program_id(0)
    block, head, batch = program % blocks, program // blocks % heads, (program // blocks // heads).to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows < length)[:, None] & (columns < width)[None, :]
    rows64, head64 = rows.to(tl.int64)[:, None], head.to(tl.int64)
    values = tl.load(
        x + batch * stride_xb + head64 * stride_xh + rows64 * stride_xs + columns[None, :], mask=inside, other=0.0
    ).to(tl.float32)
    size = tl.abs(values)
    finite = tl.min((size < float("inf")).to(tl.int32)) > 0
    amax = tl.maximum(tl.max(size), AMAX_FLOOR)
    scale = tl.div_rn(FP8_MAX + tl.zeros_like(amax), amax)
    scaled = tl.minimum(tl.maximum(values * scale, -FP8_MAX), FP8_MAX)
    scaled = tl.where(finite, scaled, 0.0)
    inverse = tl.where(finite, tl.div_rn(tl.full((), 1.0, tl.float32), scale), float("nan"))
    tl.store(scale_inv + program, inverse)
    pointers = q + batch * stride_qb + head64 * stride_qh + rows64 * stride_qs + columns[None, :]
    tl.store(pointers, scaled.to(q.dtype.element_ty), mask=inside)


def quantize_launch(x: torch.Tensor, q: torch.Tensor, scale_inv: torch.Tensor) -> Launch:
    """The launch that writes the payload q of x, of its shape, and scale_inv float32 [B,H,blocks], contiguous."""
    batch, length, heads, width = x.shape
    blocks = scale_inv.shape[2]
    strides = {
        f"stride_{name}{axis}": t.stride(at) for name, t in (("x", x), ("q", q)) for at, axis in enumerate("bsh")
    }
    arguments = dict(x=x, q=q, scale_inv=scale_inv, **strides, heads=heads, blocks=blocks, length=length, width=width)
    constants = dict(
        ROWS=FP8_ROWS,
        COLUMNS=max(16, power_of_two(width)),
        FP8_MAX=fp8_max(q.dtype),
        AMAX_FLOOR=fp8_amax_floor(q.dtype),
    )
    # gfx942: with buffer instructions the masks of 288 columns and more spilled 55 to 298 scalar registers (triton 3.9)
    return Launch(quantize_rows_kernel, (batch * heads * blocks,), arguments, constants, dict(num_warps=4), ALL)
