# SPDX-License-Identifier: MIT
"""Memory layout of results, decided in one place so that kernels and fake implementations agree on strides."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["empty_like_rows"]


def empty_like_rows(tensor: torch.Tensor, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An empty [B,S,H,width] in ``tensor``'s order of dimensions in memory (bshd, sbhd, bhsd), dense."""
    single = isinstance(tensor.shape[0], int) and tensor.shape[0] == 1  # a ragged batch, whose length may be a symbol
    order = sorted(range(3), key=lambda axis: (axis > 0 or not single, -tensor.stride(axis), axis))
    shape = [tensor.shape[axis] for axis in order]
    back = [order.index(axis) for axis in range(3)]
    return tensor.new_empty((*shape, width), dtype=dtype).permute(*back, 3)
