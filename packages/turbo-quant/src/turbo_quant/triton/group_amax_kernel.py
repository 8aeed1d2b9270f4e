# SPDX-License-Identifier: MIT
"""Device code of what K-major quantisation needs to know of groups first: maxima, and which rows are named.

    group_amax_kernel      max |x| of the rows that count, as some maxima of a tensor
    group_scales_kernel    of each group and column, from those of 128 padded rows each; and scale_inv
    mark_rows_kernel       1 for each row of x that belongs to a group, or is named by one

Groups as in groups.py. Maxima are the bits of |x|, int32, and have no order: bit-equal from run to run. One program
writes an element, but for the ones of mark_rows_kernel, where it does not matter who does.
"""

import triton
import triton.language as tl

from turbo_quant.triton.groups import group_rows
from turbo_quant.triton.kmajor_kernel import joined_amax
from turbo_quant.triton.rounding import float_scale, own_magnitude, widened_magnitude

__all__ = ["group_amax_kernel", "group_scales_kernel", "mark_rows_kernel"]


@triton.jit(do_not_specialize=("R", "chunks"))
def group_amax_kernel(
    x_ptr, partial_ptr, offs_ptr, lens_ptr, padded_ptr, mark_ptr,
    R, C, tiles_c, chunks, n_groups, stride_r, stride_c,
    GROUPS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """x [R,C]; partial int32 [chunks]. Rows that count: those of groups, or, with mark_ptr, uint8 [R], those not 0.

    Program ``chunk`` of ``chunks`` walks tiles of BLOCK_R x BLOCK_C; BLOCK_R divides what groups are padded to.
    """
    chunk = tl.program_id(0)
    i, j = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    if WIDE:
        at_r, at_c = i.to(tl.int64), j.to(tl.int64)
    else:
        at_r, at_c = i, j
    at = (at_r * stride_r)[:, None] + (at_c * stride_c)[None, :]
    if mark_ptr is None:
        tiles_r = (tl.load(padded_ptr + n_groups) // BLOCK_R).to(tl.int32)
    else:
        tiles_r = tl.cdiv(R, BLOCK_R)
    acc = own_magnitude(tl.zeros([BLOCK_R, BLOCK_C], x_ptr.dtype.element_ty))
    for tile in range(chunk, tiles_r * tiles_c, chunks):
        first_r = (tile // tiles_c).to(tl.int64) * BLOCK_R
        first_c = (tile % tiles_c).to(tl.int64) * BLOCK_C
        if mark_ptr is None:
            _, first_r, _, left = group_rows(first_r, offs_ptr, lens_ptr, padded_ptr, n_groups, R, GROUPS)
            ok_r = i < left
        else:
            ok_r = tl.load(mark_ptr + first_r + i, mask=i < R - first_r, other=0) != 0
        source = x_ptr + first_r * stride_r + first_c * stride_c
        x = tl.load(source + at, mask=ok_r[:, None] & (j < C - first_c)[None, :], other=0.0)
        acc = tl.maximum(acc, own_magnitude(x))
    amax = tl.max(tl.max(acc, 1, keep_dims=True), 0)
    tl.store(partial_ptr + chunk + tl.arange(0, 1), widened_magnitude(amax, x_ptr.dtype.element_ty))


@triton.jit
def group_scales_kernel(
    part_ptr, amax_ptr, scale_inv_ptr, padded_ptr, C, tiles_c, largest, floor,
    ROWS: tl.constexpr, BLOCK_C: tl.constexpr, STEP: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """part int32 [P/ROWS,C]; amax int32 [G,C], scale_inv float32 [G,C], of an empty group those of zeros."""
    program = tl.program_id(0)
    group = (program // tiles_c).to(tl.int64)
    first_c = (program % tiles_c).to(tl.int64) * BLOCK_C
    j = tl.arange(0, BLOCK_C)
    ok_c = j < C - first_c
    begin = tl.load(padded_ptr + group) // ROWS
    parts = (tl.load(padded_ptr + group + 1) // ROWS - begin).to(tl.int32)
    amax = joined_amax(part_ptr + begin * C + first_c, parts, C, j, ok_c, STEP)
    _, inverse = float_scale(amax, largest, floor, QUICK)
    at = group * C + first_c + j
    tl.store(amax_ptr + at, amax, mask=ok_c)
    tl.store(scale_inv_ptr + at, inverse, mask=ok_c)


@triton.jit(do_not_specialize=("R", "rows"))
def mark_rows_kernel(
    mark_ptr, offs_ptr, lens_ptr, padded_ptr, idx_ptr, R, rows, n_groups, GROUPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """mark uint8 [R], zeros before. A program has BLOCK padded rows, which BLOCK divides."""
    i = tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    _, source, _, left = group_rows(first, offs_ptr, lens_ptr, padded_ptr, n_groups, rows, GROUPS)
    row = tl.where(i < left, source + i, -1)
    if idx_ptr is not None:
        row = tl.load(idx_ptr + row, mask=row >= 0, other=-1).to(tl.int64)
    tl.store(mark_ptr + row, tl.full([BLOCK], 1, tl.uint8), mask=(row >= 0) & (row < R))
