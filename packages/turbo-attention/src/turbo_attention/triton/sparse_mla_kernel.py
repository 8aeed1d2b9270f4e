# SPDX-License-Identifier: MIT
"""Sparse MLA: forward, gradient of queries, and gradient of the latent cache (formulas: sparse_calls.py).

A score tile is [H,N]: BLOCK_H heads of one token against BLOCK_N of its slots, whose rows are gathered from kv, each in
two parts: BLOCK_V columns from 0 (V, and that much of K) and BLOCK_T columns behind (the rest of K, the rotary part).
The first has ``rank`` columns, the second ``width - rank``. Products in q's dtype with float32 sums.

dkv is summed in a fixed order: each slot's share is written to memory (`shares_kernel`), slots are sorted by row, and
each row adds up its own (`sum_shares_kernel`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from turbo_attention.triton.stages import LN2, LOG2E, two_numbers

__all__ = ["forward_kernel", "queries_kernel", "shares_kernel", "sum_shares_kernel"]


@triton.jit
def _rows(base, row, stride, inside, first, width, COLUMNS: tl.constexpr):
    """Rows ``row`` (vector) of a matrix, columns first .. first + width, zeros elsewhere."""
    column = tl.arange(0, COLUMNS)
    pointers = base + row.to(tl.int64)[:, None] * stride + (first + column)[None, :]
    return tl.load(pointers, mask=inside[:, None] & (column < width)[None, :], other=0.0)


@triton.jit
def _slots(indices, token, n, topk, cached, BLOCK_N: tl.constexpr):
    """Rows that the slots n .. n + BLOCK_N of a token name, and which of them name one of the ``cached``."""
    slot = n + tl.arange(0, BLOCK_N)
    row = tl.load(indices + token * topk + slot, mask=slot < topk, other=-1)
    filled = (row >= 0) & (row < cached)
    return tl.where(filled, row, 0), filled


@triton.jit
def forward_kernel(
    q, kv, indices, sink, out, lse, lse_low, stride_qt, stride_qh, stride_kv, cached, heads, topk, rank, width, scale,
    head_blocks, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """out [T,H,rank], lse and lse_low [T,H], contiguous; the grid is token * head_blocks + block of heads.

    cached: rows of kv.
    """
    token = (tl.program_id(0) // head_blocks).to(tl.int64)
    h = tl.program_id(0) % head_blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    alive = h < heads
    q_HV = _rows(q + token * stride_qt, h, stride_qh, alive, 0, rank, BLOCK_V)
    q_HT = q_HV
    if BLOCK_T > 0:
        q_HT = _rows(q + token * stride_qt, h, stride_qh, alive, rank, width - rank, BLOCK_T)
    acc_HV = tl.zeros((BLOCK_H, BLOCK_V), tl.float32)
    l_H = tl.zeros((BLOCK_H,), tl.float32)
    m_H = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    for n in tl.range(0, topk, BLOCK_N):
        row, filled = _slots(indices, token, n, topk, cached, BLOCK_N)
        kv_NV = _rows(kv, row, stride_kv, filled, 0, rank, BLOCK_V)
        s = tl.dot(q_HV, kv_NV.T, input_precision="ieee")
        if BLOCK_T > 0:
            kv_NT = _rows(kv, row, stride_kv, filled, rank, width - rank, BLOCK_T)
            s = tl.dot(q_HT, kv_NT.T, s, input_precision="ieee")
        s = tl.where(filled[None, :], s * (scale * LOG2E), float("-inf"))
        m_new = tl.maximum(m_H, tl.max(s, 1))
        reference = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - reference[:, None])
        alpha = tl.exp2(m_H - reference)
        l_H = l_H * alpha + tl.sum(p, 1)
        acc_HV = tl.dot(p.to(kv_NV.dtype), kv_NV, acc_HV * alpha[:, None], input_precision="ieee")
        m_H = m_new
    if sink is not None:
        sink_log2 = tl.load(sink + h, mask=alive, other=0.0) * LOG2E
        m_new = tl.maximum(m_H, sink_log2)
        reference = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp2(m_H - reference)
        acc_HV *= alpha[:, None]
        l_H = l_H * alpha + tl.exp2(sink_log2 - reference)
        m_H = m_new
    blind = l_H == 0.0
    l_H, m_H = tl.where(blind, 1.0, l_H), tl.where(blind, 0.0, m_H)
    lse_H, low_H = two_numbers((m_H.to(tl.float64) + tl.log2(l_H).to(tl.float64)) * LN2)
    tl.store(lse + token * heads + h, tl.where(blind, float("-inf"), lse_H), alive)
    tl.store(lse_low + token * heads + h, low_H, alive)
    column = tl.arange(0, BLOCK_V)
    pointers = out + (token * heads + h)[:, None] * rank + column[None, :]
    tl.store(pointers, (acc_HV / l_H[:, None]).to(out.dtype.element_ty), alive[:, None] & (column < rank)[None, :])


@triton.jit
def _norm(lse, lse_low, at, alive):
    """(lse + lse_low) log2(e) as two numbers, which scores are lessened by; +inf for a head that sees nothing."""
    lse_H = tl.load(lse + at, mask=alive, other=float("-inf"))
    low_H = tl.load(lse_low + at, mask=alive, other=0.0)
    blind = lse_H == float("-inf")
    lse_H = tl.where(blind, 0.0, lse_H)
    high_H, low_H = two_numbers((lse_H.to(tl.float64) + low_H.to(tl.float64)) * LOG2E)
    return tl.where(blind, float("inf"), high_H), low_H


@triton.jit
def _gradient_of_scores(s, dp, high_H, low_H, delta_H, filled, scale):
    """p and ds of a tile; a head that sees nothing has neither."""
    exponent = s * (scale * LOG2E) - high_H[:, None] - low_H[:, None]
    p = tl.where(filled[None, :], tl.exp2(exponent), 0.0)
    return p, p * (dp - delta_H[:, None]) * scale


@triton.jit
def queries_kernel(
    q, kv, indices, do, lse, lse_low, delta, dq, sink, dsink, stride_qt, stride_qh, stride_kv, stride_dot, stride_doh,
    cached, heads, topk, rank, width, scale, head_blocks,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dq [T,H,width], contiguous; lse, lse_low, delta float32 [T,H]; the grid as in `forward_kernel`.

    dsink: float32 [T,H], - exp(sink - lse) sum_n p_n dp_n, where there is a sink; of p and dp, not of a rounded out.
    BLOCK_K: columns of q, do and kv that the products over ``rank`` read at a time, again for each tile of slots; 0:
    all of them, and q and do are held in registers.
    """
    token = (tl.program_id(0) // head_blocks).to(tl.int64)
    h = tl.program_id(0) % head_blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    alive = h < heads
    q_HV = _rows(q + token * stride_qt, h, stride_qh, alive, 0, rank, BLOCK_V)
    q_HT = q_HV
    if BLOCK_T > 0:
        q_HT = _rows(q + token * stride_qt, h, stride_qh, alive, rank, width - rank, BLOCK_T)
    do_HV = _rows(do + token * stride_dot, h, stride_doh, alive, 0, rank, BLOCK_V)
    high_H, low_H = _norm(lse, lse_low, token * heads + h, alive)
    delta_H = tl.load(delta + token * heads + h, mask=alive, other=0.0)
    pdp_H = tl.zeros((BLOCK_H,), tl.float32)
    dq_HV = tl.zeros((BLOCK_H, BLOCK_V), tl.float32)
    dq_HT = tl.zeros((BLOCK_H, BLOCK_T if BLOCK_T > 0 else 1), tl.float32)
    for n in tl.range(0, topk, BLOCK_N):
        row, filled = _slots(indices, token, n, topk, cached, BLOCK_N)
        kv_NV = _rows(kv, row, stride_kv, filled, 0, rank, BLOCK_V)
        kv_NT = kv_NV
        if BLOCK_K > 0:
            s = tl.zeros((BLOCK_H, BLOCK_N), tl.float32)
            dp = tl.zeros((BLOCK_H, BLOCK_N), tl.float32)
            for c in tl.range(0, BLOCK_V, BLOCK_K):
                kv_NK = _rows(kv, row, stride_kv, filled, c, rank - c, BLOCK_K)
                q_HK = _rows(q + token * stride_qt, h, stride_qh, alive, c, rank - c, BLOCK_K)
                do_HK = _rows(do + token * stride_dot, h, stride_doh, alive, c, rank - c, BLOCK_K)
                s = tl.dot(q_HK, kv_NK.T, s, input_precision="ieee")
                dp = tl.dot(do_HK, kv_NK.T, dp, input_precision="ieee")
        else:
            s = tl.dot(q_HV, kv_NV.T, input_precision="ieee")
            dp = tl.dot(do_HV, kv_NV.T, input_precision="ieee")
        if BLOCK_T > 0:
            kv_NT = _rows(kv, row, stride_kv, filled, rank, width - rank, BLOCK_T)
            s = tl.dot(q_HT, kv_NT.T, s, input_precision="ieee")
        p, ds = _gradient_of_scores(s, dp, high_H, low_H, delta_H, filled, scale)
        if sink is not None:
            pdp_H += tl.sum(p * dp, 1)
        ds_HN = ds.to(kv_NV.dtype)
        dq_HV = tl.dot(ds_HN, kv_NV, dq_HV, input_precision="ieee")
        if BLOCK_T > 0:
            dq_HT = tl.dot(ds_HN, kv_NT, dq_HT, input_precision="ieee")
    if sink is not None:
        logit_H = tl.load(sink + h, mask=alive, other=0.0)
        share_H = -tl.exp2(logit_H * LOG2E - high_H - low_H) * pdp_H
        tl.store(dsink + token * heads + h, share_H, alive)
    column = tl.arange(0, BLOCK_V)
    target = dq + (token * heads + h)[:, None] * width
    tl.store(target + column[None, :], dq_HV.to(dq.dtype.element_ty), alive[:, None] & (column < rank)[None, :])
    if BLOCK_T > 0:
        tail = tl.arange(0, BLOCK_T)
        inside = alive[:, None] & (tail < width - rank)[None, :]
        tl.store(target + (rank + tail)[None, :], dq_HT.to(dq.dtype.element_ty), inside)


@triton.jit
def shares_kernel(
    q, kv, indices, do, lse, lse_low, delta, shares, first_token, stride_qt, stride_qh, stride_kv, stride_dot,
    stride_doh, cached, heads, topk, rank, width, scale, slot_blocks,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """What each slot of the tokens from ``first_token`` on adds to its row of dkv: shares float32 [tokens,topk,width].

    The grid is token * slot_blocks + block of slots; a program walks over all heads.
    """
    local = (tl.program_id(0) // slot_blocks).to(tl.int64)
    token = first_token + local
    n = tl.program_id(0) % slot_blocks * BLOCK_N
    row, filled = _slots(indices, token, n, topk, cached, BLOCK_N)
    kv_NV = _rows(kv, row, stride_kv, filled, 0, rank, BLOCK_V)
    kv_NT = kv_NV
    if BLOCK_T > 0:
        kv_NT = _rows(kv, row, stride_kv, filled, rank, width - rank, BLOCK_T)
    share_NV = tl.zeros((BLOCK_N, BLOCK_V), tl.float32)
    share_NT = tl.zeros((BLOCK_N, BLOCK_T if BLOCK_T > 0 else 1), tl.float32)
    for first in tl.range(0, heads, BLOCK_H):
        h = first + tl.arange(0, BLOCK_H)
        alive = h < heads
        q_HV = _rows(q + token * stride_qt, h, stride_qh, alive, 0, rank, BLOCK_V)
        q_HT = q_HV
        do_HV = _rows(do + token * stride_dot, h, stride_doh, alive, 0, rank, BLOCK_V)
        s = tl.dot(q_HV, kv_NV.T, input_precision="ieee")
        if BLOCK_T > 0:
            q_HT = _rows(q + token * stride_qt, h, stride_qh, alive, rank, width - rank, BLOCK_T)
            s = tl.dot(q_HT, kv_NT.T, s, input_precision="ieee")
        dp = tl.dot(do_HV, kv_NV.T, input_precision="ieee")
        high_H, low_H = _norm(lse, lse_low, token * heads + h, alive)
        delta_H = tl.load(delta + token * heads + h, mask=alive, other=0.0)
        p, ds = _gradient_of_scores(s, dp, high_H, low_H, delta_H, filled, scale)
        ds_NH = ds.to(q_HV.dtype).T
        share_NV = tl.dot(ds_NH, q_HV, share_NV, input_precision="ieee")
        share_NV = tl.dot(p.to(do_HV.dtype).T, do_HV, share_NV, input_precision="ieee")
        if BLOCK_T > 0:
            share_NT = tl.dot(ds_NH, q_HT, share_NT, input_precision="ieee")
    slot = n + tl.arange(0, BLOCK_N)
    target = shares + (local * topk + slot)[:, None] * width
    column = tl.arange(0, BLOCK_V)
    tl.store(target + column[None, :], share_NV, (slot < topk)[:, None] & (column < rank)[None, :])
    if BLOCK_T > 0:
        tail = tl.arange(0, BLOCK_T)
        tl.store(target + (rank + tail)[None, :], share_NT, (slot < topk)[:, None] & (tail < width - rank)[None, :])


@triton.jit
def sum_shares_kernel(
    shares, order, begins, dkv, width, BLOCK_E: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """dkv[r] += shares of the slots order[begins[r]] .. order[begins[r + 1]], in that order; dkv float32 [N,width].

    The grid is (N, blocks of columns). order, begins: int64.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    begin, end = tl.load(begins + row), tl.load(begins + row + 1)
    if begin < end:
        acc = tl.zeros((BLOCK_E, BLOCK_C), tl.float32)
        for e in tl.range(begin, end, BLOCK_E):
            entry = e + tl.arange(0, BLOCK_E)
            slot = tl.load(order + entry, mask=entry < end, other=0)
            inside = (entry < end)[:, None] & (column < width)[None, :]
            acc += tl.load(shares + slot[:, None] * width + column[None, :], mask=inside, other=0.0)
        target = dkv + row * width + column
        kept = tl.load(target, mask=column < width, other=0.0)
        tl.store(target, kept + tl.sum(acc, 0), mask=column < width)
