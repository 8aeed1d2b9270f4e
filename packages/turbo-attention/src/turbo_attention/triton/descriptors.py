# SPDX-License-Identifier: MIT
"""Tensors [B,S,H,D] as matrices for host tensor descriptors (TMA), in any order of their dimensions.

Rows are S with stride ``stride(1)``; what is left of an element's place is a first row and a first column: batch and
head each move by whole rows, or within one row (heads side by side, as in bshd). `stages.corner` is the device's side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["Matrix", "flattened"]

_ALIGNMENT = 16  # bytes: base and row stride of a TMA descriptor
_MAX_STRIDE = 2**40  # bytes


@dataclass(frozen=True)
class Matrix:
    """A tensor's memory as [rows, columns] with a stride between rows, and the rows of a block."""

    tensor: torch.Tensor
    rows: int
    columns: int
    stride: int
    block_rows: int

    def descriptor(self, block_columns: int) -> TensorDescriptor:
        """Its descriptor, for blocks of ``block_columns``."""
        shape, strides = [self.rows, self.columns], [self.stride, 1]
        return TensorDescriptor(self.tensor, shape, strides, [self.block_rows, block_columns])


def flattened(*tensors: tuple[torch.Tensor, int]) -> list[Matrix] | None:
    """A matrix for each (tensor, rows of a block), or None when one of them fits no descriptor."""
    matrices = [_flatten(tensor, block_rows) for tensor, block_rows in tensors]
    fitting = [matrix for matrix in matrices if matrix is not None]
    return fitting if len(fitting) == len(matrices) else None


def _flatten(tensor: torch.Tensor, block_rows: int) -> Matrix | None:
    stride, item = tensor.stride(1), tensor.element_size()
    if tensor.data_ptr() % _ALIGNMENT or tensor.stride(3) != 1 or stride <= 0:
        return None
    if stride * item % _ALIGNMENT or stride * item >= _MAX_STRIDE:
        return None
    rows, columns = tensor.shape[1], tensor.shape[3]
    for axis in (0, 2):
        size, step = tensor.shape[axis], tensor.stride(axis)
        if size == 1:
            continue
        if step % stride == 0:
            rows += (size - 1) * (step // stride)
        elif step < stride and step * item % _ALIGNMENT == 0:
            columns += (size - 1) * step
        else:
            return None
    return Matrix(tensor, rows, columns, stride, block_rows) if columns <= stride and rows < 2**31 else None
