# SPDX-License-Identifier: MIT
"""The backends of FP8 attention and the choice among them, forward; its backward is attention's, of what it kept."""

from __future__ import annotations

import torch

from turbo_attention.calls import AttentionGradients, BackwardCall, ForwardCall
from turbo_attention.fp8_calls import Fp8Backward, Fp8Payloads, Fp8Result, Fp8Scales, fp8_forward_specs
from turbo_attention.pytorch.kernels.attention_impl import (
    AttentionDispatcher,
    has_scores,
    run_backward,
    without_scores,
)
from turbo_attention.pytorch.kernels.fp8_reference import dequantize_rows
from turbo_attention.pytorch.kernels.reference import attention_probabilities
from turbo_core import AutoKernelDispatcher, BackendType, PrecisionType, why_no_triton
from turbo_core.calls import outputs, unit_strides
from turbo_core.launch import fill_with_zeros
from turbo_core.module_backend import ModuleBackend

__all__ = ["Fp8AttentionDispatcher", "run_fp8_backward", "run_fp8_forward", "run_fp8_weights"]


class Fp8AttentionDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one FP8 attention forward, quantisation of q, k and v included."""

    op = "attention_fp8"
    family = "attn"
    backends = {
        BackendType.TRITON: ModuleBackend("turbo_attention.triton.attention_fp8", why_no_triton),
        BackendType.TORCH: ModuleBackend("turbo_attention.pytorch.kernels.fp8_reference"),
    }
    defaults = {"amd": BackendType.TRITON, "nvidia": BackendType.TRITON, "cpu": BackendType.TORCH}

    @classmethod
    def precision(cls, call: ForwardCall) -> PrecisionType:
        return PrecisionType.FP8

    @classmethod
    def describe(cls, call: ForwardCall) -> str:
        return f"FP8 {AttentionDispatcher.describe(call)}"


def run_fp8_forward(call: ForwardCall) -> Fp8Result:
    """Compute ``call`` on the backend chosen for it; without scores to compute no backend is asked."""
    if has_scores(call):
        result: Fp8Result = Fp8AttentionDispatcher.dispatch(unit_strides(call, "q", "k", "v"))
        return result
    result = outputs(fp8_forward_specs(call), call.q.device)
    for payload in result[3:6]:
        fill_with_zeros(payload)
    for scale in result[6:]:
        scale.fill_(1.0)
    return Fp8Result(*without_scores(call), *result[3:])


def run_fp8_backward(call: Fp8Backward) -> AttentionGradients:
    """The gradients, of the dequantised q, k and v."""
    forward = _dequantized(call.forward, call.scales, call.out.dtype)
    return run_backward(BackwardCall(forward, *call[2:]))


def run_fp8_weights(call: Fp8Payloads) -> torch.Tensor:
    """The weights p."""
    return attention_probabilities(_dequantized(*call, torch.float32))


def _dequantized(forward: ForwardCall, scales: Fp8Scales, dtype: torch.dtype) -> ForwardCall:
    payloads = forward.q, forward.k, forward.v
    q, k, v = (dequantize_rows(payload, scale, dtype) for payload, scale in zip(payloads, scales, strict=True))
    return forward._replace(q=q, k=k, v=v)
