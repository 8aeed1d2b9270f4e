# SPDX-License-Identifier: MIT
"""Attention in float64, written as the textbook has it and differentiated by autograd: what all backends must equal."""

from __future__ import annotations

import torch

__all__ = ["attention", "keep_of", "sparse_mla"]


def attention(q, k, v, scale, left=-1, right=-1, softcap=0.0, bias=None, alibi=None, sink=None, keep=None):
    """out [B,Sq,Hq,Dv] and lse [B,Hq,Sq] of q [B,Sq,Hq,D], k [B,Sk,Hkv,D], v [B,Sk,Hkv,Dv]; keep [B,Hq,Sq,Sk]."""
    q, k, v = q.double(), k.double(), v.double()
    B, Sq, H, _ = q.shape
    Sk, group = k.shape[1], H // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    s = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    i = torch.arange(Sq, device=q.device)[:, None] + (Sk - Sq)
    j = torch.arange(Sk, device=q.device)[None, :]
    if bias is not None:
        s = s + bias.double()
    if alibi is not None:
        s = s - alibi.double().expand(B, H)[:, :, None, None] * (i - j).abs()
    seen = torch.ones(Sq, Sk, dtype=torch.bool, device=q.device)
    if left >= 0:
        seen = seen & (j >= i - left)
    if right >= 0:
        seen = seen & (j <= i + right)
    s = s.masked_fill(~seen, -torch.inf)
    terms = s if sink is None else torch.cat([s, sink.double()[None, :, None, None].expand(B, H, Sq, 1)], 3)
    lse = torch.logsumexp(terms, 3)
    p = torch.where(seen, torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]), 0.0)
    if keep is not None:
        p = p * keep.double()
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


def keep_of(probabilities, dropout_p):
    """What dropout multiplies each weight by, told from the signs of `return_attn_probs`."""
    kept = (2**24 - round(dropout_p * 2**24)) / 2**24
    return (~torch.signbit(probabilities)).double() / kept


def sparse_mla(q, kv, indices, sink, rank, scale):
    """(out [T,H,rank], lse [T,H])."""
    q, kv = q.double(), kv.double()
    empty = (indices < 0)[:, None]
    rows = kv[indices.long().clamp_min(0)]
    s = torch.einsum("thd,tnd->thn", q, rows) * scale
    s = s.masked_fill(empty, -torch.inf)
    terms = s if sink is None else torch.cat([s, sink.double()[None, :, None].expand(*s.shape[:2], 1)], 2)
    lse = torch.logsumexp(terms, 2)
    p = torch.where(empty, 0.0, torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]))
    return torch.einsum("thn,tnd->thd", p, rows[..., :rank]), lse
