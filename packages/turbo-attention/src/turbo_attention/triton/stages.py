# SPDX-License-Identifier: MIT
"""Stages that the forward and the backward kernels share: where a sequence lies, rows of a tensor, scores, dropout.

Suffixes: M queries of a tile, N keys of a tile, D columns of q and k, V columns of v. A score tile is [M,N] or, with
``transposed`` operands, [N,M]; ``i`` and ``j`` are then indices of queries and keys that broadcast to it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from turbo_core.triton.order import xcd_order

__all__ = [
    "aligned",
    "capped",
    "corner",
    "dropout_keep",
    "exponents",
    "key_ranges",
    "load_rows",
    "position",
    "product_by_columns",
    "row_sums",
    "sequence",
    "store_rows",
    "two_numbers",
    "visible",
    "work",
]

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def work(program, programs, heads, tiles, XCDS: tl.constexpr):
    """Sequence, head and tile of a program. Each XCD gets heads of its own to share."""
    if XCDS > 1:
        program = xcd_order(program, programs, XCDS)
    head = program // tiles
    return head // heads, head % heads, program % tiles


@triton.jit
def aligned(stride_b, stride_s, stride_h, ALIGN: tl.constexpr):
    """The strides, which are multiples of ALIGN, so that the compiler sees it: else it loads element by element."""
    return stride_b // ALIGN * ALIGN, stride_s // ALIGN * ALIGN, stride_h // ALIGN * ALIGN


@triton.jit
def sequence(cu_seqlens, batch, stride_b, stride_s, length):
    """Offset of a sequence's first element, its first row and its length.

    ``cu_seqlens`` None: a dense batch of sequences of ``length``. Else ``length`` is that of all of them, and bounds
    what is read of cu_seqlens: no value leads out of the tensors.
    """
    if cu_seqlens is None:
        base = batch.to(tl.int64) * stride_b
        first = 0
    else:
        first = tl.minimum(tl.maximum(tl.load(cu_seqlens + batch), 0), length)
        base = first.to(tl.int64) * stride_s
        length = tl.maximum(tl.minimum(tl.load(cu_seqlens + batch + 1), length) - first, 0)
    return base, first, length


@triton.jit
def load_rows(
    source, offset, first, stride, row_limit, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, COLUMN: tl.constexpr,
    DESCRIPTOR: tl.constexpr, MASK_ROWS: tl.constexpr, MASK_COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """ROWS rows from ``first`` on, zeros from ``row_limit`` on, of a [rows, width] matrix, from column COLUMN on.

    Through a descriptor, ``offset`` is the matrix's first row in the descriptor's and ``width`` its first column there;
    what lies behind the matrix is then read, and set to zero only with MASK_ROWS. Through pointers, the corner is one
    64-bit scalar and offsets inside the block are 32-bit (half the registers) unless WIDE.
    """
    row = tl.arange(0, ROWS)
    if DESCRIPTOR:
        block = source.load([offset + first, width + COLUMN])
        if MASK_ROWS:
            block = tl.where((first + row < row_limit)[:, None], block, 0.0)
    else:
        column = COLUMN + tl.arange(0, COLUMNS)
        row_offset = row.to(tl.int64) * stride if WIDE else row * stride
        pointers = source + (offset + tl.cast(first, tl.int64) * stride) + (row_offset[:, None] + column[None, :])
        if MASK_ROWS and MASK_COLUMNS:
            block = tl.load(pointers, mask=(first + row < row_limit)[:, None] & (column < width)[None, :], other=0.0)
        elif MASK_ROWS:
            block = tl.load(pointers, mask=(first + row < row_limit)[:, None], other=0.0)
        elif MASK_COLUMNS:
            block = tl.load(pointers, mask=(column < width)[None, :], other=0.0)
        else:
            block = tl.load(pointers)
    return block


@triton.jit
def product_by_columns(
    a, offset_a, first_a, stride_a, limit_a, b, offset_b, first_b, stride_b, limit_b, width, end,
    ROWS_A: tl.constexpr, ROWS_B: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """a . b^T of two tiles of rows in memory (`load_rows`), BLOCK_K of ``width`` columns in registers at a time.

    Rows from the limit on are copies of the last one, no zeros: each mask would take two of AMD's scalar registers, and
    their scores count for nothing. ``end`` is ``width`` at run time: with a constant the loop would be unrolled, and
    all be in registers again.
    """
    row_a = tl.minimum(tl.arange(0, ROWS_A), limit_a - 1 - first_a)
    row_b = tl.minimum(tl.arange(0, ROWS_B), limit_b - 1 - first_b)
    if WIDE:
        row_a, row_b = row_a.to(tl.int64), row_b.to(tl.int64)
    a_A = a + (offset_a + tl.cast(first_a, tl.int64) * stride_a) + (row_a * stride_a)[:, None]
    b_B = b + (offset_b + tl.cast(first_b, tl.int64) * stride_b) + (row_b * stride_b)[:, None]
    sums = tl.zeros((ROWS_A, ROWS_B), tl.float32)
    for first in tl.range(0, end, BLOCK_K):
        column = (first + tl.arange(0, BLOCK_K))[None, :]
        if width % BLOCK_K == 0:
            a_AP, b_BP = tl.load(a_A + column), tl.load(b_B + column)
        else:
            a_AP = tl.load(a_A + column, mask=column < width, other=0.0)
            b_BP = tl.load(b_B + column, mask=column < width, other=0.0)
        sums = tl.dot(a_AP, b_BP.T, sums, input_precision="ieee")
    return sums


@triton.jit
def store_rows(
    block, target, offset, first, stride, row_limit, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, COLUMN: tl.constexpr, MASK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The inverse of `load_rows` through pointers: rows below ``row_limit`` and columns below ``width`` are written."""
    row = tl.arange(0, ROWS)
    column = COLUMN + tl.arange(0, COLUMNS)
    pointers = (
        target + (offset + tl.cast(first, tl.int64) * stride) + row.to(tl.int64)[:, None] * stride + column[None, :]
    )
    inside = (first + row < row_limit)[:, None]
    if MASK_COLUMNS:
        inside = inside & (column < width)[None, :]
    tl.store(pointers, block.to(target.dtype.element_ty), mask=inside)


