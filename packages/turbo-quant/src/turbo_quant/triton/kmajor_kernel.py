# SPDX-License-Identifier: MIT
"""Device code of FP8 quantisation into the orders in which matrix products read: x once, payloads both ways.

    amax = max |x| of a block     scale = largest / max(amax, floor)     q = round(x scale)     scale_inv = 1 / scale

Tensors: x [B,R,C] with any strides; payloads are the bits of the format: row uint8 [B,R,C], column transposed, [B,C,R],
both contiguous, as int32 words of four where R is a multiple of 16 (WORDS), else uint8. scale_inv float32, by KIND:

    tensor   one value                              maxima: int32 [row_chunks], of the tensor
    line     row [B,R], column [B,C]                maxima: int32 row [B,row_chunks,R], column [B,column_chunks,C]
    block    row [B,blocks_c,R], column [B,blocks_r,C]: blocks of 1 x P and P x 1
    tile     row [B,blocks_r,blocks_c]: blocks of P x P, for both payloads

Maxima (bits of |x|) come from a launch before: of `line_amax_kernel`, or of region_kernel.py for a tensor. All
arithmetic is float32, each step rounds once, and a maximum has no order: bit-equal from run to run and on all targets.

A program has BLOCK_R x BLOCK_C elements as four tiles: tile k has rows k, k + 4, k + 8, ... A lane's bytes of four
neighbouring rows are then one word of the column payload, made without another lane's help, and only words change
lanes on the way to memory.

Grouped (GROUPS > 0, B = 1): programs go by rows of padded groups (groups.py), BLOCK_R divides what groups are padded
to. The column payload has rows_out rows, a multiple of 128; KIND line has a column maximum for each group and column,
int32 [G,C], and its scales were written before. A row of no group counts as zeros: those past the last group are taken
by programs past it, those between groups by the last program of the group before. With idx_ptr the groups' rows are
those of x that it names, and there is no row payload. mark_ptr, without groups: uint8 [R], 0 for rows that count as
zeros.

A block that holds NaN or an infinity: payload zeros, scale_inv NaN.
"""

import triton
import triton.language as tl

from turbo_quant.triton.groups import group_rows, next_group
from turbo_quant.triton.rounding import (
    INFINITE,
    encode,
    float_scale,
    own_magnitude,
    widened_magnitude,
)

__all__ = ["joined_amax", "kmajor_groups_kernel", "kmajor_kernel", "line_amax_groups_kernel", "line_amax_kernel"]


