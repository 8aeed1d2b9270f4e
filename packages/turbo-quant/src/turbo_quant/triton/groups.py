# SPDX-License-Identifier: MIT
"""Device code that finds rows of groups: which rows of x stand where each group's rows are rounded up to a multiple.

offs [G+1], lens [G] or None (then a group ends where the next begins), padded [G+1], all int32 or int64: see
`turbo_quant.calls.PaddedGroups`. What they say is cut off at row 0 and at the last row, so no value of them makes an
address outside of x.
"""

import triton
import triton.language as tl

__all__ = ["group_rows", "next_group"]


@triton.jit
def _begin_and_end(offs_ptr, lens_ptr, group, ok, rows):
    """First row and the one past the last of groups."""
    begin = tl.load(offs_ptr + group, mask=ok, other=0).to(tl.int64)
    begin = tl.minimum(tl.maximum(begin, 0), rows)
    end = tl.load(offs_ptr + group + 1, mask=ok, other=0).to(tl.int64)
    if lens_ptr is not None:
        end = tl.minimum(end, begin + tl.load(lens_ptr + group, mask=ok, other=0))
    return begin, tl.minimum(tl.maximum(end, begin), rows)


@triton.jit
def group_rows(first, offs_ptr, lens_ptr, padded_ptr, n_groups, rows, GROUPS: tl.constexpr):
    """Of the padded rows from ``first`` on: their group, the row of the first, how many follow, how many of the group.

    Past the last group (group n_groups) stand the rows past it, which are of no group. GROUPS: a power of two from
    n_groups on.
    """
    i = tl.arange(0, GROUPS)
    ok = i < n_groups
    ends = tl.load(padded_ptr + 1 + i, mask=ok, other=0x7FFFFFFFFFFFFFFF)
    group = tl.sum((ends <= first).to(tl.int32), 0)
    after = first - tl.load(padded_ptr + group)
    if group == n_groups:
        begins, ends = _begin_and_end(offs_ptr, lens_ptr, i, ok, rows)
        source = tl.max(tl.where(ends > begins, ends, 0), 0) + after
        left = rows - source
        in_group = left * 0
    else:
        begin, end = _begin_and_end(offs_ptr, lens_ptr, group, group < n_groups, rows)
        source = begin + after
        left = end - source
        in_group = left
    return group, source, left, in_group


@triton.jit
def next_group(row, offs_ptr, lens_ptr, n_groups, rows, GROUPS: tl.constexpr):
    """Where the first group with rows at or past ``row`` begins; ``row`` where there is none."""
    i = tl.arange(0, GROUPS)
    begins, ends = _begin_and_end(offs_ptr, lens_ptr, i, i < n_groups, rows)
    later = tl.min(tl.where((begins >= row) & (ends > begins), begins, 0x7FFFFFFFFFFFFFFF), 0)
    return tl.where(later < 0x7FFFFFFFFFFFFFFF, later, row)
