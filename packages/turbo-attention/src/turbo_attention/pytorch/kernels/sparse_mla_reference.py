# SPDX-License-Identifier: MIT
"""Sparse MLA in plain PyTorch (formulas: turbo_attention/sparse_calls.py), a few tokens at a time, on any device.

Arithmetic is float32 (float64 on float64 tensors, for tests). ``chunk``: elements of kv rows that tokens gather at
a time, of one token at least. The backward takes the softmax again and needs no lse. dkv is summed over slots sorted by
the row that they name, each row by itself in that order: the same bits from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from turbo_attention.pytorch.kernels.reference import Softmax, softmax
from turbo_attention.sparse_calls import SparseBackward, SparseForward, SparseGradients, SparseResult

__all__ = ["run", "sparse_mla_backward", "sparse_mla_forward", "why_not"]

_GATHERED = 2**24  # elements of kv rows of one chunk of tokens


def why_not(call: SparseForward | SparseBackward) -> None:
    """It takes every call."""


def run(call: SparseForward | SparseBackward) -> SparseResult | SparseGradients:
    """The attention of ``call``, or its gradients."""
    return sparse_mla_forward(call) if isinstance(call, SparseForward) else sparse_mla_backward(call)


def _dtype(call: SparseForward) -> torch.dtype:
    return torch.float64 if call.q.dtype == torch.float64 else torch.float32


def _chunks(call: SparseForward, chunk: int) -> Iterator[slice]:
    tokens, topk = call.indices.shape
    step = max(1, chunk // max(1, topk * call.kv.shape[1]))
    return (slice(first, min(first + step, tokens)) for first in range(0, tokens, step))


def _empty(call: SparseForward, indices: torch.Tensor) -> torch.Tensor:
    """Which slots name no row."""
    return (indices < 0) | (indices >= call.kv.shape[0])


def _gather(call: SparseForward, tokens: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [t,topk,D] of the slots, zeros for empty ones, and scores [t,H,topk], -inf for those."""
    indices = call.indices[tokens].long()
    empty = _empty(call, indices)
    rows = call.kv[indices.masked_fill(empty, 0)].to(_dtype(call)).masked_fill(empty[..., None], 0)
    scores = torch.einsum("thd,tnd->thn", call.q[tokens].to(_dtype(call)), rows) * call.softmax_scale
    return rows, scores.masked_fill(empty[:, None], -torch.inf)


def _softmax(call: SparseForward, scores: torch.Tensor) -> Softmax:
    sink = None if call.sink is None else call.sink.to(scores.dtype)[None, :, None].expand(*scores.shape[:2], 1)
    return softmax(scores, sink)


def _add_by_row(dkv: torch.Tensor, rows: torch.Tensor, shares: torch.Tensor) -> None:
    """dkv[r] += the sum of the shares [n,D] whose ``rows`` [n] are r, in their order; rows from len(dkv) on: no row."""
    named, order = torch.sort(rows, stable=True)
    begins = torch.searchsorted(named, torch.arange(dkv.shape[0] + 2, device=rows.device))
    dkv += torch.segment_reduce(shares[order], "sum", lengths=begins.diff(), axis=0, unsafe=True)[:-1]


def sparse_mla_forward(call: SparseForward, chunk: int = _GATHERED) -> SparseResult:
    """The attention of ``call``."""
    tokens, heads = call.q.shape[:2]
    out = call.q.new_empty((tokens, heads, call.rank))
    lse, lse_low = (call.q.new_empty((tokens, heads), dtype=_dtype(call)) for _ in range(2))
    for part in _chunks(call, chunk):
        rows, scores = _gather(call, part)
        p, _, lse[part], lse_low[part] = _softmax(call, scores)
        out[part] = torch.einsum("thn,tnd->thd", p, rows[..., : call.rank]).to(out.dtype)
    return SparseResult(out, lse, lse_low)


def sparse_mla_backward(call: SparseBackward, chunk: int = _GATHERED) -> SparseGradients:
    """Its gradients; D from p and dp, so not from a rounded out."""
    forward = call.forward
    dtype, rank = _dtype(forward), forward.rank
    dq = torch.empty(forward.q.shape, dtype=dtype, device=forward.q.device)
    dkv = torch.zeros(forward.kv.shape, dtype=dtype, device=forward.kv.device)
    dsink = None if forward.sink is None else dq.new_zeros(forward.q.shape[1])
    for part in _chunks(forward, chunk):
        rows, scores = _gather(forward, part)
        p, p_sink, _, _ = _softmax(forward, scores)
        dout = call.dout[part].to(dtype)
        dp = torch.einsum("thd,tnd->thn", dout, rows[..., :rank])
        delta = (p * dp).sum(2)
        if call.dlse is not None:
            delta = delta - call.dlse[part].to(dtype)
        if dsink is not None and p_sink is not None:
            dsink -= (p_sink * delta).sum(0)
        ds = p * (dp - delta[..., None]) * forward.softmax_scale
        dq[part] = torch.einsum("thn,tnd->thd", ds, rows)
        shares = torch.einsum("thn,thd->tnd", ds, forward.q[part].to(dtype))
        shares[..., :rank] += torch.einsum("thn,thd->tnd", p, dout)
        indices = forward.indices[part].long()
        named = indices.masked_fill(_empty(forward, indices), forward.kv.shape[0])
        _add_by_row(dkv, named.flatten(), shares.flatten(0, 1))
    return SparseGradients(dq.to(forward.q.dtype), dkv.to(forward.kv.dtype), dsink)
