# SPDX-License-Identifier: MIT
"""What one attention forward or backward asks of a backend, and what it gives back.

For query i and key j of one sequence, head h (key head h // (Hq / Hkv)), shift = sk - sq (bottom-right alignment):

    s_ij   = softmax_scale * q_i . k_j
    s_ij   = softcap * tanh(s_ij / softcap)                       where softcap > 0
    s_ij  += bias_ij - slope_h * |i + shift - j|                  where given
    visible: i + shift - left <= j <= i + shift + right           a negative bound is none; causal is right = 0
    lse_i  = log(sum_j exp(s_ij) + exp(sink_h))                   over visible j; no sink: no such term
    p_ij   = exp(s_ij - lse_i)
    o_i    = sum_j keep_ij p_ij v_j / (1 - dropout_p)

A query that sees no key has o = 0, lse = -inf (sink_h where there is a sink) and no gradient. float32 has no room for
both a score of -1e9 and the logarithm of a sum beside it: lse + lse_low is the logarithm, and p_ij is exp(s_ij - lse -
lse_low), in this order. It sums to 1 over the visible keys whatever a bias or a product of large q and k adds to all.

Backward, with D_i = do_i . o_i - dlse_i:

    dv_j   = sum_i keep_ij p_ij do_i / (1 - dropout_p)
    dp_ij  = keep_ij do_i . v_j / (1 - dropout_p)
    ds_ij  = p_ij (dp_ij - D_i)                                   this is dbias
    dz_ij  = ds_ij (1 - tanh(...)^2)                              with softcap, else ds
    dq_i   = softmax_scale sum_j dz_ij k_j                        dk_j = softmax_scale sum_i dz_ij q_i
    dsink  = - sum_i exp(sink_h - lse_i) D_i

keep_ij = (word >> 8) >= round(dropout_p * 2^24), word the first of Philox4x32-10 with key (low, high half of seed) and
counter (j, i, batch * Hq + h, low half of offset): the mask depends on the position alone, not on tiles or backends.

Shapes: B batch, Sq, Sk sequence lengths, Hq, Hkv heads, D head dim of q and k, Dv of v and o. Variable lengths: the
sequences lie one after another, B is 1 in the tensors, and cu_seqlens say where each begins; i and j count from there.
Rows of no sequence, before the first and behind the last, have o = 0, lse = -inf and gradients of 0. Offsets that
decrease or lie outside of the tensors are read as the nearest that do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from turbo_attention.layout import rows_like
from turbo_core.calls import Spec

if TYPE_CHECKING:
    import torch

__all__ = [
    "AttentionGradients",
    "AttentionResult",
    "BackwardCall",
    "ForwardCall",
    "backward_specs",
    "dropout_terms",
    "forward_specs",
    "weights_spec",
]

_DROPOUT_STEPS = 2**24


def dropout_terms(dropout_p: float) -> tuple[int, float]:
    """The threshold that kept words reach, and 1 / (1 - dropout_p) of the probability that it makes."""
    threshold = round(dropout_p * _DROPOUT_STEPS)
    kept = _DROPOUT_STEPS - threshold
    return threshold, _DROPOUT_STEPS / kept if kept else 0.0


class ForwardCall(NamedTuple):
    """One attention forward.

    Attributes:
        q: [B,Sq,Hq,D]; k: [B,Sk,Hkv,D]; v: [B,Sk,Hkv,Dv]; bf16, fp16 or fp32, the last stride 1, any others.
        softmax_scale: multiplies q . k.
        left, right: window, -1 is unbounded.
        softcap: 0 is none.
        dropout_p: 0 is none.
        bias: [B,Hq,Sq,Sk] (stride 0 where it is broadcast), any of the three dtypes, or None.
        alibi_slopes: [B,Hq] float32 (stride 0 where it is broadcast), or None. B is the number of sequences.
        sink: [Hq] float32 or None.
        rng: int64 [2] on the device, seed and offset, or None without dropout.
        cu_seqlens_q, cu_seqlens_k: int32 [sequences + 1] on the device, or None for a dense batch. bias is then None.
        max_seqlen_q, max_seqlen_k: Sq, Sk, or the longest sequence.
        deterministic: the gradients are the same bits from run to run.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    softmax_scale: float
    left: int
    right: int
    softcap: float
    dropout_p: float
    bias: torch.Tensor | None
    alibi_slopes: torch.Tensor | None
    sink: torch.Tensor | None
    rng: torch.Tensor | None
    cu_seqlens_q: torch.Tensor | None
    cu_seqlens_k: torch.Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    deterministic: bool = False

    @property
    def sequences(self) -> int:
        """How many sequences the batch holds."""
        return self.q.shape[0] if self.cu_seqlens_q is None else self.cu_seqlens_q.shape[0] - 1


class AttentionResult(NamedTuple):
    """out: [B,Sq,Hq,Dv] in q's dtype and order of dimensions in memory. lse: float32 [B,Hq,Sq]; B is 1 if ragged.

    lse_low: likewise, what rounding lse left over; 0 from a backend that does not know it.
    """

    out: torch.Tensor
    lse: torch.Tensor
    lse_low: torch.Tensor


class BackwardCall(NamedTuple):
    """The gradients of ``forward``, whose result was ``out``, ``lse`` and ``lse_low``.

    Attributes:
        lse, lse_low: contiguous.
        dout: of out's shape, any strides but the last is 1.
        dlse: of lse's shape, or None where lse has no gradient.
        want_dbias: whether dbias is wanted.
    """

    forward: ForwardCall
    out: torch.Tensor
    lse: torch.Tensor
    lse_low: torch.Tensor
    dout: torch.Tensor
    dlse: torch.Tensor | None
    want_dbias: bool


class AttentionGradients(NamedTuple):
    """dq, dk, dv of the shapes and dtypes of q, k, v; dbias [B,Hq,Sq,Sk] in bias's dtype, not yet summed over what
    was broadcast; dsink float32 [Hq]. None where there is no such input or it was not wanted.

    A backend may give dbias with more rows and columns behind these, and dsink as the shares of the queries,
    [B,Hq,Sq], without those of dlse."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dbias: torch.Tensor | None
    dsink: torch.Tensor | None

    def by_field(self) -> dict[str, torch.Tensor | None]:
        """The gradients by the fields of a `ForwardCall`."""
        return {"q": self.dq, "k": self.dk, "v": self.dv, "bias": self.dbias, "sink": self.dsink}


def forward_specs(call: ForwardCall) -> AttentionResult:
    """The `Spec` of each part of the result."""
    import torch

    q = call.q
    lse = Spec((q.shape[0], q.shape[2], q.shape[1]), torch.float32)
    return AttentionResult._make((rows_like(q, call.v.shape[3]), lse, lse))


def backward_specs(call: BackwardCall) -> AttentionGradients:
    """The `Spec` of each gradient, None where there is none."""
    q, k, v, bias, sink = call.forward.q, call.forward.k, call.forward.v, call.forward.bias, call.forward.sink
    dbias = Spec(tuple(bias.shape), bias.dtype) if call.want_dbias and bias is not None else None
    dsink = None if sink is None else Spec(tuple(sink.shape), sink.dtype)
    return AttentionGradients._make((*(rows_like(rows, rows.shape[3]) for rows in (q, k, v)), dbias, dsink))


def weights_spec(call: ForwardCall) -> Spec:
    """The `Spec` of the weights p."""
    import torch

    return Spec((call.sequences, call.q.shape[2], call.max_seqlen_q, call.max_seqlen_k), torch.float32)
