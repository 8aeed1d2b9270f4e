# SPDX-License-Identifier: MIT
"""Rows of a ragged batch that no sequence has: zeros in results and gradients, -inf in lse.

    x[r] = y[r] = 0 and lse[:, r] = -inf        for r < cu_seqlens[0] and for r >= cu_seqlens[sequences]

The other kernels visit sequences alone. Offsets outside of the tensors are read as the nearest inside.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from turbo_core.launch import Launch, power_of_two

__all__ = ["plan_clear_rows"]

_ELEMENTS = 4096  # of a program's rows of one head: 32 rows of 1024 spilled 41 scalar registers on AMD


@triton.jit
def clear_rows_kernel(
    x, y, lse, lse_low, cu_seqlens, sequences, rows, heads, stride_xs, stride_xh, stride_ys, stride_yh, stride_lse_h,
    width_x, width_y, ROWS: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr,
):  # fmt: skip
    """A program has ROWS rows. x, y: [rows, heads, width] by strides, y may be None.

    lse, lse_low: float32 [heads, rows], or None; lse_low becomes 0.
    """
    first = tl.program_id(0) * ROWS
    begin = tl.minimum(tl.maximum(tl.load(cu_seqlens), 0), rows)
    end = tl.minimum(tl.maximum(tl.load(cu_seqlens + sequences), 0), rows)
    if (first < begin) | (first + ROWS > end):
        r = first + tl.arange(0, ROWS)
        outside = (r < rows) & ((r < begin) | (r >= end))
        r64 = r.to(tl.int64)
        for head in tl.range(heads):
            head64 = tl.cast(head, tl.int64)
            _zero(x + head64 * stride_xh, r64 * stride_xs, outside, width_x, ROWS, BLOCK_X)
            if y is not None:
                _zero(y + head64 * stride_yh, r64 * stride_ys, outside, width_y, ROWS, BLOCK_Y)
            if lse is not None:
                tl.store(lse + head64 * stride_lse_h + r64, float("-inf"), outside)
                tl.store(lse_low + head64 * stride_lse_h + r64, 0.0, outside)


@triton.jit
def _zero(target, offset, inside, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    zeros = tl.zeros((ROWS, COLUMNS), tl.float32).to(target.dtype.element_ty)
    tl.store(target + offset[:, None] + column[None, :], zeros, inside[:, None] & (column < width)[None, :])


def plan_clear_rows(
    cu_seqlens: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    lse_low: torch.Tensor | None = None,
) -> Launch:
    """The launch that clears rows of x and y, [1,rows,heads,width], and of lse and lse_low, [1,heads,rows]."""
    _, rows, heads, width = x.shape
    arguments = dict(
        x=x,
        y=y,
        lse=lse,
        lse_low=lse_low,
        cu_seqlens=cu_seqlens,
        sequences=cu_seqlens.shape[0] - 1,
        rows=rows,
        heads=heads,
        stride_xs=x.stride(1),
        stride_xh=x.stride(2),
        stride_ys=0 if y is None else y.stride(1),
        stride_yh=0 if y is None else y.stride(2),
        stride_lse_h=0 if lse is None else lse.stride(1),
        width_x=width,
        width_y=width if y is None else y.shape[3],
    )
    blocks = dict(BLOCK_X=power_of_two(width), BLOCK_Y=power_of_two(arguments["width_y"]))
    block = min(32, _ELEMENTS // max(blocks.values()))
    return Launch(clear_rows_kernel, (-(-rows // block),), arguments, dict(ROWS=block, **blocks), dict(num_warps=4))
