# SPDX-License-Identifier: MIT
"""Attention in plain PyTorch (formulas: turbo_attention/calls.py), forward and backward, on any device.

Arithmetic is float32 (float64 on float64 tensors, for tests), rounded once. Queries are taken a few rows at a time, so
that memory stays bounded. Lengths of ragged sequences are read on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from turbo_attention.calls import AttentionGradients, AttentionResult, BackwardCall, ForwardCall, dropout_terms
from turbo_attention.layout import empty_like_rows
from turbo_quant.pytorch.kernels.philox import philox_words

__all__ = ["attention_backward", "attention_forward", "attention_probabilities"]

_SCORES = 2**24  # of one chunk of queries
_MASK32 = 2**32 - 1


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
    starts_q, starts_k = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
    for number in range(len(starts_q) - 1):
        queries = slice(starts_q[number], starts_q[number + 1])
        yield _Sequence(number, 0, queries, slice(starts_k[number], starts_k[number + 1]))


def _chunks(call: ForwardCall) -> Iterator[_Chunk]:
    for sequence in _sequences(call):
        length_q = sequence.queries.stop - sequence.queries.start
        length_k = sequence.keys.stop - sequence.keys.start
        step = max(1, _SCORES // max(1, length_k * call.q.shape[2]))
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


def _scores(call: ForwardCall, chunk: _Chunk) -> _Scores:
    sequence, rows = chunk.sequence, chunk.rows
    dtype, heads, device = _compute_dtype(call), call.q.shape[2], call.q.device
    length_q = sequence.queries.stop - sequence.queries.start
    length_k = sequence.keys.stop - sequence.keys.start
    q = call.q[sequence.batch, chunk.place].to(dtype).transpose(0, 1)
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


def _exponentials(s: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """exp(s - lse), zero for a query that sees nothing."""
    return torch.exp(s - lse.masked_fill(lse == -torch.inf, torch.inf)[..., None])


def attention_forward(call: ForwardCall) -> AttentionResult:
    """The attention of ``call``."""
    dtype, heads = _compute_dtype(call), call.q.shape[2]
    out = empty_like_rows(call.q, call.v.shape[3]).zero_()
    lse = torch.full((call.q.shape[0], heads, call.q.shape[1]), -torch.inf, dtype=dtype, device=call.q.device)
    for chunk in _chunks(call):
        s, _, kept = _scores(call, chunk)
        terms = s
        if call.sink is not None:
            terms = torch.cat((s, call.sink.to(dtype)[:, None, None].expand(heads, s.shape[1], 1)), dim=2)
        chunk_lse = torch.logsumexp(terms, dim=2) if terms.shape[2] else s.new_full(s.shape[:2], -torch.inf)
        p = _exponentials(s, chunk_lse)
        v = _heads_first(call.v[chunk.sequence.batch, chunk.sequence.keys], dtype, heads)
        o = (p if kept is None else p * kept) @ v
        out[chunk.sequence.batch, chunk.place] = o.transpose(0, 1).to(out.dtype)
        lse[chunk.sequence.batch, :, chunk.place] = chunk_lse
    return AttentionResult(out, lse)


def attention_backward(call: BackwardCall) -> AttentionGradients:
    """Its gradients, by the formulas that the kernels use: p again from lse, no autograd."""
    fwd = call.forward
    dtype, heads, group = _compute_dtype(fwd), fwd.q.shape[2], fwd.q.shape[2] // max(1, fwd.k.shape[2])
    dq = torch.zeros(fwd.q.shape, dtype=dtype, device=fwd.q.device)
    dk, dv = dq.new_zeros(fwd.k.shape), dq.new_zeros(fwd.v.shape)
    want_dbias = call.want_dbias and fwd.bias is not None
    dbias = dq.new_zeros((*fwd.q.shape[:1], heads, fwd.q.shape[1], fwd.k.shape[1])) if want_dbias else None
    dsink = None if fwd.sink is None else dq.new_zeros(heads)
    for chunk in _chunks(fwd):
        batch, keys = chunk.sequence.batch, chunk.sequence.keys
        s, tanh, kept = _scores(fwd, chunk)
        lse = call.lse[batch, :, chunk.place].to(dtype)
        p = _exponentials(s, lse)
        do = call.dout[batch, chunk.place].to(dtype).transpose(0, 1)
        o = call.out[batch, chunk.place].to(dtype).transpose(0, 1)
        delta = (do * o).sum(2)
        if call.dlse is not None:
            delta = delta - call.dlse[batch, :, chunk.place].to(dtype)
        q = fwd.q[batch, chunk.place].to(dtype).transpose(0, 1)
        k = _heads_first(fwd.k[batch, keys], dtype, heads)
        v = _heads_first(fwd.v[batch, keys], dtype, heads)
        dp = do @ v.transpose(1, 2)
        if kept is not None:
            dp = dp * kept
        ds = p * (dp - delta[..., None])
        if dbias is not None:
            dbias[batch, :, chunk.rows] = ds
        dz = ds if tanh is None else ds * (1 - tanh * tanh)
        dq[batch, chunk.place] = (dz @ k).transpose(0, 1) * fwd.softmax_scale
        _add_to_group(dk[batch, keys], dz.transpose(1, 2) @ q * fwd.softmax_scale, group)
        _add_to_group(dv[batch, keys], (p if kept is None else p * kept).transpose(1, 2) @ do, group)
        if dsink is not None and fwd.sink is not None:
            seen = lse.masked_fill(lse == -torch.inf, torch.inf)
            dsink -= (torch.exp(fwd.sink.to(dtype)[:, None] - seen) * delta).sum(1)
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


def attention_probabilities(call: ForwardCall, lse: torch.Tensor) -> torch.Tensor:
    """p [sequences,Hq,max_seqlen_q,max_seqlen_k] float32, negative where dropout dropped it, zero out of sight."""
    shape = (call.sequences, call.q.shape[2], call.max_seqlen_q, call.max_seqlen_k)
    result = torch.zeros(shape, dtype=torch.float32, device=call.q.device)
    for chunk in _chunks(call):
        s, _, kept = _scores(call, chunk)
        p = _exponentials(s, lse[chunk.sequence.batch, :, chunk.place].to(s.dtype))
        if kept is not None:
            p = torch.where(kept > 0, p, -p)
        result[chunk.sequence.number, :, chunk.rows, : p.shape[2]] = p
    return result
