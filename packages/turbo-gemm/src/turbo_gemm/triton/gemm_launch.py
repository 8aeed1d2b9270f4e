# SPDX-License-Identifier: MIT
"""What the launchers of all GEMMs share: descriptors or pointers, rows that the kernels can read, launch options."""

from __future__ import annotations

from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from turbo_core.launch import Launch
from turbo_core.prepared import ALIGNMENT
from turbo_gemm.triton.gemm_kernel import NARROW_BYTES
from turbo_gemm.triton.gemm_pack_kernel import pack_rows_kernel

__all__ = [
    "MAX_REGULAR_STRIDE",
    "descriptor",
    "is_regular",
    "is_wide",
    "pack_rows",
    "pack_scales",
    "row_stride",
    "stored_layout",
]

MAX_REGULAR_STRIDE = 2**20  # elements: no block of a table then needs 64-bit offsets
_MAX_DESCRIPTOR_STRIDE = 2**40  # bytes

# Measured: H200, 2026-11-30, a transposed 4096 x 14336: 2.2 TB/s read and written (a copy there: 3.6). 64x64 1.4,
# 64x128 1.5, 128x128 2.1 (8 warps 1.9), 32x128 0.9.
_PACK_R, _PACK_C, _PACK_WARPS = 128, 64, 4


def stored_layout(shape: tuple[int, int], strides: tuple[int, ...], item: int, address: int) -> tuple[bool, int] | None:
    """How a descriptor sees the matrix: (transposed, stride of the stored rows), or None when it cannot.

    A descriptor needs one unit-stride dimension, and base and row stride aligned to 16 bytes. The stride of
    a dimension of size 1 is never used, so such a dimension fits whatever its stride.
    """
    if address % ALIGNMENT:
        return None
    for transposed, (row, col) in ((False, (0, 1)), (True, (1, 0))):
        if strides[col] != 1 and shape[col] != 1:
            continue
        stride = strides[row]
        if shape[row] == 1:
            stride = -(-shape[col] * item // ALIGNMENT) * ALIGNMENT // item
        if stride > 0 and stride * item % ALIGNMENT == 0 and stride * item < _MAX_DESCRIPTOR_STRIDE:
            return transposed, stride
    return None


def descriptor(x: torch.Tensor, shape: tuple[int, int], stored: tuple[bool, int], rows: int, cols: int) -> Any:
    """A descriptor of the matrix x of this shape, in blocks of [rows, cols]."""
    transposed, stride = stored
    if transposed:
        return TensorDescriptor(x, shape=[shape[1], shape[0]], strides=[stride, 1], block_shape=[cols, rows])
    return TensorDescriptor(x, shape=[shape[0], shape[1]], strides=[stride, 1], block_shape=[rows, cols])


def is_regular(c: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether C and bias are as rows of a table that are not for "any" launch need them: aligned, unit stride."""
    if c.data_ptr() % ALIGNMENT or (bias is not None and bias.data_ptr() % ALIGNMENT):
        return False
    aligned = c.stride(1) == 1 and c.stride(0) % ALIGNMENT == 0 and c.stride(0) <= MAX_REGULAR_STRIDE
    return aligned and (bias is None or bias.stride(0) == 1)


def is_wide(item: int, strides: tuple[int, ...], rows: int, cols: int) -> bool:
    """Whether one block spans so much memory that offsets inside it need 64 bits (the kernel assumes less if not)."""
    limit = NARROW_BYTES.value
    return strides[0] > limit // (rows * item) or strides[1] > limit // (cols * item)


# --- rows of unit stride --------------------------------------------------------------------------------------------


def pack_rows(x: torch.Tensor) -> tuple[torch.Tensor, list[Launch]]:
    """x [rows, K] or [B, rows, K] of one byte an element as the kernels read it, and the launches that make it so.

    FP8 matrix units read both operands along K, and 16 bytes at a time: rows of unit stride, aligned to 16 bytes and
    filled up with zeros. A pass over one byte an element costs a few percent of a large product; loads that gather
    bytes in the product's inner loop cost a multiple of it.
    """
    *batch, rows, K = x.shape
    unit = x.stride(-1) == 1 and (rows == 1 or (x.stride(-2) % ALIGNMENT == 0 and x.stride(-2) >= K))
    aligned = K % ALIGNMENT == 0 and x.data_ptr() % ALIGNMENT == 0 and (not batch or x.stride(0) % ALIGNMENT == 0)
    if x.numel() == 0 or (unit and aligned):
        return x, []
    packed = torch.empty((*batch, rows, -(-K // ALIGNMENT) * ALIGNMENT), dtype=x.dtype, device=x.device)
    return packed, [_copy_of(x.view(torch.uint8), packed.view(torch.uint8))]


def pack_scales(scale: torch.Tensor) -> tuple[torch.Tensor, list[Launch]]:
    """Scales [rows, cols] or [B, rows, cols] without gaps, and the launches that make them so."""
    if scale.is_contiguous():
        return scale, []
    packed = torch.empty(scale.shape, dtype=scale.dtype, device=scale.device)
    return packed, [_copy_of(scale, packed)]


def _copy_of(x: torch.Tensor, out: torch.Tensor) -> Launch:
    """out = x, zeros where it has more columns."""
    (rows, cols), padded, item = x.shape[-2:], out.shape[-1], x.element_size()
    batch, stride_b, stride_ob = (x.shape[0], x.stride(0), out.stride(0)) if x.dim() == 3 else (1, 0, 0)
    arguments = dict(
        x=x, out=out, rows=rows, cols=cols, padded=padded, stride_r=x.stride(-2), stride_c=x.stride(-1),
        stride_or=out.stride(-2), stride_b=stride_b, stride_ob=stride_ob
    )  # fmt: skip
    wide = is_wide(item, x.stride()[-2:], _PACK_R, _PACK_C) or is_wide(item, (padded, 1), _PACK_R, _PACK_C)
    grid = (-(-rows // _PACK_R) * -(-padded // _PACK_C), batch)
    return Launch(pack_rows_kernel, grid, arguments, dict(R=_PACK_R, C=_PACK_C, WIDE=wide), dict(num_warps=_PACK_WARPS))


def row_stride(x: torch.Tensor) -> int:
    """Of an operand of packed rows; that of a single row is never used."""
    return x.stride(-2) if x.shape[-2] > 1 else ALIGNMENT
