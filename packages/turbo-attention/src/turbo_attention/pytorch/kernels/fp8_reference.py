# SPDX-License-Identifier: MIT
"""FP8 attention in plain PyTorch: payloads with one scale for FP8_ROWS rows of a head, and the attention of them."""

from __future__ import annotations

import torch

from turbo_attention.calls import ForwardCall
from turbo_attention.fp8_calls import FP8_ROWS, Fp8Result
from turbo_attention.layout import empty_like_rows
from turbo_attention.pytorch.kernels.reference import attention_forward
from turbo_core.low_precision import Format, fp8_amax_floor, fp8_dtype, fp8_max

__all__ = ["dequantize_rows", "quantize_rows", "run", "why_not"]


def why_not(call: ForwardCall) -> None:
    """It takes every call."""


def run(call: ForwardCall) -> Fp8Result:
    """The attention of the dequantised payloads, in float32: what FP8 products are judged by."""
    dtype, rows = fp8_dtype(Format.E4M3, call.q.device), (call.q, call.k, call.v)
    payloads, scales = zip(*(quantize_rows(x, dtype) for x in rows), strict=True)
    q, k, v = (dequantize_rows(payload, scale, torch.float32) for payload, scale in zip(payloads, scales, strict=True))
    out, lse, lse_low = attention_forward(call._replace(q=q, k=k, v=v))
    return Fp8Result(out.to(call.q.dtype), lse, lse_low, *payloads, *scales)


def _blocks(x: torch.Tensor) -> torch.Tensor:
    """[B,S,H,D] as [B,blocks,FP8_ROWS,H,D], zeros behind the end."""
    batch, length, heads, width = x.shape
    padding = -length % FP8_ROWS
    padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, padding))
    return padded.reshape(batch, -1, FP8_ROWS, heads, width)


def quantize_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(payload in x's order of dimensions, scale_inv float32 [B,H,blocks]); formula: triton/attention_fp8.py."""
    blocks = _blocks(x.float())
    largest = fp8_max(dtype)
    finite = blocks.isfinite().all(dim=4).all(dim=2)
    amax = blocks.abs().amax(dim=(2, 4)).clamp_min(fp8_amax_floor(dtype))
    scale = torch.full_like(amax, largest) / amax  # a number over a tensor is a product with a rounded reciprocal
    scaled = (blocks * scale[:, :, None, :, None]).clamp(-largest, largest)
    scaled = torch.where(finite[:, :, None, :, None], scaled, 0.0)
    payload = empty_like_rows(x, x.shape[3], dtype)
    payload.copy_(scaled.flatten(1, 2)[:, : x.shape[1]])
    scale_inv = torch.where(finite, 1.0 / scale, torch.nan)
    return payload, scale_inv.transpose(1, 2).contiguous()


def dequantize_rows(payload: torch.Tensor, scale_inv: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """payload * scale_inv, in the payload's order of dimensions."""
    per_row = scale_inv.repeat_interleave(FP8_ROWS, dim=2)[:, :, : payload.shape[1]].transpose(1, 2)
    result = empty_like_rows(payload, payload.shape[3], dtype)
    return result.copy_(payload.float() * per_row[..., None])
