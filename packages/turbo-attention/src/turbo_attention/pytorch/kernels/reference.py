# SPDX-License-Identifier: MIT
"""Attention in plain PyTorch (formulas: turbo_attention/calls.py), forward and backward, on any device.

Arithmetic is float32 (float64 on float64 tensors, for tests), rounded once. Queries are taken a few rows at a time, so
that memory stays bounded: ``chunk`` scores at a time, those of one query at least. The backward takes the softmax again
and needs no lse. Lengths of ragged sequences are read on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from turbo_attention.calls import AttentionGradients, AttentionResult, BackwardCall, ForwardCall, dropout_terms
from turbo_attention.layout import empty_like_rows
from turbo_quant.developer import philox_words

__all__ = [
    "Softmax",
    "attention_backward",
    "attention_forward",
    "attention_probabilities",
    "run",
    "softmax",
    "why_not",
]

_SCORES = 2**24  # of one chunk of queries
_MASK32 = 2**32 - 1


def why_not(call: ForwardCall | BackwardCall) -> None:
    """It takes every call."""


def run(call: ForwardCall | BackwardCall) -> AttentionResult | AttentionGradients:
    """The attention of ``call``, or its gradients."""
    return attention_forward(call) if isinstance(call, ForwardCall) else attention_backward(call)


class _Sequence(NamedTuple):
    """One sequence: its number, where it lies in the batch and along the queries and the keys."""

    number: int
    batch: int
    queries: slice
    keys: slice


class _Chunk(NamedTuple):
    """Some queries of a sequence against all its keys; rows counts within the sequence, place within the tensors."""

    sequence: _Sequence
    rows: slice
    place: slice


def _sequences(call: ForwardCall) -> Iterator[_Sequence]:
    if call.cu_seqlens_q is None or call.cu_seqlens_k is None:
        for batch in range(call.q.shape[0]):
            yield _Sequence(batch, batch, slice(0, call.q.shape[1]), slice(0, call.k.shape[1]))
        return
    rows_q = _rows_of_sequences(call.cu_seqlens_q, call.q.shape[1])
    rows_k = _rows_of_sequences(call.cu_seqlens_k, call.k.shape[1])
    for number, (queries, keys) in enumerate(zip(rows_q, rows_k, strict=True)):
        yield _Sequence(number, 0, queries, keys)


def _rows_of_sequences(cu_seqlens: torch.Tensor, total: int) -> list[slice]:
    """Each sequence's rows of ``total``; what lies outside of them, or ends before it begins, is cut off."""
    starts = [min(max(start, 0), total) for start in cu_seqlens.tolist()]
    return [slice(start, max(start, end)) for start, end in zip(starts, starts[1:], strict=False)]


