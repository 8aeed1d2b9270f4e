# SPDX-License-Identifier: MIT
"""Where groups of rows begin, also with each group's rows rounded up: one program, one launch."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from turbo_core.calls import outputs
from turbo_core.launch import Launch, power_of_two
from turbo_quant.calls import PaddedGroups, PadGroupsCall, specs

__all__ = ["plan_pad_groups"]


@triton.jit
def _larger(x, y):
    return tl.maximum(x, y)


@triton.jit(do_not_specialize=("rows",))
def pad_groups_kernel(
    lens_ptr, given_ptr, offs_ptr, padded_ptr, G, rows, stride_lens, stride_given,
    MULTIPLE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """offs and padded int64 [G+1] of lens [G] and given [G+1] or None. GROUPS: a power of two from G on."""
    i = tl.arange(0, GROUPS)
    ok = i < G
    lens = tl.load(lens_ptr + i * stride_lens, mask=ok, other=0).to(tl.int64)
    lens = tl.minimum(tl.maximum(lens, 0), rows)
    if given_ptr is None:
        ends = tl.cumsum(lens, 0)
        begins = ends - lens
    else:  # the largest so far, so that they ascend
        begins = tl.load(given_ptr + i * stride_given, mask=ok, other=0).to(tl.int64)
        begins = tl.associative_scan(begins, 0, _larger)
        ends = tl.load(given_ptr + (i + 1) * stride_given, mask=ok, other=0).to(tl.int64)
        ends = tl.maximum(begins, ends)
    begins = tl.minimum(tl.maximum(begins, 0), rows)
    ends = tl.minimum(tl.maximum(ends, 0), rows)
    inside = tl.minimum(lens, ends - begins)
    padded = tl.cumsum((inside + (MULTIPLE - 1)) // MULTIPLE * MULTIPLE, 0)
    tl.store(offs_ptr + i, begins, mask=i == 0)
    tl.store(offs_ptr + i + 1, ends, mask=ok)
    tl.store(padded_ptr + i, i.to(tl.int64), mask=i == 0)
    tl.store(padded_ptr + i + 1, padded, mask=ok)


def plan_pad_groups(call: PadGroupsCall) -> tuple[PaddedGroups, list[Launch]]:
    """The result of a call with a group or more, not yet written, and the launch that writes it."""
    lens, given = call.lens, call.offs
    looks: Any = specs(call)
    made: PaddedGroups = outputs(looks, lens.device)
    G = lens.shape[0]
    arguments = {
        "lens_ptr": lens,
        "given_ptr": given,
        "offs_ptr": made.offs,
        "padded_ptr": made.offs_padded,
        "G": G,
        "rows": call.rows,
        "stride_lens": lens.stride(0),
        "stride_given": 1 if given is None else given.stride(0),
    }
    constants = {"MULTIPLE": call.multiple, "GROUPS": power_of_two(G)}
    return made, [Launch(pad_groups_kernel, (1, 1, 1), arguments, constants, {"num_warps": 4})]
