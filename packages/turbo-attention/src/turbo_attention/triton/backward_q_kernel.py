# SPDX-License-Identifier: MIT
"""Attention backward: what both passes over the scores need first, and the gradient of queries.

    delta_i = do_i . o_i - dlse_i
    dq_i    = softmax_scale sum_j dz_ij k_j                            (calls.py)
    dsink_i = - exp(sink - lse_i) sum_j p_ij dp_ij                     to be summed over i; without what dlse_i adds

One program of `backward_q_kernel` is one tile of BLOCK_M queries of one head; it walks over keys as the forward does.
Its sums have a fixed order: the same bits from run to run. dsink's sum over j is do_i . o_i of an o that was not
rounded: a sink's gradient is a sum over all queries, of both signs, and a thousandth of each is no thousandth of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from turbo_attention.triton.stages import (
    LOG2E,
    aligned,
    corner,
    dropout_keep,
    exponents,
    key_ranges,
    load_rows,
    product_by_columns,
    row_sums,
    sequence,
    store_rows,
    two_numbers,
    visible,
    work,
)

__all__ = ["backward_q_kernel", "delta_kernel"]


@triton.jit
def delta_kernel(
    out, do, dlse, lse, lse_low, delta, norm, far, cu_seqlens_q,
    stride_ob, stride_os, stride_oh, stride_dob, stride_dos, stride_doh, stride_lse_b, stride_lse_h,
    stride_dlse_b, stride_dlse_h, stride_dlse_s, low_at, heads, tiles, len_q, width_v: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, WIDE: tl.constexpr, ALIGN: tl.constexpr, NATURAL: tl.constexpr,
    FAR: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """delta as above, and lse + lse_low as `stages.probabilities` subtracts it, +inf where a query sees nothing.

    norm: two numbers a query, whose sum is (lse + lse_low) log2(e); NATURAL: lse, and lse_low log2(e). The first is
    STEP elements behind the last query's, the second ``low_at`` behind the first.
    far: int32 [sequences, heads, tiles], or None: whether some first number of the tile is not below FAR.
    out, do: [sequences, heads, sq, DV] by strides. The others: float32 [.., heads, sq], dlse by strides of its own.
    """
    if ALIGN > 1:
        stride_ob, stride_os, stride_oh = aligned(stride_ob, stride_os, stride_oh, ALIGN)
        stride_dob, stride_dos, stride_doh = aligned(stride_dob, stride_dos, stride_doh, ALIGN)
    MASK_COLUMNS: tl.constexpr = width_v < BLOCK_V
    batch, head, tile = work(tl.program_id(0), tl.num_programs(0), heads, tiles, 1)
    base_o, first, sq = sequence(cu_seqlens_q, batch, stride_ob, stride_os, len_q)
    base_do, _, _ = sequence(cu_seqlens_q, batch, stride_dob, stride_dos, len_q)
    m0 = tile * BLOCK_M
    if m0 >= sq:
        return
    head64, batch64 = head.to(tl.int64), batch.to(tl.int64)
    o_MV = load_rows(
        out, base_o + head64 * stride_oh, m0, stride_os, sq, width_v, BLOCK_M, BLOCK_V, 0, False, True, MASK_COLUMNS,
        WIDE
    )  # fmt: skip
    do_MV = load_rows(
        do, base_do + head64 * stride_doh, m0, stride_dos, sq, width_v, BLOCK_M, BLOCK_V, 0, False, True, MASK_COLUMNS,
        WIDE
    )  # fmt: skip
    sums = tl.sum(o_MV.to(tl.float32) * do_MV.to(tl.float32), 1)
    i_M = m0 + tl.arange(0, BLOCK_M)
    inside = i_M < sq
    if dlse is not None:
        row = batch64 * stride_dlse_b + head64 * stride_dlse_h + (first + i_M).to(tl.int64) * stride_dlse_s
        sums -= tl.load(dlse + row, mask=inside, other=0.0)
    at = batch64 * stride_lse_b + head64 * stride_lse_h + first + i_M
    lse_M = tl.load(lse + at, mask=inside, other=0.0)
    rest_M = tl.load(lse_low + at, mask=inside, other=0.0)
    blind = lse_M == float("-inf")
    lse_M = tl.where(blind, 0.0, lse_M)
    if NATURAL:
        high_M, low_M = lse_M, rest_M * LOG2E
    else:
        high_M, low_M = two_numbers((lse_M.to(tl.float64) + rest_M.to(tl.float64)) * LOG2E)
    tl.store(delta + at, sums, inside)
    tl.store(norm + at * STEP, tl.where(blind, float("inf"), high_M), inside)
    tl.store(norm + at * STEP + low_at, low_M, inside)
    if far is not None:
        tl.store(far + tl.program_id(0), tl.max((tl.abs(high_M) >= FAR).to(tl.int32), 0))


@triton.jit
def _walk(
    dq_MD, dq_tail, pdp, q_MD, q_tail, do_MV, q, do, offset_q, offset_do, stride_qs, stride_dos, high_M, weight_M,
    delta_M, k, k_tail, v, offset_k, offset_v, stride_ks, stride_vs, width_k, width_v, end_k, end_v, begin, end, m0,
    i_M, sq, sk, shift, left, right, scale, softcap, bias, stride_bias_m, stride_bias_n, slope, seed, offset, head,
    threshold, keep_scale,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TAIL_D: tl.constexpr, BLOCK_V: tl.constexpr,
    DESCRIPTOR: tl.constexpr, EVEN_D: tl.constexpr, EVEN_V: tl.constexpr, EVEN_N: tl.constexpr, MASKED: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_CAP: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ALIBI: tl.constexpr, HAS_DROPOUT: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Keys ``begin`` to ``end`` into the sums; MASKED: some pair in the tiles may be out of sight."""
    MASK_ROWS: tl.constexpr = MASKED and not EVEN_N
    for n in tl.range(begin, end, BLOCK_N):
        j_N = n + tl.arange(0, BLOCK_N)
        i, j = i_M[:, None], j_N[None, :]
        k_ND = load_rows(
            k, offset_k, n, stride_ks, sk, width_k, BLOCK_N, BLOCK_D, 0, DESCRIPTOR, MASK_ROWS,
            not EVEN_D and TAIL_D == 0, WIDE
        )  # fmt: skip
        k_tail_N = k_ND
        if TAIL_D > 0:
            k_tail_N = load_rows(
                k_tail, offset_k, n, stride_ks, sk, width_k, BLOCK_N, TAIL_D, BLOCK_D, DESCRIPTOR, MASK_ROWS,
                not EVEN_D, WIDE
            )  # fmt: skip
        if BLOCK_K > 0:
            raw = product_by_columns(
                q, offset_q, m0, stride_qs, sq, k, offset_k, n, stride_ks, sk, width_k, end_k, BLOCK_M, BLOCK_N,
                BLOCK_K, WIDE
            )  # fmt: skip
        else:
            raw = tl.dot(q_MD, k_ND.T, input_precision="ieee")
            if TAIL_D > 0:
                raw = tl.dot(q_tail, k_tail_N.T, raw, input_precision="ieee")
        exponent, tanh = exponents(
            raw, i, j, m0, n, high_M[:, None], sq, sk, shift, scale, softcap, bias, stride_bias_m, stride_bias_n, slope,
            HAS_CAP, HAS_BIAS, HAS_ALIBI
        )  # fmt: skip
        p = tl.exp2(exponent)  # times weight_M, which joins the subtraction of delta
        if BLOCK_K > 0:
            dp = product_by_columns(
                do, offset_do, m0, stride_dos, sq, v, offset_v, n, stride_vs, sk, width_v, end_v, BLOCK_M,
                BLOCK_N, BLOCK_K, WIDE
            )  # fmt: skip
        else:
            v_NV = load_rows(
                v, offset_v, n, stride_vs, sk, width_v, BLOCK_N, BLOCK_V, 0, DESCRIPTOR, MASK_ROWS and not DESCRIPTOR,
                not EVEN_V, WIDE
            )  # fmt: skip
            dp = tl.dot(do_MV, v_NV.T, input_precision="ieee")
        if HAS_DROPOUT:
            dp = tl.where(dropout_keep(seed, offset, i, j, head, threshold), dp * keep_scale, 0.0)
        ds = p * (dp * weight_M[:, None] - delta_M[:, None])
        if SUMS > 0:
            shares = p * dp
            if MASKED:
                shares = tl.where(visible(i, j, sk, shift, left, right, HAS_LEFT, HAS_RIGHT), shares, 0.0)
            pdp += row_sums(shares, SUMS)
        if HAS_CAP:
            ds *= 1.0 - tanh * tanh
        if MASKED:
            ds = tl.where(visible(i, j, sk, shift, left, right, HAS_LEFT, HAS_RIGHT), ds, 0.0)
        dz = ds.to(k_ND.dtype)
        dq_MD = tl.dot(dz, k_ND, dq_MD, input_precision="ieee")
        if TAIL_D > 0:
            dq_tail = tl.dot(dz, k_tail_N, dq_tail, input_precision="ieee")
    return dq_MD, dq_tail, pdp