def _chunks(call: ForwardCall, chunk: int) -> Iterator[_Chunk]:
    for sequence in _sequences(call):
        length_q = sequence.queries.stop - sequence.queries.start
        length_k = sequence.keys.stop - sequence.keys.start
        step = max(1, chunk // max(1, length_k * call.q.shape[2]))
        for first in range(0, length_q, step):
            rows = slice(first, min(first + step, length_q))
            place = slice(sequence.queries.start + rows.start, sequence.queries.start + rows.stop)
            yield _Chunk(sequence, rows, place)


class _Scores(NamedTuple):
    """Of a chunk: scores s [H,m,n] (-inf out of sight), tanh of the cap or None, and what dropout multiplies p by."""

    s: torch.Tensor
    tanh: torch.Tensor | None
    kept: torch.Tensor | None


def _compute_dtype(call: ForwardCall) -> torch.dtype:
    return torch.float64 if call.q.dtype == torch.float64 else torch.float32


def _heads_first(rows: torch.Tensor, dtype: torch.dtype, heads: int) -> torch.Tensor:
    """[S,Hkv,D] as [Hq,S,D]; each key head serves its group."""
    return rows.to(dtype).repeat_interleave(heads // max(1, rows.shape[1]), dim=1).transpose(0, 1)


def _scores(call: ForwardCall, part: _Chunk) -> _Scores:
    sequence, rows = part.sequence, part.rows
    dtype, heads, device = _compute_dtype(call), call.q.shape[2], call.q.device
    length_q = sequence.queries.stop - sequence.queries.start
    length_k = sequence.keys.stop - sequence.keys.start
    q = call.q[sequence.batch, part.place].to(dtype).transpose(0, 1)
    k = _heads_first(call.k[sequence.batch, sequence.keys], dtype, heads)
    s = q @ k.transpose(1, 2) * call.softmax_scale
    tanh = None
    if call.softcap > 0:
        tanh = torch.tanh(s / call.softcap)
        s = tanh * call.softcap
    i = torch.arange(rows.start, rows.stop, device=device)[:, None]
    j = torch.arange(length_k, device=device)[None, :]
    distance = i + (length_k - length_q) - j
    if call.bias is not None:
        s = s + call.bias[sequence.batch, :, rows].to(dtype)
    if call.alibi_slopes is not None:
        s = s - call.alibi_slopes[sequence.number].to(dtype)[:, None, None] * distance.abs()
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if call.left >= 0:
        hidden = hidden | (distance > call.left)
    if call.right >= 0:
        hidden = hidden | (-distance > call.right)
    return _Scores(s.masked_fill(hidden, -torch.inf), tanh, _kept(call, sequence.number, i, j))


def _kept(call: ForwardCall, number: int, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor | None:
    """keep_ij / (1 - dropout_p) as [H,m,n]."""
    if call.rng is None:
        return None
    heads = call.q.shape[2]
    threshold, scale = dropout_terms(call.dropout_p)
    head = torch.arange(number * heads, (number + 1) * heads, device=i.device)[:, None, None]
    seed, offset = call.rng.unbind()
    shape = (heads, i.shape[0], j.shape[1])
    counter = (j.expand(shape), i.expand(shape), head.expand(shape), (offset & _MASK32).expand(shape))
    words = philox_words(counter, (seed & _MASK32, (seed >> 32) & _MASK32))[..., 0]
    return ((words >> 8) >= threshold).to(_compute_dtype(call)) * scale


class Softmax(NamedTuple):
    """Of rows of scores: weights, the sink's weight or None, and the logarithm of the denominator in two numbers."""

    p: torch.Tensor
    sink: torch.Tensor | None
    lse: torch.Tensor
    lse_low: torch.Tensor


def softmax(s: torch.Tensor, sink: torch.Tensor | None) -> Softmax:
    """The softmax of [..., n] with the logit ``sink``, of s's shape but 1 for n, in the denominator; no key: zeros.

    The largest score is taken off before anything is added to it, and the sum is kept apart from it: where all scores
    are -1e9, float32 cannot add the logarithm of their number.
    """
    terms = s if sink is None else torch.cat((s, sink), dim=-1)
    if terms.shape[-1] == 0:
        blind = s.new_full(s.shape[:-1], -torch.inf)
        return Softmax(s, None, blind, torch.zeros_like(blind))
    largest = terms.amax(-1, keepdim=True)
    seen = largest != -torch.inf
    weights = torch.exp(terms - largest.masked_fill(~seen, 0.0))
    total = weights.sum(-1, keepdim=True).masked_fill(~seen, 1.0)
    weights, low = weights / total, total.log()
    lse = largest + low
    lse_low = torch.where(seen, (largest - lse) + low, 0.0)
    keys = s.shape[-1]
    return Softmax(weights[..., :keys], None if sink is None else weights[..., keys], lse[..., 0], lse_low[..., 0])


def _softmax(call: ForwardCall, s: torch.Tensor) -> Softmax:
    """Of the scores [H,m,n] of a chunk."""
    sink = None if call.sink is None else call.sink.to(s.dtype)[:, None, None].expand(*s.shape[:2], 1)
    return softmax(s, sink)


def attention_forward(call: ForwardCall, chunk: int = _SCORES) -> AttentionResult:
    """The attention of ``call``."""
    dtype, heads = _compute_dtype(call), call.q.shape[2]
    out = empty_like_rows(call.q, call.v.shape[3]).zero_()
    lse = torch.full((call.q.shape[0], heads, call.q.shape[1]), -torch.inf, dtype=dtype, device=call.q.device)
    lse_low = torch.zeros_like(lse)
    for part in _chunks(call, chunk):
        batch = part.sequence.batch
        s, _, kept = _scores(call, part)
        p, _, lse[batch, :, part.place], lse_low[batch, :, part.place] = _softmax(call, s)
        v = _heads_first(call.v[batch, part.sequence.keys], dtype, heads)
        o = (p if kept is None else p * kept) @ v
        out[batch, part.place] = o.transpose(0, 1).to(out.dtype)
    return AttentionResult(out, lse, lse_low)


def attention_backward(call: BackwardCall, chunk: int = _SCORES) -> AttentionGradients:
    """Its gradients, by the formulas that the kernels use, no autograd; D from p and dp, so not from a rounded out."""
    fwd = call.forward
    dtype, heads, group = _compute_dtype(fwd), fwd.q.shape[2], fwd.q.shape[2] // max(1, fwd.k.shape[2])
    dq = torch.zeros(fwd.q.shape, dtype=dtype, device=fwd.q.device)
    dk, dv = dq.new_zeros(fwd.k.shape), dq.new_zeros(fwd.v.shape)
    want_dbias = call.want_dbias and fwd.bias is not None
    dbias = dq.new_zeros((*fwd.q.shape[:1], heads, fwd.q.shape[1], fwd.k.shape[1])) if want_dbias else None
    dsink = None if fwd.sink is None else dq.new_zeros(heads)
    for part in _chunks(fwd, chunk):
        batch, keys = part.sequence.batch, part.sequence.keys
        s, tanh, kept = _scores(fwd, part)
        p, p_sink, _, _ = _softmax(fwd, s)
        do = call.dout[batch, part.place].to(dtype).transpose(0, 1)
        q = fwd.q[batch, part.place].to(dtype).transpose(0, 1)
        k = _heads_first(fwd.k[batch, keys], dtype, heads)
        v = _heads_first(fwd.v[batch, keys], dtype, heads)
        dp = do @ v.transpose(1, 2)
        if kept is not None:
            dp = dp * kept
        delta = (p * dp).sum(2)
        if call.dlse is not None:
            delta = delta - call.dlse[batch, :, part.place].to(dtype)
        ds = p * (dp - delta[..., None])
        if dbias is not None:
            dbias[batch, :, part.rows] = ds
        dz = ds if tanh is None else ds * (1 - tanh * tanh)
        dq[batch, part.place] = (dz @ k).transpose(0, 1) * fwd.softmax_scale
        _add_to_group(dk[batch, keys], dz.transpose(1, 2) @ q * fwd.softmax_scale, group)
        _add_to_group(dv[batch, keys], (p if kept is None else p * kept).transpose(1, 2) @ do, group)
        if dsink is not None and p_sink is not None:
            dsink -= (p_sink * delta).sum(1)
    return AttentionGradients(
        _stored(dq, fwd.q),
        _stored(dk, fwd.k),
        _stored(dv, fwd.v),
        None if dbias is None or fwd.bias is None else dbias.to(fwd.bias.dtype),
        dsink,
    )


def _add_to_group(target: torch.Tensor, heads_first: torch.Tensor, group: int) -> None:
    """target[S,Hkv,D] += the sum of [Hq,S,D] over the heads of each group."""
    hq, length, width = heads_first.shape
    target += heads_first.view(hq // group, group, length, width).sum(1).transpose(0, 1)


def _stored(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return empty_like_rows(like, like.shape[3]).copy_(gradient)


def attention_probabilities(call: ForwardCall, chunk: int = _SCORES) -> torch.Tensor:
    """p [sequences,Hq,max_seqlen_q,max_seqlen_k] float32, negative where dropout dropped it, zero out of sight."""
    shape = (call.sequences, call.q.shape[2], call.max_seqlen_q, call.max_seqlen_k)
    result = torch.zeros(shape, dtype=torch.float32, device=call.q.device)
    for part in _chunks(call, chunk):
        s, _, kept = _scores(call, part)
        p = _softmax(call, s).p
        if kept is not None:
            p = torch.where(kept > 0, p, -p)
        result[part.sequence.number, :, part.rows, : p.shape[2]] = p
    return result
