# SPDX-License-Identifier: MIT
"""The backends of FP8 attention (forward) and of the quantisation before it, and the choice among them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from turbo_attention.calls import FP8_ROWS, AttentionResult, ForwardCall, Fp8Call, Fp8Scales
from turbo_attention.layout import empty_like_rows
from turbo_attention.pytorch.kernels.attention_impl import AttentionDispatcher, why_not_widths
from turbo_attention.pytorch.kernels.fp8_reference import fp8_attention_forward, quantize_rows
from turbo_core import AutoKernelDispatcher, BackendType, KernelBackend, PrecisionType, device_facts, why_no_triton
from turbo_core.low_precision import Format, fp8_dtype

__all__ = ["Fp8AttentionDispatcher", "quantize", "run_fp8_forward"]


class TritonBackend(KernelBackend):
    """Our Triton kernel: products of FP8 numbers."""

    @classmethod
    def why_not(cls, call: Fp8Call) -> str | None:
        return why_not_widths(call.forward) or why_no_triton(call.forward.q.device)

    @classmethod
    def execute(cls, call: Fp8Call) -> AttentionResult:
        from turbo_attention.triton import attention

        return attention.forward(call.forward, call.scales)


class TorchBackend(KernelBackend):
    """The reference: dequantised, float32, on any device."""

    @classmethod
    def why_not(cls, call: Fp8Call) -> str | None:
        return None

    @classmethod
    def execute(cls, call: Fp8Call) -> AttentionResult:
        return fp8_attention_forward(call)


class Fp8AttentionDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one FP8 attention forward."""

    op = "attention_fp8"
    family = "attn"
    backends = {
        BackendType.TRITON: TritonBackend,
        BackendType.TORCH: TorchBackend,
    }

    @classmethod
    def precision(cls, call: Fp8Call) -> PrecisionType:
        return PrecisionType.FP8

    @classmethod
    def default_backend(cls, call: Fp8Call) -> BackendType:
        """Triton on a GPU, plain torch on a CPU."""
        cpu = device_facts(call.forward.q.device).vendor == "cpu"
        return BackendType.TORCH if cpu else BackendType.TRITON

    @classmethod
    def make_key(cls, call: Fp8Call) -> Hashable:
        return AttentionDispatcher.make_key(call.forward), call.scales.out_dtype

    @classmethod
    def describe(cls, call: Fp8Call) -> str:
        return f"FP8 {AttentionDispatcher.describe(call.forward)}"


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(payload, scale_inv [B,H,blocks]) in the device's E4M3."""
    dtype = fp8_dtype(Format.E4M3, x.device)
    if not x.numel():
        blocks = -(-x.shape[1] // FP8_ROWS)
        return empty_like_rows(x, x.shape[3], dtype), x.new_ones((x.shape[0], x.shape[2], blocks), dtype=torch.float32)
    if x.stride(-1) != 1:
        x = x.contiguous()
    if device_facts(x.device).vendor != "cpu" and why_no_triton(x.device) is None:
        from turbo_attention.triton.quantize_rows import quantize_rows as quantize_rows_triton

        return quantize_rows_triton(x, dtype)
    return quantize_rows(x, dtype)


def run_fp8_forward(call: ForwardCall, scales: Fp8Scales) -> AttentionResult:
    """Compute ``call`` of payloads on the backend chosen for it; there are scores to compute."""
    result: Any = Fp8AttentionDispatcher.dispatch(Fp8Call(call, scales))
    return result
