# SPDX-License-Identifier: MIT
"""Packing of byte operands: rows of unit stride, aligned to 16 bytes and filled up with zeros, from any layout.

FP8 matrix units read both operands along K, and 16 bytes at a time. A pass over one byte an element costs a few percent
of a large product; loads that gather bytes in the product's inner loop cost a multiple of it.
"""

from __future__ import annotations

import torch

from turbo_core.prepared import ALIGNMENT
from turbo_gemm.triton.gemm_launch import Plan, is_wide
from turbo_gemm.triton.gemm_pack_kernel import pack_rows_kernel

__all__ = ["Packing", "plan_packing", "row_stride"]

# Measured: H200, 2026-11-30, a transposed 4096 x 14336: 2.2 TB/s read and written (a copy there: 3.6). 64x64 1.4,
# 64x128 1.5, 128x128 2.1 (8 warps 1.9), 32x128 0.9.
_BLOCK_R, _BLOCK_C, _WARPS = 128, 64, 4


class Packing:
    """Copies an operand [rows, K] to rows of ``padded`` bytes, which are also ``stride`` apart."""

    def __init__(self, x: torch.Tensor) -> None:
        self.rows, self.cols = x.shape
        self.padded = self.stride = -(-self.cols // ALIGNMENT) * ALIGNMENT
        self.plan = Plan(pack_rows_kernel)
        self.plan.programs = -(-self.rows // _BLOCK_R) * -(-self.padded // _BLOCK_C)
        self.plan.descriptors = (None, None)
        self.plan.scalars = (self.rows, self.cols, self.padded, *x.stride(), self.stride)
        strides = (x.stride(0), x.stride(1))
        wide = is_wide(1, strides, _BLOCK_R, _BLOCK_C) or is_wide(1, (self.stride, 1), _BLOCK_R, _BLOCK_C)
        self.plan.constants = dict(R=_BLOCK_R, C=_BLOCK_C, WIDE=wide)
        self.plan.options = dict(num_warps=_WARPS)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        packed = torch.empty((self.rows, self.padded), dtype=x.dtype, device=x.device)
        if self.plan.programs:
            self.plan.launch(x.view(torch.uint8), packed.view(torch.uint8))
        return packed


def plan_packing(x: torch.Tensor) -> Packing | None:
    """The packing of x [rows, K] of one byte an element, None when x is packed as it is."""
    rows, K = x.shape
    unit = x.stride(1) == 1 and (rows == 1 or (x.stride(0) % ALIGNMENT == 0 and x.stride(0) >= K))
    if K == 0 or (unit and K % ALIGNMENT == 0 and x.data_ptr() % ALIGNMENT == 0):
        return None
    return Packing(x)


def row_stride(x: torch.Tensor) -> int:
    """Of an operand that needs no packing; that of a single row is never used."""
    return x.stride(0) if x.shape[0] > 1 else ALIGNMENT
