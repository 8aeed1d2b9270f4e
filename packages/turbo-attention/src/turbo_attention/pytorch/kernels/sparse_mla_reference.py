# SPDX-License-Identifier: MIT
"""Sparse MLA in plain PyTorch (formulas: turbo_attention/sparse_calls.py), a few tokens at a time, on any device.

Arithmetic is float32 (float64 on float64 tensors, for tests). dkv is summed by `index_put_`, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from turbo_attention.sparse_calls import SparseBackward, SparseForward, SparseGradients, SparseResult

__all__ = ["sparse_mla_backward", "sparse_mla_forward"]

_GATHERED = 2**24  # elements of kv rows of one chunk of tokens


def _dtype(call: SparseForward) -> torch.dtype:
    return torch.float64 if call.q.dtype == torch.float64 else torch.float32


def _chunks(call: SparseForward) -> Iterator[slice]:
    tokens, topk = call.indices.shape
    step = max(1, _GATHERED // max(1, topk * call.kv.shape[1]))
    return (slice(first, min(first + step, tokens)) for first in range(0, tokens, step))


def _gather(call: SparseForward, tokens: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [t,topk,D] of the slots, zeros for empty ones, and scores [t,H,topk], -inf for those."""
    indices = call.indices[tokens].long()
    empty = indices < 0
    rows = call.kv[indices.clamp_min(0)].to(_dtype(call)).masked_fill(empty[..., None], 0)
    scores = torch.einsum("thd,tnd->thn", call.q[tokens].to(_dtype(call)), rows) * call.softmax_scale
    return rows, scores.masked_fill(empty[:, None], -torch.inf)


def _exponentials(scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    return torch.exp(scores - lse.masked_fill(lse == -torch.inf, torch.inf)[..., None])


def sparse_mla_forward(call: SparseForward) -> SparseResult:
    """The attention of ``call``."""
    tokens, heads = call.q.shape[:2]
    out = call.q.new_empty((tokens, heads, call.rank))
    lse = call.q.new_empty((tokens, heads), dtype=_dtype(call))
    for chunk in _chunks(call):
        rows, scores = _gather(call, chunk)
        terms = scores
        if call.sink is not None:
            sink = call.sink.to(scores.dtype)[None, :, None].expand(*scores.shape[:2], 1)
            terms = torch.cat((scores, sink), dim=2)
        lse[chunk] = torch.logsumexp(terms, dim=2) if terms.shape[2] else -torch.inf
        p = _exponentials(scores, lse[chunk])
        out[chunk] = torch.einsum("thn,tnd->thd", p, rows[..., : call.rank]).to(out.dtype)
    return SparseResult(out, lse)


def sparse_mla_backward(call: SparseBackward) -> SparseGradients:
    """Its gradients."""
    forward = call.forward
    dtype, rank = _dtype(forward), forward.rank
    dq = torch.empty(forward.q.shape, dtype=dtype, device=forward.q.device)
    dkv = torch.zeros(forward.kv.shape, dtype=dtype, device=forward.kv.device)
    lse = call.lse.to(dtype)
    delta = (call.dout.to(dtype) * call.out.to(dtype)).sum(2)
    if call.dlse is not None:
        delta = delta - call.dlse.to(dtype)
    for chunk in _chunks(forward):
        rows, scores = _gather(forward, chunk)
        p = _exponentials(scores, lse[chunk])
        dout = call.dout[chunk].to(dtype)
        ds = p * (torch.einsum("thd,tnd->thn", dout, rows[..., :rank]) - delta[chunk][..., None])
        ds = ds * forward.softmax_scale
        dq[chunk] = torch.einsum("thn,tnd->thd", ds, rows)
        shares = torch.einsum("thn,thd->tnd", ds, forward.q[chunk].to(dtype))
        shares[..., :rank] += torch.einsum("thn,thd->tnd", p, dout)
        indices = forward.indices[chunk].long()
        shares = shares.masked_fill((indices < 0)[..., None], 0)
        dkv.index_put_((indices.clamp_min(0),), shares, accumulate=True)
    dsink = None
    if forward.sink is not None:
        seen = lse.masked_fill(lse == -torch.inf, torch.inf)
        dsink = -(torch.exp(forward.sink.to(dtype) - seen) * delta).sum(0)
    return SparseGradients(dq.to(forward.q.dtype), dkv.to(forward.kv.dtype), dsink)
