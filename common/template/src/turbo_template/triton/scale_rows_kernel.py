# SPDX-License-Identifier: MIT
"""Device code of `scale_rows`, forward and backward.

    y[r, d]   = x[r, d] * scale[r] + residual[r, d]
    dx[r, d]  = dy[r, d] * scale[r]
    dscale[r] = sum over d of dy[r, d] * x[r, d]

Tensors: x, residual, dy [rows, D], elements of a row adjacent, any row strides; scale, dscale [rows] contiguous; y, dx
[rows, D] contiguous. All arithmetic is float32, rounded once. A row's dscale is summed by one program in a fixed order:
equal inputs give equal bits. A pointer that is None stands for a tensor that is not there or not wanted.
"""

import triton
import triton.language as tl

__all__ = ["scale_rows_backward_kernel", "scale_rows_forward_kernel"]


@triton.jit
def scale_rows_forward_kernel(
    x_ptr, scale_ptr, residual_ptr, y_ptr, n_rows, D, x_stride, residual_stride,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Grid (row tiles, column tiles): a tile of y."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    mask = (rows < n_rows)[:, None] & (columns < D)[None, :]
    scale = tl.load(scale_ptr + rows, mask=rows < n_rows, other=0.0).to(tl.float32)
    y = tl.load(x_ptr + rows[:, None] * x_stride + columns[None, :], mask=mask).to(tl.float32) * scale[:, None]
    if residual_ptr is not None:
        y += tl.load(residual_ptr + rows[:, None] * residual_stride + columns[None, :], mask=mask).to(tl.float32)
    tl.store(y_ptr + rows[:, None] * D + columns[None, :], y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def scale_rows_backward_kernel(
    dy_ptr, x_ptr, scale_ptr, dx_ptr, dscale_ptr, n_rows, D, dy_stride, x_stride,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Grid (row tiles,): a program walks the columns of its rows, and dscale is complete at their end."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = rows < n_rows
    scale = tl.load(scale_ptr + rows, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_R, BLOCK_D), tl.float32)
    for start in range(0, D, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (columns < D)[None, :]
        dy = tl.load(dy_ptr + rows[:, None] * dy_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        if dx_ptr is not None:
            dx = (dy * scale[:, None]).to(dx_ptr.dtype.element_ty)
            tl.store(dx_ptr + rows[:, None] * D + columns[None, :], dx, mask=mask)
        if dscale_ptr is not None:
            x = tl.load(x_ptr + rows[:, None] * x_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
            total += dy * x
    if dscale_ptr is not None:
        tl.store(dscale_ptr + rows, tl.sum(total, 1).to(dscale_ptr.dtype.element_ty), mask=inside)
