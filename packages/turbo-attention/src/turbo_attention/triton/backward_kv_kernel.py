# SPDX-License-Identifier: MIT
"""Attention backward: gradients of keys and values, and on request of the bias.

    dv_j = sum_i keep_ij p_ij do_i / (1 - dropout_p)      dk_j = softmax_scale sum_i dz_ij q_i        (calls.py)

One program is one tile of BLOCK_N keys of one key head. It walks over the queries of all heads of the group that see
any of its keys, BLOCK_M at a time, and recomputes p from q . k and lse (Dao et al. 2022). Score tiles are transposed,
[N, M], so that p and dz are left operands as they lie in registers. Sums have a fixed order: the same bits from run to
run. dq has a kernel of its own, which costs two products more a tile; adding shares of dq from here into memory (TMA
reduction on an H200, 2026-11-30) took 2.4 times as long as this kernel and 1.4 times as long as both.

q, do: [sequences, heads, sq, D or DV] by strides; k, v: likewise with key heads; norm and delta: `delta_kernel`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from turbo_attention.triton.stages import (
    aligned,
    corner,
    dropout_keep,
    exponents,
    load_rows,
    product_by_columns,
    sequence,
    store_rows,
    visible,
    work,
)

__all__ = ["backward_kv_kernel"]


@triton.jit
def _walk(
    dk_ND, dk_tail, dv_NV, k_ND, k_tail, v_NV, k, v, offset_k, offset_v, stride_ks, stride_vs, q, q_tail, do, norm,
    low_at, delta, dbias, offset_q, offset_do, stride_qs, stride_dos, width_q, width_do, end_q, end_do, begin, end,
    again, stop, n0, j_N, sq, sk, shift, left, right, scale, softcap, bias, stride_bias_m, stride_bias_n,
    stride_dbias_m, slope, seed, offset, head, threshold, keep_scale,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, TAIL_D: tl.constexpr, BLOCK_V: tl.constexpr,
    DESCRIPTOR: tl.constexpr, EVEN_D: tl.constexpr, EVEN_V: tl.constexpr, EVEN_M: tl.constexpr, MASKED: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_CAP: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_ALIBI: tl.constexpr, HAS_DROPOUT: tl.constexpr, WANT_DBIAS: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LOW: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Queries ``begin`` to ``end`` into the sums; MASKED: some pair in the tiles may be out of sight.

    MASKED goes on with ``again`` to ``stop``: one loop for both ends of what is seen, whose code would not fit twice.
    """
    MASK_ROWS: tl.constexpr = MASKED and not EVEN_M
    count = tl.cdiv(end - begin, BLOCK_M)
    tiles = count
    if MASKED:
        tiles += tl.cdiv(stop - again, BLOCK_M)
    for tile in tl.range(tiles):
        m = begin + tile * BLOCK_M
        if MASKED:
            m = tl.where(tile < count, m, again + (tile - count) * BLOCK_M)
        i_M = m + tl.arange(0, BLOCK_M)
        i, j = i_M[None, :], j_N[:, None]
        q_MD = load_rows(
            q, offset_q, m, stride_qs, sq, width_q, BLOCK_M, BLOCK_D, 0, DESCRIPTOR, MASK_ROWS,
            not EVEN_D and TAIL_D == 0, WIDE
        )  # fmt: skip
        q_tail_M = q_MD
        if TAIL_D > 0:
            q_tail_M = load_rows(
                q_tail, offset_q, m, stride_qs, sq, width_q, BLOCK_M, TAIL_D, BLOCK_D, DESCRIPTOR, MASK_ROWS,
                not EVEN_D, WIDE
            )  # fmt: skip
        if BLOCK_K > 0:
            raw = product_by_columns(
                k, offset_k, n0, stride_ks, sk, q, offset_q, m, stride_qs, sq, width_q, end_q, BLOCK_N, BLOCK_M,
                BLOCK_K, WIDE
            )  # fmt: skip
        else:
            raw = tl.dot(k_ND, q_MD.T, input_precision="ieee")
            if TAIL_D > 0:
                raw = tl.dot(k_tail, q_tail_M.T, raw, input_precision="ieee")
        if MASK_ROWS:
            high_M = tl.load(norm + i_M * STEP, mask=i_M < sq, other=float("inf"))
            delta_M = tl.load(delta + i_M, mask=i_M < sq, other=0.0)
        else:
            high_M = tl.load(norm + i_M * STEP)
            delta_M = tl.load(delta + i_M)
        exponent, tanh = exponents(
            raw, i, j, m, n0, high_M[None, :], sq, sk, shift, scale, softcap, bias, stride_bias_m, stride_bias_n, slope,
            HAS_CAP, HAS_BIAS, HAS_ALIBI
        )  # fmt: skip
        if LOW:
            if MASK_ROWS:
                low_M = tl.load(norm + i_M * STEP + low_at, mask=i_M < sq, other=0.0)
            else:
                low_M = tl.load(norm + i_M * STEP + low_at)
            exponent -= low_M[None, :]
        p = tl.exp2(exponent)
        if MASKED:
            p = tl.where(visible(i, j, sk, shift, left, right, HAS_LEFT, HAS_RIGHT), p, 0.0)
        p_NM = p.to(k_ND.dtype)  # half the registers while dp is computed; ds is rounded to this type in any case
        do_MV = load_rows(
            do, offset_do, m, stride_dos, sq, width_do, BLOCK_M, BLOCK_V, 0, DESCRIPTOR, MASK_ROWS, not EVEN_V, WIDE
        )  # fmt: skip
        if BLOCK_K > 0:
            dp = product_by_columns(
                v, offset_v, n0, stride_vs, sk, do, offset_do, m, stride_dos, sq, width_do, end_do, BLOCK_N,
                BLOCK_M, BLOCK_K, WIDE
            )  # fmt: skip
        else:
            dp = tl.dot(v_NV, do_MV.T, input_precision="ieee")
        if HAS_DROPOUT:
            keep = dropout_keep(seed, offset, i, j, head, threshold)
            dv_NV = tl.dot(tl.where(keep, p * keep_scale, 0.0).to(do_MV.dtype), do_MV, dv_NV, input_precision="ieee")
            dp = tl.where(keep, dp * keep_scale, 0.0)
        else:
            dv_NV = tl.dot(p_NM, do_MV, dv_NV, input_precision="ieee")
        ds = p_NM.to(tl.float32) * (dp - delta_M[None, :])
        if WANT_DBIAS:
            corner_at = dbias + tl.cast(m, tl.int64) * stride_dbias_m + n0
            pointers = corner_at + ((i - m) * stride_dbias_m + (j - n0))
            tl.store(pointers, ds.to(dbias.dtype.element_ty))
        if HAS_CAP:
            ds *= 1.0 - tanh * tanh
        dz = ds.to(q_MD.dtype)
        dk_ND = tl.dot(dz, q_MD, dk_ND, input_precision="ieee")
        if TAIL_D > 0:
            dk_tail = tl.dot(dz, q_tail_M, dk_tail, input_precision="ieee")
    return dk_ND, dk_tail, dv_NV