@triton.jit
def _load(pointers, ok_r, ok_c, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(pointers, mask=ok_r[:, None] & ok_c[None, :], other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def _store(pointers, value, ok_r, ok_c, MASKED: tl.constexpr):
    if MASKED:
        tl.store(pointers, value, mask=ok_r[:, None] & ok_c[None, :])
    else:
        tl.store(pointers, value)


@triton.jit
def _named_rows(pointers, ok, R):
    """The rows that ``pointers`` name, and which of them there are."""
    row = tl.load(pointers, mask=ok, other=-1).to(tl.int64)
    return row, (row >= 0) & (row < R)


@triton.jit
def line_amax_kernel(
    x_ptr, row_amax_ptr, column_amax_ptr, offs_ptr, lens_ptr, padded_ptr, idx_ptr,
    R, C, chunks_r, chunks_c, height, stride_b, stride_r, stride_c, n_groups, rows,
    ROW: tl.constexpr, COLUMN: tl.constexpr, GROUPS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    MASKED: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Maxima of |x| of ``height`` rows (a multiple of BLOCK_R) and BLOCK_C columns: of its rows, of its columns.

    row_amax [B,chunks_c,R] and column_amax [B,chunks_r,C], int32. Grouped: ``height`` rows of padded groups, of which
    row_amax has those of x that belong to a group.
    """
    program = tl.program_id(0)
    chunk_c = program % chunks_c
    chunk_r = program // chunks_c % chunks_r
    b = (program // chunks_c // chunks_r).to(tl.int64)
    first_r, first_c = chunk_r.to(tl.int64) * height, chunk_c.to(tl.int64) * BLOCK_C
    i, j = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    ok_c = j < tl.minimum(C - first_c, BLOCK_C).to(tl.int32)
    left_r = R - first_r
    if GROUPS > 0:
        _, first_r, _, left_r = group_rows(first_r, offs_ptr, lens_ptr, padded_ptr, n_groups, rows, GROUPS)
    left_r = tl.maximum(tl.minimum(left_r, height), 0).to(tl.int32)
    if WIDE:
        at_r, at_c = i.to(tl.int64), j.to(tl.int64)
    else:
        at_r, at_c = i, j
    at = (at_r * stride_r)[:, None] + (at_c * stride_c)[None, :]
    source = x_ptr + b * stride_b + first_c * stride_c
    if idx_ptr is None:
        source += first_r * stride_r
    acc = own_magnitude(tl.zeros([BLOCK_R, BLOCK_C], x_ptr.dtype.element_ty))
    for r in tl.range(0, left_r, BLOCK_R, num_stages=STAGES):
        start = tl.full([], r, tl.int64)
        ok_r = i < left_r - r
        if idx_ptr is None:
            some = _load(source + start * stride_r + at, ok_r, ok_c, MASKED)
        else:
            named, counts = _named_rows(idx_ptr + first_r + start + i, ok_r, R)
            some = _load(source + ((named * stride_r)[:, None] + (at_c * stride_c)[None, :]), counts, ok_c, MASKED)
        m = own_magnitude(some)
        acc = tl.maximum(acc, m)
        if ROW:
            amax = widened_magnitude(tl.max(m, 1), x_ptr.dtype.element_ty)
            tl.store(row_amax_ptr + (b * chunks_c + chunk_c) * R + first_r + start + i, amax, mask=ok_r)
    if COLUMN:
        amax = widened_magnitude(tl.max(acc, 0), x_ptr.dtype.element_ty)
        tl.store(column_amax_ptr + (b * chunks_r + chunk_r) * C + first_c + j, amax, mask=ok_c)


# the same, not compiled anew for other numbers of rows
line_amax_groups_kernel = triton.jit(do_not_specialize=("R", "rows", "chunks_r"))(line_amax_kernel.fn)


@triton.jit
def joined_amax(amax_ptr, chunks, stride, at, ok, STEP: tl.constexpr):
    """The largest of the maxima that the chunks of a line have, for the lines ``at``."""
    which = tl.arange(0, STEP)
    amax = tl.zeros([at.shape[0]], tl.int32)
    for start in range(0, chunks, STEP):
        some = tl.load(
            amax_ptr + (start + which)[:, None] * stride + at[None, :],
            mask=(start + which < chunks)[:, None] & ok[None, :],
            other=0,
        )
        amax = tl.maximum(amax, tl.max(some, 0))
    return amax


@triton.jit
def _tensor_amax(amax_ptr, chunks, STEP: tl.constexpr):
    """The largest of the maxima that the chunks of a tensor have: [1,1]."""
    which = tl.arange(0, STEP)
    amax = tl.zeros([STEP], tl.int32)
    for start in range(0, chunks, STEP):
        amax = tl.maximum(amax, tl.load(amax_ptr + start + which, mask=start + which < chunks, other=0))
    return tl.max(amax, 0, keep_dims=True)[None, :]


@triton.jit
def _row_blocks(m, P: tl.constexpr):
    """[S,BLOCK_C] -> [S,BLOCK_C/P]: the largest of each P neighbours."""
    return tl.max(tl.reshape(m, [m.shape[0], m.shape[1] // P, P]), 2)


@triton.jit
def _column_blocks(m, P: tl.constexpr):
    """[S,BLOCK_C] -> [4 S/P,BLOCK_C]; every row of m stands for four."""
    return tl.max(tl.reshape(m, [4 * m.shape[0] // P, P // 4, m.shape[1]]), 1)


@triton.jit
def _codes(
    x, scale, finite, MANTISSA: tl.constexpr, LOWEST: tl.constexpr, FNUZ: tl.constexpr, NATIVE: tl.constexpr
):  # fmt: skip
    """Codes of a tile [S,N] whose scales are [1, blocks or S, 1, blocks or N]: neighbours share one."""
    NR: tl.constexpr = scale.shape[0]
    NC: tl.constexpr = scale.shape[1]
    parts = tl.reshape(x.to(tl.float32), [NR, x.shape[0] // NR, NC, x.shape[1] // NC])
    v = tl.where(finite[:, None, :, None], parts * scale[:, None, :, None], 0.0)
    return tl.reshape(encode(v, MANTISSA, LOWEST, FNUZ, NATIVE), [x.shape[0], x.shape[1]])


@triton.jit
def _load_rows(
    source, at, k: tl.constexpr, idx_ptr, mark_ptr, row, R, stride_r, stride_c, at_c, left_r, i, ok_c,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Tile k of x, and which of its rows, 4 i + k < left_r, count: those that are marked, or named by ``row``."""
    ok = 4 * i + k < left_r
    if mark_ptr is not None:
        ok = tl.load(mark_ptr + (row + k), mask=ok, other=0) != 0
    if idx_ptr is not None:
        named, ok = _named_rows(idx_ptr + (row + k), ok, R)
        return _load(source + ((named * stride_r)[:, None] + (at_c * stride_c)[None, :]), ok, ok_c, MASKED), ok
    else:
        return _load(source + k * stride_r + at, ok, ok_c, MASKED), ok


@triton.jit
def _clear_rows(
    row_ptr, row_scale_ptr, begin, end, i, first_c, ok_c, R, C, tile_c, blocks_c, largest, floor,
    KIND: tl.constexpr, P: tl.constexpr, BLOCK_C: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """The payload and scales of zeros for the columns of a tile of the rows ``begin`` to ``end`` - 1."""
    _, inverse = float_scale(tl.zeros([i.shape[0], 1], tl.int32), largest, floor, QUICK)
    code = tl.zeros([i.shape[0], BLOCK_C], tl.uint8)
    for start in range(begin, end, i.shape[0]):
        row = start + i.to(tl.int64)
        ok = row < end
        at = (row * C + first_c)[:, None] + tl.arange(0, BLOCK_C)[None, :]
        tl.store(row_ptr + at, code, mask=ok[:, None] & ok_c[None, :])
        if KIND == "line":
            first_block = tl.zeros([1], tl.int32) + tile_c == 0
            tl.store(row_scale_ptr + row[:, None], inverse, mask=ok[:, None] & first_block[None, :])
        elif KIND == "block":
            block_c = tile_c * (BLOCK_C // P) + tl.arange(0, BLOCK_C // P)[None, :]
            scale = inverse + tl.zeros([1, BLOCK_C // P], tl.float32)
            tl.store(
                row_scale_ptr + block_c.to(tl.int64) * R + row[:, None], scale, mask=ok[:, None] & (block_c < blocks_c)
            )


@triton.jit
def kmajor_kernel(
    x_ptr, row_ptr, row_scale_ptr, column_ptr, column_scale_ptr, row_amax_ptr, column_amax_ptr,
    offs_ptr, lens_ptr, padded_ptr, idx_ptr, mark_ptr,
    R, C, tiles_r, tiles_c, blocks_r, blocks_c, scale_stride_r, scale_stride_c, row_chunks, column_chunks,
    stride_b, stride_r, stride_c, n_groups, rows, rows_out, largest, floor,
    KIND: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr, GROUPS: tl.constexpr, P: tl.constexpr,
    STEP: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, WORDS: tl.constexpr, MASKED: tl.constexpr,
    WIDE: tl.constexpr, MANTISSA: tl.constexpr, LOWEST: tl.constexpr, FNUZ: tl.constexpr, NATIVE: tl.constexpr,
    QUICK: tl.constexpr, TWICE: tl.constexpr,
):  # fmt: skip
    """BLOCK_R x BLOCK_C elements, both multiples of P. STEP: maxima that are read at a time. QUICK: `float_scale`.

    rows: that the groups count. rows_out: of the column payload, R without groups. WIDE: 64-bit offsets within the
    tile. TWICE: the two payloads of one scale are rounded each by itself: NVIDIA's conversion makes two codes at once,
    of which triton 3.6 loses one on the way to words if bytes are stored as well.
    """
    S: tl.constexpr = BLOCK_R // 4
    ONE: tl.constexpr = KIND == "tensor" or KIND == "tile"  # scale for both payloads
    program = tl.program_id(0)
    tile_c = program % tiles_c
    tile_r = program // tiles_c % tiles_r
    b = (program // tiles_c // tiles_r).to(tl.int64)
    first_r, first_c = tile_r.to(tl.int64) * BLOCK_R, tile_c.to(tl.int64) * BLOCK_C
    i, j = tl.arange(0, S), tl.arange(0, BLOCK_C)
    ok_c = j < tl.minimum(C - first_c, BLOCK_C).to(tl.int32)
    if GROUPS > 0:
        group, source_r, left, in_group = group_rows(
            first_r, offs_ptr, lens_ptr, padded_ptr, n_groups, rows, GROUPS
        )  # fmt: skip
        left_r = tl.minimum(tl.maximum(left, 0), BLOCK_R).to(tl.int32)
        counted_r = tl.minimum(tl.maximum(in_group, 0), BLOCK_R).to(tl.int32)
        left_out = BLOCK_R
        if ROW:  # rows before the first group, and between two
            if (in_group > 0) & (first_r == 0):
                _clear_rows(row_ptr, row_scale_ptr, source_r * 0, source_r, i, first_c, ok_c, R, C, tile_c, blocks_c,
                            largest, floor, KIND, P, BLOCK_C, QUICK)  # fmt: skip
            if (in_group > 0) & (in_group <= BLOCK_R):
                end = source_r + in_group
                begin = next_group(end, offs_ptr, lens_ptr, n_groups, rows, GROUPS)
                _clear_rows(row_ptr, row_scale_ptr, end, begin, i, first_c, ok_c, R, C, tile_c, blocks_c, largest,
                            floor, KIND, P, BLOCK_C, QUICK)  # fmt: skip
    else:
        source_r = first_r
        left_r = tl.minimum(R - first_r, BLOCK_R).to(tl.int32)
        counted_r = left_r
        left_out = left_r
    if WIDE:
        at_r, at_c = i.to(tl.int64), j.to(tl.int64)
    else:
        at_r, at_c = i, j
    source = x_ptr + b * stride_b + first_c * stride_c
    if idx_ptr is None:
        source += source_r * stride_r
    at = (at_r * (4 * stride_r))[:, None] + (at_c * stride_c)[None, :]
    oks = (4 * i < left_r, 4 * i + 1 < left_r, 4 * i + 2 < left_r, 4 * i + 3 < left_r)
    row = source_r + 4 * i
    x_0, counts_0 = _load_rows(source, at, 0, idx_ptr, mark_ptr, row, R, stride_r, stride_c, at_c, counted_r, i, ok_c,
                               MASKED)  # fmt: skip
    x_1, counts_1 = _load_rows(source, at, 1, idx_ptr, mark_ptr, row, R, stride_r, stride_c, at_c, counted_r, i, ok_c,
                               MASKED)  # fmt: skip
    x_2, counts_2 = _load_rows(source, at, 2, idx_ptr, mark_ptr, row, R, stride_r, stride_c, at_c, counted_r, i, ok_c,
                               MASKED)  # fmt: skip
    x_3, counts_3 = _load_rows(source, at, 3, idx_ptr, mark_ptr, row, R, stride_r, stride_c, at_c, counted_r, i, ok_c,
                               MASKED)  # fmt: skip
    xs, counts = (x_0, x_1, x_2, x_3), (counts_0, counts_1, counts_2, counts_3)

    if ONE:
        if KIND == "tensor":
            amax = _tensor_amax(row_amax_ptr, row_chunks, STEP)
            scale_at = tl.zeros([1, 1], tl.int32)
            ok_scale = scale_at + program == 0
        else:
            m = tl.maximum(tl.maximum(own_magnitude(x_0), own_magnitude(x_1)),
                           tl.maximum(own_magnitude(x_2), own_magnitude(x_3)))  # fmt: skip
            amax = widened_magnitude(_row_blocks(_column_blocks(m, P), P), x_ptr.dtype.element_ty)
            block_r = tile_r * (BLOCK_R // P) + tl.arange(0, BLOCK_R // P)
            block_c = tile_c * (BLOCK_C // P) + tl.arange(0, BLOCK_C // P)
            scale_at = (
                b * blocks_r * blocks_c + (block_r * scale_stride_r)[:, None] + (block_c * scale_stride_c)[None, :]
            )
            ok_scale = (block_r < blocks_r)[:, None] & (block_c < blocks_c)[None, :]
        scale, inverse = float_scale(amax, largest, floor, QUICK)
        if row_scale_ptr is not None:
            tl.store(row_scale_ptr + scale_at, inverse, mask=ok_scale)
    elif COLUMN:
        if KIND == "line" and GROUPS > 0:
            of_group = column_amax_ptr + group.to(tl.int64) * C + first_c
            left_c = tl.where(group < n_groups, C - first_c, 0)
            amax = tl.load(of_group + at_c, mask=j < left_c, other=0)[None, :]
        elif KIND == "line":
            of_b = column_amax_ptr + b * column_chunks * C + first_c
            amax = joined_amax(of_b, column_chunks, C, at_c, ok_c, STEP)[None, :]
            block_r = tl.zeros([1], tl.int32) + tile_r
            ok_scale = (block_r == 0)[:, None] & ok_c[None, :]
        else:
            m = tl.maximum(tl.maximum(own_magnitude(x_0), own_magnitude(x_1)),
                           tl.maximum(own_magnitude(x_2), own_magnitude(x_3)))  # fmt: skip
            amax = widened_magnitude(_column_blocks(m, P), x_ptr.dtype.element_ty)
            block_r = tile_r * (BLOCK_R // P) + tl.arange(0, BLOCK_R // P)
            ok_scale = (block_r < blocks_r)[:, None] & ok_c[None, :]
        scale, inverse = float_scale(amax, largest, floor, QUICK)
        if GROUPS > 0 and KIND == "block":
            inverse = tl.where(group < n_groups, inverse, 0.0)
        if GROUPS == 0 or KIND == "block":
            scale_at = ((b * blocks_r + block_r) * C + first_c)[:, None] + at_c[None, :]
            tl.store(column_scale_ptr + scale_at, inverse, mask=ok_scale)
    if ONE or COLUMN:
        finite = amax < INFINITE

    word = tl.zeros([S, BLOCK_C], tl.int32)
    for k in tl.static_range(4):
        if ONE or COLUMN:
            q = _codes(xs[k], scale, finite, MANTISSA, LOWEST, FNUZ, NATIVE)
        if COLUMN:
            if WORDS:
                word |= q.to(tl.int32) << 8 * k
            else:
                column_at = (at_c * R)[None, :] + (4 * at_r)[:, None]
                byte_ptr = column_ptr + (b * C + first_c) * R + first_r + k
                _store(byte_ptr + column_at, q, oks[k], ok_c, MASKED)
        if ROW:
            if not ONE:
                if KIND == "line":
                    of_b = row_amax_ptr + b * row_chunks * R + source_r + k
                    row_amax = joined_amax(of_b, row_chunks, R, 4 * at_r, counts[k], STEP)[:, None]
                    block_c = tl.zeros([1], tl.int32) + tile_c
                    ok_row = oks[k][:, None] & (block_c == 0)[None, :]
                else:
                    row_amax = widened_magnitude(_row_blocks(own_magnitude(xs[k]), P), x_ptr.dtype.element_ty)
                    block_c = tile_c * (BLOCK_C // P) + tl.arange(0, BLOCK_C // P)
                    ok_row = oks[k][:, None] & (block_c < blocks_c)[None, :]
                row_scale, row_inverse = float_scale(row_amax, largest, floor, QUICK)
                row_scale_at = ((b * blocks_c + block_c) * R + source_r + k)[None, :] + (4 * at_r)[:, None]
                tl.store(row_scale_ptr + row_scale_at, row_inverse, mask=ok_row)
                q = _codes(xs[k], row_scale, row_amax < INFINITE, MANTISSA, LOWEST, FNUZ, NATIVE)
            elif TWICE:
                nothing = program // 1073741824  # 0, unknown to the compiler
                again = (scale.to(tl.int32, bitcast=True) | nothing).to(tl.float32, bitcast=True)
                q = _codes(xs[k], again, finite, MANTISSA, LOWEST, FNUZ, NATIVE)
            row_at = (4 * at_r * C)[:, None] + at_c[None, :]
            _store(row_ptr + ((b * R + source_r + k) * C + first_c) + row_at, q, oks[k], ok_c, MASKED)
    if COLUMN and WORDS:
        words = tl.multiple_of((rows_out if GROUPS > 0 else R) // 4, 4)
        column_at = (at_c * words)[None, :] + at_r[:, None]
        ok_0 = 4 * i < left_out
        _store(column_ptr + ((b * C + first_c) * words + first_r // 4) + column_at, word, ok_0, ok_c, MASKED)


# the same, not compiled anew for other numbers of rows
_VARYING = ("R", "rows", "rows_out", "tiles_r", "blocks_r", "row_chunks")
kmajor_groups_kernel = triton.jit(do_not_specialize=_VARYING)(kmajor_kernel.fn)