@triton.jit
def backward_q_kernel(
    q, k, v, do, q_tail, k_tail, bias, alibi_slopes, rng, cu_seqlens_q, cu_seqlens_k, norm, delta,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
    stride_dob, stride_dos, stride_doh, dq, sink, dsink, stride_dqb, stride_dqs, stride_dqh, stride_lse_b, stride_lse_h,
    stride_bias_b, stride_bias_h, stride_bias_m, stride_bias_n, stride_alibi_b, stride_alibi_h,
    low_at, heads, group, tiles, len_q, len_k, width_qk: tl.constexpr, width_v: tl.constexpr, end_qk, end_v,
    scale, softcap, left, right, threshold, keep_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TAIL_D: tl.constexpr, BLOCK_V: tl.constexpr,
    DESCRIPTOR: tl.constexpr, EVEN_D: tl.constexpr, EVEN_V: tl.constexpr, EVEN_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_CAP: tl.constexpr, WIDE: tl.constexpr,
    XCDS: tl.constexpr, BLOCK_K: tl.constexpr, ALIGN: tl.constexpr, SUMS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The grid is one program a tile of queries; ``tiles`` a head. Order of arguments, tails: `forward_kernel`.

    dsink: float32 of delta's layout; SUMS: as in `forward_kernel`, 0 where there is no sink.
    """
    if not DESCRIPTOR:
        q_tail, k_tail = q, k
    if ALIGN > 1:
        stride_qb, stride_qs, stride_qh = aligned(stride_qb, stride_qs, stride_qh, ALIGN)
        stride_kb, stride_ks, stride_kh = aligned(stride_kb, stride_ks, stride_kh, ALIGN)
        stride_vb, stride_vs, stride_vh = aligned(stride_vb, stride_vs, stride_vh, ALIGN)
        stride_dob, stride_dos, stride_doh = aligned(stride_dob, stride_dos, stride_doh, ALIGN)
        stride_dqb, stride_dqs, stride_dqh = aligned(stride_dqb, stride_dqs, stride_dqh, ALIGN)
    HAS_BIAS: tl.constexpr = bias is not None
    HAS_ALIBI: tl.constexpr = alibi_slopes is not None
    HAS_DROPOUT: tl.constexpr = rng is not None
    ONE_WALK: tl.constexpr = HAS_BIAS or HAS_ALIBI or HAS_CAP or HAS_DROPOUT  # three copies of these run out of SGPRs
    batch, head, tile = work(tl.program_id(0), tl.num_programs(0), heads, tiles, XCDS)
    if HAS_RIGHT:
        tile = tiles - 1 - tile  # the last tiles have the most keys: they start first
    base_q, first_q, sq = sequence(cu_seqlens_q, batch, stride_qb, stride_qs, len_q)
    base_do, _, _ = sequence(cu_seqlens_q, batch, stride_dob, stride_dos, len_q)
    base_dq, _, _ = sequence(cu_seqlens_q, batch, stride_dqb, stride_dqs, len_q)
    base_k, _, sk = sequence(cu_seqlens_k, batch, stride_kb, stride_ks, len_k)
    base_v, _, _ = sequence(cu_seqlens_k, batch, stride_vb, stride_vs, len_k)
    m0 = tile * BLOCK_M
    if m0 >= sq:
        return
    head64, head_k = head.to(tl.int64), (head // group).to(tl.int64)
    offset_q, columns_q = corner(base_q + head64 * stride_qh, stride_qs, width_qk, DESCRIPTOR)
    offset_do, columns_do = corner(base_do + head64 * stride_doh, stride_dos, width_v, DESCRIPTOR)
    offset_k, columns_k = corner(base_k + head_k * stride_kh, stride_ks, width_qk, DESCRIPTOR)
    offset_v, columns_v = corner(base_v + head_k * stride_vh, stride_vs, width_v, DESCRIPTOR)
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
    do_MV = load_rows(
        do, offset_do, m0, stride_dos, sq, columns_do, BLOCK_M, BLOCK_V, 0, DESCRIPTOR, not DESCRIPTOR, not EVEN_V,
        WIDE
    )  # fmt: skip
    i_M = m0 + tl.arange(0, BLOCK_M)
    at = batch.to(tl.int64) * stride_lse_b + head64 * stride_lse_h + first_q + i_M
    high_M = tl.load(norm + at * STEP, mask=i_M < sq, other=float("inf"))
    weight_M = tl.exp2(-tl.load(norm + at * STEP + low_at, mask=i_M < sq, other=0.0))
    delta_M = tl.load(delta + at, mask=i_M < sq, other=0.0) * weight_M
    bias_head, slope, seed, offset = bias, 0.0, 0, 0
    if HAS_BIAS:
        bias_head = bias + batch.to(tl.int64) * stride_bias_b + head64 * stride_bias_h
    if HAS_ALIBI:
        slope = tl.load(alibi_slopes + batch * stride_alibi_b + head * stride_alibi_h)
    if HAS_DROPOUT:
        seed, offset = tl.load(rng), tl.load(rng + 1)

    shift = sk - sq
    low, full_low, full_high, high = key_ranges(
        m0, sq, sk, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, ONE_WALK
    )  # fmt: skip
    counter = batch * heads + head
    dq_MD = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    dq_tail = tl.zeros((BLOCK_M, TAIL_D if TAIL_D > 0 else 1), tl.float32)
    pdp = tl.zeros((BLOCK_M, SUMS) if SUMS > 1 else (BLOCK_M,), tl.float32)
    if HAS_LEFT and not ONE_WALK:
        dq_MD, dq_tail, pdp = _walk(
            dq_MD, dq_tail, pdp, q_MD, q_tail_M, do_MV, q, do, offset_q, offset_do, stride_qs, stride_dos, high_M,
            weight_M, delta_M, k, k_tail, v, offset_k, offset_v, stride_ks, stride_vs, columns_k, columns_v, end_qk,
            end_v, low, full_low, m0, i_M, sq, sk, shift, left, right, scale, softcap, bias_head, stride_bias_m,
            stride_bias_n, slope, seed, offset, counter, threshold, keep_scale,
            BLOCK_N, BLOCK_D, TAIL_D, BLOCK_V, DESCRIPTOR, EVEN_D, EVEN_V, EVEN_N, True,
            HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_BIAS, HAS_ALIBI, HAS_DROPOUT, WIDE, BLOCK_M, BLOCK_K, SUMS
        )  # fmt: skip
    if not ONE_WALK:
        dq_MD, dq_tail, pdp = _walk(
            dq_MD, dq_tail, pdp, q_MD, q_tail_M, do_MV, q, do, offset_q, offset_do, stride_qs, stride_dos, high_M,
            weight_M, delta_M, k, k_tail, v, offset_k, offset_v, stride_ks, stride_vs, columns_k, columns_v, end_qk,
            end_v, full_low, full_high, m0, i_M, sq, sk, shift, left, right, scale, softcap, bias_head, stride_bias_m,
            stride_bias_n, slope, seed, offset, counter, threshold, keep_scale,
            BLOCK_N, BLOCK_D, TAIL_D, BLOCK_V, DESCRIPTOR, EVEN_D, EVEN_V, EVEN_N, False,
            HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_BIAS, HAS_ALIBI, HAS_DROPOUT, WIDE, BLOCK_M, BLOCK_K, SUMS
        )  # fmt: skip
    if HAS_RIGHT or not EVEN_N or ONE_WALK:
        dq_MD, dq_tail, pdp = _walk(
            dq_MD, dq_tail, pdp, q_MD, q_tail_M, do_MV, q, do, offset_q, offset_do, stride_qs, stride_dos, high_M,
            weight_M, delta_M, k, k_tail, v, offset_k, offset_v, stride_ks, stride_vs, columns_k, columns_v, end_qk,
            end_v, full_high, high, m0, i_M, sq, sk, shift, left, right, scale, softcap, bias_head, stride_bias_m,
            stride_bias_n, slope, seed, offset, counter, threshold, keep_scale,
            BLOCK_N, BLOCK_D, TAIL_D, BLOCK_V, DESCRIPTOR, EVEN_D, EVEN_V, EVEN_N, True,
            HAS_LEFT, HAS_RIGHT, HAS_CAP, HAS_BIAS, HAS_ALIBI, HAS_DROPOUT, WIDE, BLOCK_M, BLOCK_K, SUMS
        )  # fmt: skip
    if SUMS > 0:
        logit = tl.load(sink + head)
        if HAS_CAP or HAS_BIAS or HAS_ALIBI:
            exponent = (logit - high_M) * LOG2E
        else:
            exponent = logit * LOG2E - high_M
        total_M = (tl.sum(pdp, 1) if SUMS > 1 else pdp) * weight_M
        tl.store(dsink + at, -tl.exp2(exponent) * weight_M * total_M, i_M < sq)
    offset_dq = base_dq + head64 * stride_dqh
    store_rows(
        dq_MD * scale, dq, offset_dq, m0, stride_dqs, sq, width_qk, BLOCK_M, BLOCK_D, 0, not EVEN_D and TAIL_D == 0
    )  # fmt: skip
    if TAIL_D > 0:
        store_rows(dq_tail * scale, dq, offset_dq, m0, stride_dqs, sq, width_qk, BLOCK_M, TAIL_D, BLOCK_D, not EVEN_D)