@triton.jit
def backward_kv_kernel(
    q, k, v, do, norm, far, delta, q_tail, k_tail, bias, dbias, alibi_slopes, rng, cu_seqlens_q, cu_seqlens_k,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
    stride_dob, stride_dos, stride_doh, dk, dv, stride_dkb, stride_dks, stride_dkh, stride_dvb, stride_dvs, stride_dvh,
    stride_lse_b, stride_lse_h, stride_bias_b, stride_bias_h, stride_bias_m, stride_bias_n,
    stride_dbias_b, stride_dbias_h, stride_dbias_m, stride_alibi_b, stride_alibi_h, low_at, far_tiles,
    heads, group, tiles, len_q, len_k, width_qk: tl.constexpr, width_v: tl.constexpr, end_qk, end_v, scale,
    softcap, left, right, threshold, keep_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TAIL_D: tl.constexpr, BLOCK_V: tl.constexpr,
    DESCRIPTOR: tl.constexpr, EVEN_D: tl.constexpr, EVEN_V: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_CAP: tl.constexpr, WANT_DBIAS: tl.constexpr,
    WIDE: tl.constexpr, XCDS: tl.constexpr, BLOCK_K: tl.constexpr, ALIGN: tl.constexpr, FAR_ROWS: tl.constexpr,
    FAR_TILES: tl.constexpr, LOW: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The grid is one program a tile of keys; ``tiles`` a head. dbias is padded to whole tiles, so needs no mask.

    STEP, low_at, far: `delta_kernel`. LOW: with the second number of a norm. It costs registers and changes p by less
    than its rounding where lse is not large, so it may be left to another launch: with ``far``, for the key heads that
    have a query that is far. FAR_TILES: flags that are looked at together.

    Order of arguments, tails: `forward_kernel`.
    """
    if not DESCRIPTOR:
        q_tail, k_tail = q, k
    if ALIGN > 1:
        stride_qb, stride_qs, stride_qh = aligned(stride_qb, stride_qs, stride_qh, ALIGN)
        stride_kb, stride_ks, stride_kh = aligned(stride_kb, stride_ks, stride_kh, ALIGN)
        stride_vb, stride_vs, stride_vh = aligned(stride_vb, stride_vs, stride_vh, ALIGN)
        stride_dob, stride_dos, stride_doh = aligned(stride_dob, stride_dos, stride_doh, ALIGN)
        stride_dkb, stride_dks, stride_dkh = aligned(stride_dkb, stride_dks, stride_dkh, ALIGN)
        stride_dvb, stride_dvs, stride_dvh = aligned(stride_dvb, stride_dvs, stride_dvh, ALIGN)
    HAS_BIAS: tl.constexpr = bias is not None
    HAS_ALIBI: tl.constexpr = alibi_slopes is not None
    HAS_DROPOUT: tl.constexpr = rng is not None
    ONE_WALK: tl.constexpr = HAS_BIAS or HAS_ALIBI or HAS_CAP or HAS_DROPOUT  # two copies of these run out of SGPRs
    # with a right bound the first tiles are seen by the most queries, and start first as they are
    batch, head_k, tile = work(tl.program_id(0), tl.num_programs(0), heads // group, tiles, XCDS)
    base_q, first_q, sq = sequence(cu_seqlens_q, batch, stride_qb, stride_qs, len_q)
    base_do, _, _ = sequence(cu_seqlens_q, batch, stride_dob, stride_dos, len_q)
    base_k, _, sk = sequence(cu_seqlens_k, batch, stride_kb, stride_ks, len_k)
    base_v, _, _ = sequence(cu_seqlens_k, batch, stride_vb, stride_vs, len_k)
    base_dk, _, _ = sequence(cu_seqlens_k, batch, stride_dkb, stride_dks, len_k)
    base_dv, _, _ = sequence(cu_seqlens_k, batch, stride_dvb, stride_dvs, len_k)
    n0 = tile * BLOCK_N
    if n0 >= sk:
        return
    if far is not None:
        flags = far + (batch * heads + head_k * group).to(tl.int64) * far_tiles
        found = 0
        for first in tl.range(0, group * far_tiles, FAR_TILES):
            at = first + tl.arange(0, FAR_TILES)
            written = (at < group * far_tiles) & (at % far_tiles * FAR_ROWS < sq)
            found = tl.maximum(found, tl.max(tl.load(flags + at, mask=written, other=0), 0))
        if found == 0:
            return
    head_k = head_k.to(tl.int64)
    offset_k, columns_k = corner(base_k + head_k * stride_kh, stride_ks, width_qk, DESCRIPTOR)
    offset_v, columns_v = corner(base_v + head_k * stride_vh, stride_vs, width_v, DESCRIPTOR)
    j_N = n0 + tl.arange(0, BLOCK_N)
    # what a descriptor reads past the last key stays in rows of dk and dv that are not stored
    MASK_KEYS: tl.constexpr = not EVEN_N and not DESCRIPTOR
    k_ND = load_rows(
        k, offset_k, n0, stride_ks, sk, columns_k, BLOCK_N, BLOCK_D, 0, DESCRIPTOR, MASK_KEYS,
        not EVEN_D and TAIL_D == 0, WIDE
    )  # fmt: skip
    k_tail_N = k_ND
    if TAIL_D > 0:
        k_tail_N = load_rows(
            k_tail, offset_k, n0, stride_ks, sk, columns_k, BLOCK_N, TAIL_D, BLOCK_D, DESCRIPTOR, MASK_KEYS,
            not EVEN_D, WIDE
        )  # fmt: skip
    v_NV = load_rows(
        v, offset_v, n0, stride_vs, sk, columns_v, BLOCK_N, BLOCK_V, 0, DESCRIPTOR, MASK_KEYS, not EVEN_V, WIDE
    )  # fmt: skip

    # queries that see any key of the tile: [low, high); that see all of them: [full_low, full_high)
    shift = sk - sq
    last = tl.minimum(n0 + BLOCK_N, sk) - 1
    low, high, full_low, full_high = 0, sq, 0, sq
    if HAS_RIGHT:
        low = tl.maximum(n0 - shift - right, 0) // BLOCK_M * BLOCK_M
        full_low = tl.cdiv(tl.maximum(last - shift - right, 0), BLOCK_M) * BLOCK_M
    if HAS_LEFT:
        high = tl.maximum(tl.minimum(sq, last - shift + left + 1), 0)
        full_high = tl.maximum(tl.minimum(sq, n0 - shift + left + 1), 0)
    full_low = tl.minimum(full_low, tl.cdiv(tl.maximum(high, low), BLOCK_M) * BLOCK_M)
    full_high = tl.maximum(full_high // BLOCK_M * BLOCK_M, full_low)
    if not EVEN_N:  # keys past the end are out of everybody's sight: the whole walk is the last, masked one
        partial = n0 + BLOCK_N > sk
        full_low = tl.where(partial, low, full_low)
        full_high = tl.where(partial, low, full_high)
    if ONE_WALK:
        full_low, full_high = low, low

    dk_ND = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dk_tail = tl.zeros((BLOCK_N, TAIL_D if TAIL_D > 0 else 1), tl.float32)
    dv_NV = tl.zeros((BLOCK_N, BLOCK_V), tl.float32)
    slope, seed, offset = 0.0, 0, 0
    if HAS_DROPOUT:
        seed, offset = tl.load(rng), tl.load(rng + 1)
    for member in range(group):
        head = head_k * group + member
        row = batch.to(tl.int64) * stride_lse_b + head * stride_lse_h + first_q
        offset_q, columns_q = corner(base_q + head * stride_qh, stride_qs, width_qk, DESCRIPTOR)
        offset_do, columns_do = corner(base_do + head * stride_doh, stride_dos, width_v, DESCRIPTOR)
        bias_head, dbias_head = bias, dbias
        if HAS_BIAS:
            bias_head = bias + batch.to(tl.int64) * stride_bias_b + head * stride_bias_h
        if WANT_DBIAS:
            dbias_head = dbias + batch.to(tl.int64) * stride_dbias_b + head * stride_dbias_h
        if HAS_ALIBI:
            slope = tl.load(alibi_slopes + batch * stride_alibi_b + head * stride_alibi_h)
        counter = (batch * heads + head).to(tl.int32)
        if HAS_RIGHT or HAS_LEFT or not EVEN_M or not EVEN_N or ONE_WALK:
            dk_ND, dk_tail, dv_NV = _walk(
                dk_ND, dk_tail, dv_NV, k_ND, k_tail_N, v_NV, k, v, offset_k, offset_v, stride_ks, stride_vs, q, q_tail,
                do, norm + row * STEP, low_at, delta + row, dbias_head, offset_q, offset_do, stride_qs, stride_dos,
                columns_q, columns_do, end_qk, end_v, low, full_low, full_high, high, n0, j_N, sq, sk, shift, left,
                right, scale, softcap, bias_head, stride_bias_m, stride_bias_n, stride_dbias_m, slope, seed, offset,
                counter, threshold, keep_scale,
                BLOCK_M, BLOCK_D, TAIL_D, BLOCK_V, DESCRIPTOR, EVEN_D, EVEN_V, EVEN_M, True, HAS_LEFT, HAS_RIGHT,
                HAS_CAP, HAS_BIAS, HAS_ALIBI, HAS_DROPOUT, WANT_DBIAS, WIDE, BLOCK_N, BLOCK_K, LOW, STEP
            )  # fmt: skip
        if not ONE_WALK:
            dk_ND, dk_tail, dv_NV = _walk(
                dk_ND, dk_tail, dv_NV, k_ND, k_tail_N, v_NV, k, v, offset_k, offset_v, stride_ks, stride_vs, q, q_tail,
                do, norm + row * STEP, low_at, delta + row, dbias_head, offset_q, offset_do, stride_qs, stride_dos,
                columns_q, columns_do, end_qk, end_v, full_low, full_high, high, high, n0, j_N, sq, sk, shift, left,
                right, scale, softcap, bias_head, stride_bias_m, stride_bias_n, stride_dbias_m, slope, seed, offset,
                counter, threshold, keep_scale,
                BLOCK_M, BLOCK_D, TAIL_D, BLOCK_V, DESCRIPTOR, EVEN_D, EVEN_V, EVEN_M, False, HAS_LEFT, HAS_RIGHT,
                HAS_CAP, HAS_BIAS, HAS_ALIBI, HAS_DROPOUT, WANT_DBIAS, WIDE, BLOCK_N, BLOCK_K, LOW, STEP
            )  # fmt: skip

    offset_dk, offset_dv = base_dk + head_k * stride_dkh, base_dv + head_k * stride_dvh
    store_rows(
        dk_ND * scale, dk, offset_dk, n0, stride_dks, sk, width_qk, BLOCK_N, BLOCK_D, 0, not EVEN_D and TAIL_D == 0
    )  # fmt: skip
    if TAIL_D > 0:
        store_rows(dk_tail * scale, dk, offset_dk, n0, stride_dks, sk, width_qk, BLOCK_N, TAIL_D, BLOCK_D, not EVEN_D)
    store_rows(dv_NV, dv, offset_dv, n0, stride_dvs, sk, width_v, BLOCK_N, BLOCK_V, 0, not EVEN_V)
