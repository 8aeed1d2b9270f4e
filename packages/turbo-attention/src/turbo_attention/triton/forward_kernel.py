# SPDX-License-Identifier: MIT
"""Attention forward.

    o_i = sum_j keep_ij exp(s_ij - lse_i) v_j / (1 - dropout_p)        s_ij, lse_i, keep_ij: see calls.py

One program is one tile of BLOCK_M queries of one head. It walks over the keys that any of its queries sees, BLOCK_N at
a time, with running maximum and sum (online softmax, Milakov and Gimelshein 2018; tiled as in FlashAttention, Dao et
al. 2022). Tiles that all its queries see wholly are walked without masks. Everything in powers of two: exp(x) is
exp2(x * log2(e)). Products in q's dtype with float32 sums; p is rounded to v's dtype. lse in natural logarithms, in two
numbers (calls.py).

FP8: q, k, v are payloads with one scale_inv for SCALE_ROWS rows of a head, float32 [sequences, heads, blocks]; products
are of FP8 numbers, p times the largest FP8 number is rounded to FP8, and scales come in between in float32.

q, out: [sequences, heads, sq, D or DV] by strides; k, v: likewise with key heads; lse, lse_low: [.., heads, sq].
"""

from __future__ import annotations

import triton
import triton.language as tl

from turbo_attention.triton.stages import (
    LN2,
    LOG2E,
    aligned,
    capped,
    corner,
    dropout_keep,
    key_ranges,
    load_rows,
    position,
    product_by_columns,
    row_sums,
    sequence,
    store_rows,
    two_numbers,
    visible,
    work,
)

__all__ = ["forward_kernel"]