@triton.jit
def corner(flat, stride, width, DESCRIPTOR: tl.constexpr):
    """(offset, width) of `load_rows` for the matrix whose first element is element ``flat`` of its tensor."""
    if DESCRIPTOR:
        offset = (flat // stride).to(tl.int32)
        width = (flat % stride).to(tl.int32)
    else:
        offset = flat
    return offset, width


@triton.jit
def visible(i, j, sk, shift, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """Whether query i sees key j."""
    seen = j < sk
    if HAS_LEFT:
        seen = seen & (j >= i + shift - left)
    if HAS_RIGHT:
        seen = seen & (j <= i + shift + right)
    return seen


@triton.jit
def capped(s, scale, softcap, HAS_CAP: tl.constexpr):
    """scale * s, capped; and tanh(scale * s / softcap) where there is a cap (else the same)."""
    s = s * scale
    tanh = s
    if HAS_CAP:  # tanh(x) = 1 - 2 / (exp(2 x) + 1): no branch, and right at both ends
        tanh = 1.0 - 2.0 / (tl.exp2(s * (2.0 * LOG2E / softcap)) + 1.0)
        s = softcap * tanh
    return s, tanh


@triton.jit
def position(
    s, i, j, first_i, first_j, bias, stride_bias_m, stride_bias_n, slope, sq, sk, shift, HAS_BIAS: tl.constexpr,
    HAS_ALIBI: tl.constexpr
):  # fmt: skip
    """s + bias_ij - slope * |i + shift - j|; ``bias`` points at this head's [sq, sk].

    The corner of the tile, (first_i, first_j), is one 64-bit scalar; offsets inside it are 32-bit. Pairs past the end
    get the bias of the last row or column, no mask: their scores count for nothing.
    """
    if HAS_BIAS:
        corner_at = bias + tl.cast(first_i, tl.int64) * stride_bias_m + tl.cast(first_j, tl.int64) * stride_bias_n
        row, column = tl.minimum(i, sq - 1) - first_i, tl.minimum(j, sk - 1) - first_j
        s += tl.load(corner_at + (row * stride_bias_m + column * stride_bias_n)).to(tl.float32)
    if HAS_ALIBI:
        s -= slope * tl.abs(i + shift - j).to(tl.float32)
    return s


@triton.jit
def dropout_keep(seed, offset, i, j, head, threshold):
    """Which scores are kept; see calls.py."""
    zero = i * 0 + j * 0
    word, _, _, _ = tl.philox(seed, j + zero, i + zero, head + zero, offset.to(tl.int32) + zero)
    return (word.to(tl.uint32) >> 8) >= threshold.to(tl.uint32)


@triton.jit
def two_numbers(x):
    """A float64 as two float32: the nearest, and what is left."""
    high = x.to(tl.float32)
    return high, (x - high.to(tl.float64)).to(tl.float32)


@triton.jit
def row_sums(p, COLUMNS: tl.constexpr):
    """Sums of p's rows: whole ones, or of each as many as COLUMNS, of every COLUMNS-th column."""
    if COLUMNS > 1:
        return tl.sum(tl.reshape(p, [p.shape[0], p.shape[1] // COLUMNS, COLUMNS]), 1)
    else:
        return tl.sum(p, 1)


@triton.jit
def exponents(
    raw, i, j, first_i, first_j, high, sq, sk, shift, scale, softcap, bias, stride_bias_m, stride_bias_n, slope,
    HAS_CAP: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ALIBI: tl.constexpr,
):  # fmt: skip
    """log2(e) s - high of raw products q . k, for the backward, and what `capped` gives beside the capped score.

    p is exp2 of it, less the second number of `delta_kernel`. Scores that are rounded already are subtracted before
    they are multiplied: a bias of -1e9, or of the least float32, on all keys of a query is then gone, and nothing
    overflows. Raw products are multiplied by what gives log2(e) s and lessened by ``high`` in one rounding.
    """
    if HAS_CAP or HAS_BIAS or HAS_ALIBI:
        s, tanh = capped(raw, scale, softcap, HAS_CAP)
        s = position(
            s, i, j, first_i, first_j, bias, stride_bias_m, stride_bias_n, slope, sq, sk, shift, HAS_BIAS, HAS_ALIBI
        )  # fmt: skip
        exponent = (s - high) * LOG2E
    else:
        tanh = raw
        exponent = raw * (scale * LOG2E) - high
    return exponent, tanh


@triton.jit
def key_ranges(
    m0, sq, sk, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, ONE_WALK: tl.constexpr
):  # fmt: skip
    """Keys of the tile of queries at ``m0``: any sees [low, high), every one sees [full_low, full_high).

    low, full_low and full_high are multiples of BLOCK_N, low <= full_low <= full_high. ONE_WALK: all three are low.
    """
    shift = sk - sq
    last = tl.minimum(m0 + BLOCK_M, sq) - 1
    low, high, full_low, full_high = 0, sk, 0, sk
    if HAS_RIGHT:
        high = tl.maximum(tl.minimum(sk, last + shift + right + 1), 0)
        full_high = tl.maximum(tl.minimum(sk, m0 + shift + right + 1), 0)
    if HAS_LEFT:
        low = tl.maximum(m0 + shift - left, 0) // BLOCK_N * BLOCK_N
        full_low = tl.cdiv(tl.maximum(last + shift - left, 0), BLOCK_N) * BLOCK_N
        full_low = tl.minimum(full_low, tl.cdiv(tl.maximum(high, low), BLOCK_N) * BLOCK_N)
    full_high = tl.maximum(full_high // BLOCK_N * BLOCK_N, full_low)
    if ONE_WALK:
        full_low, full_high = low, low
    return low, full_low, full_high, high
