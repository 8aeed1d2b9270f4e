# SPDX-License-Identifier: MIT
"""The backends of sparse MLA and the choice among them, forward and backward."""

from __future__ import annotations

import torch

from turbo_attention.sparse_calls import (
    SparseBackward,
    SparseForward,
    SparseGradients,
    SparseResult,
    sparse_backward_specs,
    sparse_forward_specs,
)
from turbo_core import AutoKernelDispatcher, BackendType, PrecisionType, why_no_triton
from turbo_core.calls import outputs, unit_strides
from turbo_core.module_backend import ModuleBackend

__all__ = ["SparseMlaDispatcher", "run_backward", "run_forward"]

Call = SparseForward | SparseBackward


class SparseMlaDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one sparse MLA, forward or backward."""

    op = "sparse_mla"
    family = "sparse_attn"
    backends = {
        BackendType.TRITON: ModuleBackend("turbo_attention.triton.sparse_mla", why_no_triton),
        BackendType.TORCH: ModuleBackend("turbo_attention.pytorch.kernels.sparse_mla_reference"),
    }
    defaults = {"amd": BackendType.TRITON, "nvidia": BackendType.TRITON, "cpu": BackendType.TORCH}

    @classmethod
    def precision(cls, call: Call) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def describe(cls, call: Call) -> str:
        forward = call if isinstance(call, SparseForward) else call.forward
        tokens, heads, width = forward.q.shape
        sizes = f"T={tokens} H={heads} D={width} rank={forward.rank} N={forward.kv.shape[0]}"
        sink = "" if forward.sink is None else ", sink"
        dtype = str(forward.q.dtype).removeprefix("torch.")
        return f"{cls.role(call)} {sizes} topk={forward.indices.shape[1]}, {dtype}{sink}, {forward.q.device}"

    @classmethod
    def role(cls, call: Call) -> str:
        return "forward" if isinstance(call, SparseForward) else "backward"


def _has_work(call: SparseForward) -> bool:
    return bool(call.q.numel() and call.kv.numel() and call.indices.numel() and call.rank)


def _readable(call: SparseForward) -> SparseForward:
    call = unit_strides(call, "q", "kv")
    return call if call.indices.is_contiguous() else call._replace(indices=call.indices.contiguous())


def run_forward(call: SparseForward) -> SparseResult:
    """Compute ``call`` on the backend chosen for it; without scores to compute no backend is asked."""
    if _has_work(call):
        result: SparseResult = SparseMlaDispatcher.dispatch(_readable(call))
        return result
    out, lse, lse_low = outputs(sparse_forward_specs(call), call.q.device)
    lse.fill_(-torch.inf)
    if call.sink is not None:
        lse.copy_(call.sink.expand_as(lse))
    return SparseResult(out.zero_(), lse, lse_low.zero_())


def run_backward(call: SparseBackward) -> SparseGradients:
    """Likewise the gradients."""
    if _has_work(call.forward):
        lse, lse_low = call.lse.contiguous(), call.lse_low.contiguous()
        call = unit_strides(call, "dout")._replace(forward=_readable(call.forward), lse=lse, lse_low=lse_low)
        result: SparseGradients = SparseMlaDispatcher.dispatch(call)
        return result
    gradients = outputs(sparse_backward_specs(call), call.forward.q.device)
    for gradient in gradients:
        if gradient is not None:
            gradient.zero_()
    if gradients.dsink is not None and call.dlse is not None:  # lse is the sink
        gradients.dsink.add_(call.dlse.sum(0))
    return gradients
