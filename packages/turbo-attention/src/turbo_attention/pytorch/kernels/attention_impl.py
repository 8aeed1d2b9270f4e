# SPDX-License-Identifier: MIT
"""The backends of attention and the choice among them, forward and backward."""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.calls import (
    AttentionGradients,
    AttentionResult,
    BackwardCall,
    ForwardCall,
    backward_specs,
    forward_specs,
)
from turbo_attention.pytorch.kernels import aiter_attention
from turbo_core import AutoKernelDispatcher, BackendType, PrecisionType, device_facts, why_no_triton
from turbo_core.calls import outputs, unit_strides
from turbo_core.module_backend import ModuleBackend

__all__ = ["AttentionDispatcher", "has_scores", "run_backward", "run_forward", "without_scores"]

_SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}

Call = ForwardCall | BackwardCall


def _forward(call: Call) -> ForwardCall:
    return call if isinstance(call, ForwardCall) else call.forward


class AttentionDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one attention, forward or backward."""

    op = "attention"
    family = "attn"
    backends = {
        BackendType.AITER: ModuleBackend("turbo_attention.pytorch.kernels.aiter_attention"),
        BackendType.TRITON: ModuleBackend("turbo_attention.triton.attention", why_no_triton),
        BackendType.TURBO: ModuleBackend("turbo_attention.pytorch.kernels.native"),
        BackendType.TORCH: ModuleBackend("turbo_attention.pytorch.kernels.reference"),
    }
    defaults = {"amd": BackendType.TRITON, "nvidia": BackendType.TRITON, "cpu": BackendType.TORCH}

    @classmethod
    def precision(cls, call: Call) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def default_backend(cls, call: Call) -> BackendType:
        """AITER where it is installed and can, else as `defaults` says."""
        if device_facts(_forward(call).q.device).vendor == "amd" and aiter_attention.why_not(call) is None:
            return BackendType.AITER
        return super().default_backend(call)

    @classmethod
    def describe(cls, call: Call) -> str:
        forward = _forward(call)
        q, k, v = forward.q, forward.k, forward.v
        lengths = f"B={forward.sequences} Sq={forward.max_seqlen_q} Sk={forward.max_seqlen_k}"
        if forward.cu_seqlens_q is not None:
            lengths += " (variable lengths)"
        heads = f"Hq={q.shape[2]} Hkv={k.shape[2]} D={q.shape[3]} Dv={v.shape[3]}"
        extras = [f"window=({forward.left}, {forward.right})"] if max(forward.left, forward.right) >= 0 else []
        extras += [name for name in ("bias", "alibi_slopes", "sink") if getattr(forward, name) is not None]
        if forward.dropout_p:
            extras.append(f"dropout_p={forward.dropout_p}")
        if forward.softcap:
            extras.append(f"softcap={forward.softcap}")
        return ", ".join(
            [f"{cls.role(call)} {lengths} {heads}", _SHORT.get(q.dtype, str(q.dtype)), *extras, str(q.device)]
        )

    @classmethod
    def role(cls, call: Call) -> str:
        return "forward" if isinstance(call, ForwardCall) else "backward"


def has_scores(call: ForwardCall) -> bool:
    """Whether there is anything to compute."""
    q, k, v = call.q, call.k, call.v
    return bool(q.numel() and k.numel() and v.numel() and call.max_seqlen_q and call.max_seqlen_k)


def run_forward(call: ForwardCall) -> AttentionResult:
    """Compute ``call`` on the backend chosen for it; without scores to compute no backend is asked."""
    if not has_scores(call):
        return without_scores(call)
    result: AttentionResult = AttentionDispatcher.dispatch(unit_strides(call, "q", "k", "v"))
    return result


def without_scores(call: ForwardCall) -> AttentionResult:
    """The result where no query sees a key: the denominator is the sink, if there is one."""
    out, lse, lse_low = outputs(forward_specs(call), call.q.device)
    lse.fill_(-torch.inf)
    if call.sink is not None:
        lse.copy_(call.sink[None, :, None].expand_as(lse))
        if call.cu_seqlens_q is not None:
            lse.masked_fill_(_outside(call.cu_seqlens_q, call.q.shape[1]), -torch.inf)
    return AttentionResult(out.zero_(), lse, lse_low.zero_())


def _outside(cu_seqlens: torch.Tensor, total: int) -> torch.Tensor:
    """Which of ``total`` rows are no sequence's."""
    rows = torch.arange(total, device=cu_seqlens.device)
    return (rows < cu_seqlens[0]) | (rows >= cu_seqlens[-1])


def run_backward(call: BackwardCall) -> AttentionGradients:
    """Likewise the gradients. torch may have been told to be deterministic after the forward."""
    forward = call.forward
    if not has_scores(forward):
        return _gradients_without_scores(call)
    readable = unit_strides(forward, "q", "k", "v")
    if not forward.deterministic and torch.are_deterministic_algorithms_enabled():
        readable = readable._replace(deterministic=True)
    call = unit_strides(call, "dout")
    if readable is not forward or not (call.lse.is_contiguous() and call.lse_low.is_contiguous()):
        call = call._replace(forward=readable, lse=call.lse.contiguous(), lse_low=call.lse_low.contiguous())
    gradients: AttentionGradients = AttentionDispatcher.dispatch(call)
    dbias, dsink = gradients.dbias, gradients.dsink
    if dbias is None and dsink is None:
        return gradients
    if dbias is not None:
        dbias = dbias[:, :, : forward.max_seqlen_q, : forward.max_seqlen_k].contiguous()
    if dsink is not None and dsink.dim() == 3:
        dsink = _sum_of_shares(call, dsink)
    return gradients._replace(dbias=dbias, dsink=dsink)


def _sum_of_shares(call: BackwardCall, shares: torch.Tensor) -> torch.Tensor:
    """The sum of the queries' ``shares`` of dsink, and of exp(sink - lse) dlse: small, left to torch."""
    dsink = shares.sum((0, 2))
    sink: Any = call.forward.sink
    if call.dlse is not None:
        weights = torch.exp((sink[:, None] - call.lse) - call.lse_low)
        dsink += (weights * call.dlse).masked_fill_(call.lse == -torch.inf, 0.0).sum((0, 2))
    return dsink


def _gradients_without_scores(call: BackwardCall) -> AttentionGradients:
    forward = call.forward
    gradients = outputs(backward_specs(call), forward.q.device)
    for gradient in gradients:
        if gradient is not None:
            gradient.zero_()
    if gradients.dsink is not None and call.dlse is not None:  # lse is the sink
        dlse = call.dlse
        if forward.cu_seqlens_q is not None:
            dlse = dlse.masked_fill(_outside(forward.cu_seqlens_q, forward.q.shape[1]), 0.0)
        gradients.dsink.add_(dlse.sum((0, 2)))
    return gradients