@triton.jit
def _walk(
    acc_MV, sums, m_M, q_MD, q_tail, q, offset_q, stride_qs, k, k_tail, v, offset_k, offset_v, stride_ks, stride_vs,
    width_k, width_v, end_k, begin, end, m0, i_M, sq, sk, shift, left, right, scale, softcap, bias, stride_bias_m,
    stride_bias_n, slope, seed, offset, head, threshold, scale_q_M, scale_k, scale_v,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TAIL_D: tl.constexpr, BLOCK_V: tl.constexpr,
    DESCRIPTOR: tl.constexpr, EVEN_D: tl.constexpr, EVEN_V: tl.constexpr, EVEN_N: tl.constexpr, MASKED: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_CAP: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ALIBI: tl.constexpr, HAS_DROPOUT: tl.constexpr, FP8_MAX: tl.constexpr, SCALE_ROWS: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Keys ``begin`` to ``end`` into the running sums; MASKED: some pair in the tiles may be out of sight."""
    for n in tl.range(begin, end, BLOCK_N):
        j_N = n + tl.arange(0, BLOCK_N)
        if BLOCK_K > 0:
            s = product_by_columns(
                q, offset_q, m0, stride_qs, sq, k, offset_k, n, stride_ks, sk, width_k, end_k, BLOCK_M, BLOCK_N,
                BLOCK_K, WIDE
            )  # fmt: skip
        else:
            k_ND = load_rows(
                k, offset_k, n, stride_ks, sk, width_k, BLOCK_N, BLOCK_D, 0, DESCRIPTOR,
                MASKED and not EVEN_N and not DESCRIPTOR, not EVEN_D and TAIL_D == 0, WIDE
            )  # fmt: skip
            s = tl.dot(q_MD, k_ND.T, input_precision="ieee")
            if TAIL_D > 0:
                k_tail_N = load_rows(
                    k_tail, offset_k, n, stride_ks, sk, width_k, BLOCK_N, TAIL_D, BLOCK_D, DESCRIPTOR,
                    MASKED and not EVEN_N and not DESCRIPTOR, not EVEN_D, WIDE
                )  # fmt: skip
                s = tl.dot(q_tail, k_tail_N.T, s, input_precision="ieee")
        if FP8_MAX > 0:
            s *= (scale_q_M * tl.load(scale_k + n // SCALE_ROWS))[:, None]
        i, j = i_M[:, None], j_N[None, :]
        if HAS_CAP or HAS_BIAS or HAS_ALIBI:
            s, _ = capped(s, scale, softcap, HAS_CAP)
            s = position(
                s, i, j, m0, n, bias, stride_bias_m, stride_bias_n, slope, sq, sk, shift, HAS_BIAS, HAS_ALIBI
            )  # fmt: skip
        if MASKED:
            s = tl.where(visible(i, j, sk, shift, left, right, HAS_LEFT, HAS_RIGHT), s, float("-inf"))
        if HAS_CAP or HAS_BIAS or HAS_ALIBI:
            m_new = tl.maximum(m_M, tl.max(s, 1))
            reference = tl.where(m_new == float("-inf"), 0.0, m_new)
            p = tl.exp2((s - reference[:, None]) * LOG2E)  # the difference first: `exponents`
            alpha = tl.exp2((m_M - reference) * LOG2E)
        else:
            factor = scale * LOG2E  # joins the subtraction of the maximum in one multiply-add; scale > 0
            m_new = tl.maximum(m_M, tl.max(s, 1) * factor)
            reference = tl.where(m_new == float("-inf"), 0.0, m_new) if MASKED else m_new
            p = tl.exp2(s * factor - reference[:, None])
            alpha = tl.exp2(m_M - reference)
        sums = sums * (alpha[:, None] if SUMS > 1 else alpha) + row_sums(p, SUMS)
        if HAS_DROPOUT:
            p = tl.where(dropout_keep(seed, offset, i, j, head, threshold), p, 0.0)
        acc_MV = acc_MV * alpha[:, None]
        v_NV = load_rows(
            v, offset_v, n, stride_vs, sk, width_v, BLOCK_N, BLOCK_V, 0, DESCRIPTOR, MASKED and not EVEN_N,
            not EVEN_V, WIDE
        )  # fmt: skip
        if FP8_MAX > 0:
            products = tl.dot((p * FP8_MAX).to(v_NV.dtype), v_NV)
            acc_MV += products * (tl.load(scale_v + n // SCALE_ROWS) / FP8_MAX)
        else:
            acc_MV = tl.dot(p.to(v_NV.dtype), v_NV, acc_MV, input_precision="ieee")
        m_M = m_new
    return acc_MV, sums, m_M


@triton.jit
def forward_kernel(
    q, k, v, q_tail, k_tail, bias, alibi_slopes, rng, cu_seqlens_q, cu_seqlens_k, scale_q, scale_k, scale_v,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
    out, lse, sink, stride_ob, stride_os, stride_oh, stride_lse_b, stride_lse_h,
    stride_bias_b, stride_bias_h, stride_bias_m, stride_bias_n, stride_alibi_b, stride_alibi_h,
    heads, group, tiles, len_q, len_k, width_qk: tl.constexpr, width_v: tl.constexpr, end_qk, end_v, scale,
    softcap, left, right, threshold, keep_scale, lse_low,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TAIL_D: tl.constexpr, BLOCK_V: tl.constexpr,
    DESCRIPTOR: tl.constexpr, EVEN_D: tl.constexpr, EVEN_V: tl.constexpr, EVEN_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_CAP: tl.constexpr, FP8_MAX: tl.constexpr,
    SCALE_ROWS: tl.constexpr, WIDE: tl.constexpr, XCDS: tl.constexpr, BLOCK_K: tl.constexpr, ALIGN: tl.constexpr,
    SUMS: tl.constexpr,
):  # fmt: skip
    """The grid is one program a tile; tiles of a head follow one another, so that its keys are read from L2.

    q_tail, k_tail: descriptors of the columns from BLOCK_D on. Pointers that only the end needs do not come first: AMD
    holds the first arguments in scalar registers from the start.
    SUMS: partial sums of p that a row keeps until the end. NVIDIA's matrix units give a lane two of each eight
    neighbouring columns, so eight of them need no other lane (0.6 to 2.6 % faster on an H200 than 1).
    """
    if not DESCRIPTOR:
        q_tail, k_tail = q, k
    if ALIGN > 1:
        stride_qb, stride_qs, stride_qh = aligned(stride_qb, stride_qs, stride_qh, ALIGN)
        stride_kb, stride_ks, stride_kh = aligned(stride_kb, stride_ks, stride_kh, ALIGN)
        stride_vb, stride_vs, stride_vh = aligned(stride_vb, stride_vs, stride_vh, ALIGN)
        stride_ob, stride_os, stride_oh = aligned(stride_ob, stride_os, stride_oh, ALIGN)
    HAS_BIAS: tl.constexpr = bias is not None
    HAS_ALIBI: tl.constexpr = alibi_slopes is not None
    HAS_DROPOUT: tl.constexpr = rng is not None
    ONE_WALK: tl.constexpr = HAS_BIAS or HAS_ALIBI or HAS_CAP or HAS_DROPOUT  # three copies of these run out of SGPRs
    batch, head, tile = work(tl.program_id(0), tl.num_programs(0), heads, tiles, XCDS)
    if HAS_RIGHT:
        tile = tiles - 1 - tile  # the last tiles have the most keys: they start first
    base_q, first_q, sq = sequence(cu_seqlens_q, batch, stride_qb, stride_qs, len_q)
    base_k, first_k, sk = sequence(cu_seqlens_k, batch, stride_kb, stride_ks, len_k)
    base_v, _, _ = sequence(cu_seqlens_k, batch, stride_vb, stride_vs, len_k)
    base_o, _, _ = sequence(cu_seqlens_q, batch, stride_ob, stride_os, len_q)
    m0 = tile * BLOCK_M
    if m0 >= sq:
        return
    head_k = (head // group).to(tl.int64)
    offset_q, columns_q = corner(base_q + head.to(tl.int64) * stride_qh, stride_qs, width_qk, DESCRIPTOR)
    offset_k, columns_k = corner(base_k + head_k * stride_kh, stride_ks, width_qk, DESCRIPTOR)
    offset_v, columns_v = corner(base_v + head_k * stride_vh, stride_vs, width_v, DESCRIPTOR)
    i_M = m0 + tl.arange(0, BLOCK_M)
    q_MD = load_rows(
        q, offset_q, m0, stride_qs, sq, columns_q, BLOCK_M, BLOCK_D, 0, DESCRIPTOR, not DESCRIPTOR,
        not EVEN_D and TAIL_D == 0, WIDE
    )  # fmt: skip
    q_tail_M = q_MD
    if TAIL_D > 0:
        q_tail_M = load_rows(
            q_tail, offset_q, m0, stride_qs, sq, columns_q, BLOCK_M, TAIL_D, BLOCK_D, DESCRIPTOR, not DESCRIPTOR,
            not EVEN_D, WIDE
        )  # fmt: skip

    scale_q_M = 1.0
    if FP8_MAX > 0:
        blocks_q, blocks_k = tl.cdiv(sq, SCALE_ROWS), tl.cdiv(sk, SCALE_ROWS)
        scale_q += (batch * heads + head) * blocks_q
        scale_q_M = tl.load(scale_q + i_M // SCALE_ROWS, mask=i_M < sq, other=0.0)
        scale_k += (batch * (heads // group) + head // group) * blocks_k
        scale_v += (batch * (heads // group) + head // group) * blocks_k
    bias_head, slope, seed, offset = bias, 0.0, 0, 0
    if HAS_BIAS:
        bias_head = bias + batch.to(tl.int64) * stride_bias_b + head.to(tl.int64) * stride_bias_h
    if HAS_ALIBI:
        slope = tl.load(alibi_slopes + batch * stride_alibi_b + head * stride_alibi_h)
    if HAS_DROPOUT:
        seed, offset = tl.load(rng), tl.load(rng + 1)

    shift = sk - sq
    low, full_low, full_high, high = key_ranges(
        m0, sq, sk, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, ONE_WALK
    )  # fmt: skip
    acc_MV = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    sums = tl.zeros((BLOCK_M, SUMS) if SUMS > 1 else (BLOCK_M,), tl.float32)
    m_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    if HAS_LEFT and not ONE_WALK:
        acc_MV, sums, m_M = _walk(
            acc_MV, sums, m_M, q_MD, q_tail_M, q, offset_q, stride_qs, k, k_tail, v, offset_k, offset_v, stride_ks,
            stride_vs, columns_k, columns_v, end_qk, low, full_low, m0, i_M, sq, sk, shift, left, right, scale,
            softcap, bias_head, stride_bias_m, stride_bias_n, slope, seed, offset, batch * heads + head, threshold,
            scale_q_M, scale_k, scale_v,
            BLOCK_N, BLOCK_D, TAIL_D, BLOCK_V, DESCRIPTOR, EVEN_D, EVEN_V, EVEN_N, True,
            HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_BIAS, HAS_ALIBI, HAS_DROPOUT, FP8_MAX, SCALE_ROWS, WIDE, BLOCK_M, BLOCK_K,
            SUMS
        )  # fmt: skip
    if not ONE_WALK:
        acc_MV, sums, m_M = _walk(
            acc_MV, sums, m_M, q_MD, q_tail_M, q, offset_q, stride_qs, k, k_tail, v, offset_k, offset_v, stride_ks,
            stride_vs, columns_k, columns_v, end_qk, full_low, full_high, m0, i_M, sq, sk, shift, left, right, scale,
            softcap, bias_head, stride_bias_m, stride_bias_n, slope, seed, offset, batch * heads + head, threshold,
            scale_q_M, scale_k, scale_v,
            BLOCK_N, BLOCK_D, TAIL_D, BLOCK_V, DESCRIPTOR, EVEN_D, EVEN_V, EVEN_N, False,
            HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_BIAS, HAS_ALIBI, HAS_DROPOUT, FP8_MAX, SCALE_ROWS, WIDE, BLOCK_M, BLOCK_K,
            SUMS
        )  # fmt: skip
    if HAS_RIGHT or not EVEN_N or ONE_WALK:
        acc_MV, sums, m_M = _walk(
            acc_MV, sums, m_M, q_MD, q_tail_M, q, offset_q, stride_qs, k, k_tail, v, offset_k, offset_v, stride_ks,
            stride_vs, columns_k, columns_v, end_qk, full_high, high, m0, i_M, sq, sk, shift, left, right, scale,
            softcap, bias_head, stride_bias_m, stride_bias_n, slope, seed, offset, batch * heads + head, threshold,
            scale_q_M, scale_k, scale_v,
            BLOCK_N, BLOCK_D, TAIL_D, BLOCK_V, DESCRIPTOR, EVEN_D, EVEN_V, EVEN_N, True,
            HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_BIAS, HAS_ALIBI, HAS_DROPOUT, FP8_MAX, SCALE_ROWS, WIDE, BLOCK_M, BLOCK_K,
            SUMS
        )  # fmt: skip

    l_M = tl.sum(sums, 1) if SUMS > 1 else sums
    NATURAL: tl.constexpr = HAS_CAP or HAS_BIAS or HAS_ALIBI  # m_M is a score, else the logarithm of base 2
    TO_LOG2: tl.constexpr = LOG2E if NATURAL else 1.0
    if sink is not None:  # one more key, whose value is zero
        logit = tl.load(sink + head)
        if not NATURAL:
            logit *= LOG2E
        m_new = tl.maximum(m_M, logit)
        reference = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp2((m_M - reference) * TO_LOG2)
        acc_MV = acc_MV * alpha[:, None]
        l_M = l_M * alpha + tl.exp2((logit - reference) * TO_LOG2)
        m_M = m_new
    blind = l_M == 0.0
    l_M, m_M = tl.where(blind, 1.0, l_M), tl.where(blind, 0.0, m_M)
    acc_MV = acc_MV * (keep_scale / l_M)[:, None]
    if NATURAL:
        log_M = tl.log2(l_M) * LN2
        lse_M = m_M + log_M
        low_M = (m_M - lse_M) + log_M
    else:
        lse_M, low_M = two_numbers((m_M.to(tl.float64) + tl.log2(l_M).to(tl.float64)) * LN2)

    inside = i_M < sq
    at = batch.to(tl.int64) * stride_lse_b + head.to(tl.int64) * stride_lse_h + first_q + i_M
    tl.store(lse + at, tl.where(blind, float("-inf"), lse_M), inside)
    tl.store(lse_low + at, low_M, inside)
    offset_o = base_o + head.to(tl.int64) * stride_oh
    store_rows(acc_MV, out, offset_o, m0, stride_os, sq, width_v, BLOCK_M, BLOCK_V, 0, not EVEN_V)
