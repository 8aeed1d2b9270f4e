# SPDX-License-Identifier: MIT
"""Memory layout of results, decided in one place so that kernels and fake implementations agree on strides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turbo_core.calls import Spec, empty

if TYPE_CHECKING:
    import torch

__all__ = ["empty_like_rows", "rows_like"]


def rows_like(rows: torch.Tensor, width: int, dtype: torch.dtype | None = None) -> Spec:
    """[B,S,H,width] in the order of the dimensions of ``rows`` in memory (bshd, sbhd, bhsd), dense.

    Rows whose last stride is not 1 are copied before a kernel reads them: contiguous.
    """
    shape = rows.shape[:3]
    order = [0, 1, 2]
    if rows.stride(3) == 1 or rows.shape[3] == 1:
        # a ragged batch is a single one, whose length may be a symbol
        single = isinstance(shape[0], int) and shape[0] == 1
        order.sort(key=lambda axis: (axis > 0 or not single, -rows.stride(axis), axis))
    dtype = rows.dtype if dtype is None else dtype
    if order == [0, 1, 2]:
        return Spec((*shape, width), dtype)
    strides, step = [1] * 4, width
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1) if isinstance(shape[axis], int) else shape[axis]
    return Spec((*shape, width), dtype, tuple(strides))


def empty_like_rows(rows: torch.Tensor, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An empty tensor as `rows_like` says."""
    return empty(rows_like(rows, width, dtype), rows.device)
