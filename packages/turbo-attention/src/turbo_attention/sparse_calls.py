# SPDX-License-Identifier: MIT
"""What one sparse MLA forward or backward asks of a backend, and what it gives back.

Every token attends to the ``topk`` rows of one latent cache that its indices name; K is the whole row, V its first
``rank`` columns, and all heads share them. For token t, head h, slot n with row r = indices[t, n] >= 0:

    s_n   = softmax_scale * q_th . kv_r
    lse   = log(sum_n exp(s_n) + exp(sink_h))            no sink: no such term
    p_n   = exp(s_n - lse)
    o_th  = sum_n p_n kv_r[:rank]

A slot whose index is negative, or not below N, counts for nothing; a row named twice counts twice; a token without
slots has o = 0 and lse = -inf (sink_h where there is a sink). lse_low is what rounding lse to float32 left over, and
p_n is exp(s_n - lse - lse_low): see calls.py. Backward, with D = do . o - dlse:

    ds_n  = p_n (do . kv_r[:rank] - D)                   dsink = - sum_t exp(sink_h - lse) D
    dq    = softmax_scale sum_n ds_n kv_r
    dkv_r = sum over all (t, h, n) with indices[t, n] = r of softmax_scale ds_n q_th + p_n [do_th, 0 ... 0]

Source: DeepSeek-V3.2 (2025), sparse attention over the latent of multi-head latent attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from turbo_core.calls import Spec

if TYPE_CHECKING:
    import torch

__all__ = [
    "SparseBackward",
    "SparseForward",
    "SparseGradients",
    "SparseResult",
    "sparse_backward_specs",
    "sparse_forward_specs",
]


class SparseForward(NamedTuple):
    """One sparse MLA forward.

    Attributes:
        q: [T,H,D]; kv: [N,D]; bf16, fp16 or fp32, the last stride 1.
        indices: int32 [T,topk], contiguous; negative or from N on for an empty slot.
        sink: float32 [H] or None.
        rank: columns of kv that are V; at most D.
        softmax_scale: multiplies q . kv.
    """

    q: torch.Tensor
    kv: torch.Tensor
    indices: torch.Tensor
    sink: torch.Tensor | None
    rank: int
    softmax_scale: float


class SparseResult(NamedTuple):
    """out: [T,H,rank] in q's dtype; lse, lse_low: float32 [T,H]."""

    out: torch.Tensor
    lse: torch.Tensor
    lse_low: torch.Tensor


class SparseBackward(NamedTuple):
    """The gradients of ``forward``; dout [T,H,rank], the last stride 1; dlse float32 [T,H] or None."""

    forward: SparseForward
    out: torch.Tensor
    lse: torch.Tensor
    lse_low: torch.Tensor
    dout: torch.Tensor
    dlse: torch.Tensor | None


class SparseGradients(NamedTuple):
    """dq, dkv of the shapes and dtypes of q and kv, contiguous; dsink float32 [H] or None."""

    dq: torch.Tensor
    dkv: torch.Tensor
    dsink: torch.Tensor | None


def sparse_forward_specs(call: SparseForward) -> SparseResult:
    """The `Spec` of each part of the result."""
    import torch

    tokens, heads = call.q.shape[:2]
    lse = Spec((tokens, heads), torch.float32)
    return SparseResult._make((Spec((tokens, heads, call.rank), call.q.dtype), lse, lse))


def sparse_backward_specs(call: SparseBackward) -> SparseGradients:
    """The `Spec` of each gradient, None where there is none."""
    q, kv, sink = call.forward.q, call.forward.kv, call.forward.sink
    return SparseGradients._make(None if x is None else Spec(tuple(x.shape), x.dtype) for x in (q, kv, sink))
