# SPDX-License-Identifier: MIT
"""The backends of sparse MLA and the choice among them, forward and backward."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from turbo_attention.pytorch.kernels.sparse_mla_reference import sparse_mla_backward, sparse_mla_forward
from turbo_attention.sparse_calls import SparseBackward, SparseForward, SparseGradients, SparseResult
from turbo_core import AutoKernelDispatcher, BackendType, KernelBackend, PrecisionType, device_facts, why_no_triton
from turbo_core.tuning import call_key

__all__ = ["SparseMlaDispatcher", "run_backward", "run_forward"]

MAX_RANK = 512  # of one tile's registers
MAX_TAIL = 128

Call = SparseForward | SparseBackward


def _forward(call: Call) -> SparseForward:
    return call if isinstance(call, SparseForward) else call.forward


class TritonBackend(KernelBackend):
    """Our Triton kernels."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        forward = _forward(call)
        tail = forward.q.shape[2] - forward.rank
        if forward.rank > MAX_RANK or tail > MAX_TAIL:
            return f"kv has {forward.rank} + {tail} columns; up to {MAX_RANK} + {MAX_TAIL} are accepted"
        return why_no_triton(forward.q.device)

    @classmethod
    def execute(cls, call: Call) -> SparseResult | SparseGradients:
        from turbo_attention.triton import sparse_mla

        return sparse_mla.forward(call) if isinstance(call, SparseForward) else sparse_mla.backward(call)


class TorchBackend(KernelBackend):
    """The reference: float32 on any device."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        return None

    @classmethod
    def execute(cls, call: Call) -> SparseResult | SparseGradients:
        return sparse_mla_forward(call) if isinstance(call, SparseForward) else sparse_mla_backward(call)


class SparseMlaDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one sparse MLA, forward or backward."""

    op = "sparse_mla"
    family = "sparse_attn"
    backends = {
        BackendType.TRITON: TritonBackend,
        BackendType.TORCH: TorchBackend,
    }

    @classmethod
    def precision(cls, call: Call) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def default_backend(cls, call: Call) -> BackendType:
        """Triton on a GPU, plain torch on a CPU."""
        cpu = device_facts(_forward(call).q.device).vendor == "cpu"
        return BackendType.TORCH if cpu else BackendType.TRITON

    @classmethod
    def make_key(cls, call: Call) -> Hashable:
        values = call if isinstance(call, SparseForward) else (*call.forward, *call[1:])
        return call_key(_forward(call).q.device, cls.role(call), values)

    @classmethod
    def describe(cls, call: Call) -> str:
        forward = _forward(call)
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


def _unit_stride(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def run_forward(call: SparseForward) -> SparseResult:
    """Compute ``call`` on the backend chosen for it; without scores to compute no backend is asked."""
    if _has_work(call):
        call = call._replace(q=_unit_stride(call.q), kv=_unit_stride(call.kv), indices=call.indices.contiguous())
        result: Any = SparseMlaDispatcher.dispatch(call)
        return result
    tokens, heads = call.q.shape[:2]
    lse = call.q.new_full((tokens, heads), -torch.inf, dtype=torch.float32)
    if call.sink is not None:
        lse.copy_(call.sink.expand_as(lse))
    return SparseResult(call.q.new_zeros((tokens, heads, call.rank)), lse, torch.zeros_like(lse))


def run_backward(call: SparseBackward) -> SparseGradients:
    """Likewise."""
    forward = call.forward
    if _has_work(forward):
        forward = forward._replace(
            q=_unit_stride(forward.q), kv=_unit_stride(forward.kv), indices=forward.indices.contiguous()
        )
        lse, lse_low = call.lse.contiguous(), call.lse_low.contiguous()
        call = call._replace(forward=forward, lse=lse, lse_low=lse_low, dout=_unit_stride(call.dout))
        result: Any = SparseMlaDispatcher.dispatch(call)
        return result
    dsink = None
    if forward.sink is not None:
        dsink = torch.zeros_like(forward.sink) if call.dlse is None else call.dlse.sum(0)
    return SparseGradients(
        torch.zeros(forward.q.shape, dtype=forward.q.dtype, device=forward.q.device),
        torch.zeros(forward.kv.shape, dtype=forward.kv.dtype, device=forward.kv.device),
        dsink,
    )
