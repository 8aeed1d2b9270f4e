# SPDX-License-Identifier: MIT
"""The backends of attention and the choice among them, forward and backward."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from turbo_attention.calls import AttentionGradients, AttentionResult, BackwardCall, ForwardCall
from turbo_attention.layout import empty_like_rows
from turbo_attention.pytorch.kernels.aiter_attention import AiterBackend
from turbo_attention.pytorch.kernels.reference import attention_backward, attention_forward
from turbo_core import AutoKernelDispatcher, BackendType, KernelBackend, PrecisionType, device_facts, why_no_triton
from turbo_core.tuning import call_key

__all__ = ["AttentionDispatcher", "run_backward", "run_forward", "why_not_widths"]

MAX_HEAD_DIM = 576
_SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}

Call = ForwardCall | BackwardCall


def _forward(call: Call) -> ForwardCall:
    return call if isinstance(call, ForwardCall) else call.forward


def why_not_widths(call: ForwardCall) -> str | None:
    """What the Triton kernels have against the head dims of ``call``."""
    dims = call.q.shape[3], call.v.shape[3]
    if max(dims) > MAX_HEAD_DIM:
        return f"the head dim is {max(dims)}; up to {MAX_HEAD_DIM} is accepted"
    if dims[1] > 512:
        return f"the head dim of v is {dims[1]}; up to 512 is accepted"
    # rows that end within a vector of 8 bytes are loaded in smaller ones, each with masks in AMD's scalar registers
    uneven = any(width % (4 if width <= 256 else 16) for width in dims if width > 128)
    if uneven and device_facts(call.q.device).vendor == "amd":
        return f"the head dims are {dims}; over 128 multiples of 4 are accepted, over 256 multiples of 16"
    return None


class TritonBackend(KernelBackend):
    """Our Triton kernels, forward and backward."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        forward = _forward(call)
        return why_not_widths(forward) or why_no_triton(forward.q.device) or cls._too_much(forward)

    @staticmethod
    def _too_much(call: ForwardCall) -> str | None:
        """What no tile of the table holds in AMD's scalar registers."""
        if device_facts(call.q.device).vendor != "amd":
            return None
        others = {"alibi_slopes": call.alibi_slopes is not None, "softcap": call.softcap, "dropout": call.dropout_p}
        extras = [name for name, given in others.items() if given]
        dims = {call.q.shape[3], call.v.shape[3]}
        if extras and call.bias is not None and not dims <= {16, 32, 64, 128}:
            return f"bias with {' and '.join(extras)}; head dims 16, 32, 64 and 128 are accepted for that, not {dims}"
        if len(extras) > 1 and max(dims) > 256:
            return f"{' with '.join(extras)}; head dims up to 256 are accepted for that, not {max(dims)}"
        return None

    @classmethod
    def execute(cls, call: Call) -> AttentionResult | AttentionGradients:
        from turbo_attention.triton import attention

        return attention.forward(call) if isinstance(call, ForwardCall) else attention.backward(call)


class TurboBackend(KernelBackend):
    """HIP kernels of the native library, forward. Their lse is Triton's, whose backward goes with them."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        from turbo_attention.pytorch.kernels import native

        reason: str | None = native.why_not(_forward(call))
        if reason is None and isinstance(call, BackwardCall):
            reason = TritonBackend.why_not(call)
        return reason

    @classmethod
    def execute(cls, call: Call) -> AttentionResult | AttentionGradients:
        from turbo_attention.pytorch.kernels import native

        return native.forward(call) if isinstance(call, ForwardCall) else TritonBackend.execute(call)


class TorchBackend(KernelBackend):
    """The reference: float32 on any device."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        return None

    @classmethod
    def execute(cls, call: Call) -> AttentionResult | AttentionGradients:
        return attention_forward(call) if isinstance(call, ForwardCall) else attention_backward(call)


class AttentionDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one attention, forward or backward."""

    op = "attention"
    family = "attn"
    backends = {
        BackendType.AITER: AiterBackend,
        BackendType.TRITON: TritonBackend,
        BackendType.TURBO: TurboBackend,
        BackendType.TORCH: TorchBackend,
    }

    @classmethod
    def precision(cls, call: Call) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def default_backend(cls, call: Call) -> BackendType:
        """AITER where it is installed and can, else Triton on a GPU, plain torch on a CPU."""
        vendor = device_facts(_forward(call).q.device).vendor
        if vendor == "amd" and AiterBackend.why_not(call) is None:
            return BackendType.AITER
        return BackendType.TORCH if vendor == "cpu" else BackendType.TRITON

    @classmethod
    def make_key(cls, call: Call) -> Hashable:
        values = call if isinstance(call, ForwardCall) else (*call.forward, *call[1:])
        return call_key(_forward(call).q.device, cls.role(call), values)

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


def _unit_stride(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` if its last stride is 1 (or that dimension's size is), else a contiguous copy."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _outside(cu_seqlens: torch.Tensor, total: int) -> torch.Tensor:
    """Which of ``total`` rows are no sequence's."""
    rows = torch.arange(total, device=cu_seqlens.device)
    return (rows < cu_seqlens[0]) | (rows >= cu_seqlens[-1])


def run_forward(call: ForwardCall) -> AttentionResult:
    """Compute ``call`` on the backend chosen for it; without scores to compute no backend is asked."""
    if call.q.numel() and call.k.numel() and call.v.numel() and call.max_seqlen_q and call.max_seqlen_k:
        call = call._replace(q=_unit_stride(call.q), k=_unit_stride(call.k), v=_unit_stride(call.v))
        result: Any = AttentionDispatcher.dispatch(call)
        return result
    q, heads = call.q, call.q.shape[2]
    lse = q.new_full((q.shape[0], heads, q.shape[1]), -torch.inf, dtype=torch.float32)
    if call.sink is not None:  # the denominator is the sink alone
        lse.copy_(call.sink[None, :, None].expand_as(lse))
        if call.cu_seqlens_q is not None:
            lse.masked_fill_(_outside(call.cu_seqlens_q, q.shape[1]), -torch.inf)
    return AttentionResult(empty_like_rows(q, call.v.shape[3]).zero_(), lse, torch.zeros_like(lse))


def run_backward(call: BackwardCall) -> AttentionGradients:
    """Likewise."""
    forward = call.forward
    q, k, v = forward.q, forward.k, forward.v
    if q.numel() and k.numel() and v.numel() and forward.max_seqlen_q and forward.max_seqlen_k:
        forward = forward._replace(q=_unit_stride(q), k=_unit_stride(k), v=_unit_stride(v))
        lse, lse_low = call.lse.contiguous(), call.lse_low.contiguous()
        call = call._replace(forward=forward, lse=lse, lse_low=lse_low, dout=_unit_stride(call.dout))
        result: Any = AttentionDispatcher.dispatch(call)
        return result
    dsink = None
    if forward.sink is not None:
        dsink = torch.zeros_like(forward.sink)
        if call.dlse is not None:
            dlse = call.dlse
            if forward.cu_seqlens_q is not None:
                dlse = dlse.masked_fill(_outside(forward.cu_seqlens_q, q.shape[1]), 0.0)
            dsink += dlse.sum((0, 2))
    bias = forward.bias
    return AttentionGradients(
        *(empty_like_rows(tensor, tensor.shape[3]).zero_() for tensor in (q, k, v)),
        bias.new_zeros(bias.shape) if call.want_dbias and bias is not None else None,
        dsink,
    )
