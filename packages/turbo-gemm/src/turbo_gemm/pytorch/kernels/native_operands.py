# SPDX-License-Identifier: MIT
"""Operands and C as the kernels of the native library take them, in place where they can be, else copied."""

from __future__ import annotations

import torch

from turbo_core.calls import empty
from turbo_core.low_precision import ScalingGranularity
from turbo_core.native import NativeLibrary, address, float_code
from turbo_gemm.calls import GemmFp8Call, Operand, specs

__all__ = [
    "BLOCK",
    "MAX_ROW_BYTES",
    "Output",
    "float_operand",
    "library",
    "mx_operand",
    "mx_scale",
    "payload_of",
    "row_bytes",
]

BLOCK = 128  # edge of a block with one scale
MAX_ROW_BYTES = 2**23 - 1024  # of an operand or of C, from row to row; kMaxRowBytes in csrc/kernels/gemm.cpp

library = NativeLibrary("turbo_gemm")

# --- operands ---------------------------------------------------------------------------------------------------------


def _stride_of(tensor: torch.Tensor, dim: int) -> int:
    """Elements from index to index. That of a single one is never used and may be anything."""
    return 0 if tensor.shape[dim] <= 1 else tensor.stride(dim)


def payload_of(x: torch.Tensor) -> torch.Tensor:
    """x [rows, bytes] as uint8, adjacent in rows that begin on 16 bytes, zeros after K; x itself if it may."""
    x = x.view(torch.uint8)
    rows, width = x.shape
    fits = _stride_of(x, 1) in (0, 1) and x.data_ptr() % 16 == 0 and _stride_of(x, 0) % 16 == 0 and width % 16 == 0
    if fits and (rows <= 1 or width <= x.stride(0) <= MAX_ROW_BYTES):
        return x
    padded = (width + 15) // 16 * 16
    copy = x.new_empty((rows, padded))
    copy[:, :width] = x
    copy[:, width:] = 0  # bits of 0.0 in every format
    return copy


def row_bytes(payload: torch.Tensor) -> int:
    """Bytes from row to row."""
    return payload.shape[1] if payload.shape[0] <= 1 else payload.stride(0)


def _fields(payload: torch.Tensor, scale: torch.Tensor, stride: int, step: int = 0, rows: int = 1) -> dict[str, int]:
    """Those of turbo_gemm_operand; ``stride`` and ``step`` of its scales, of which ``rows`` share one."""
    return {
        "data": payload.data_ptr(),
        "stride": row_bytes(payload),
        "scale": scale.data_ptr(),
        "scale_stride": stride,
        "scale_step": step,
        "scale_rows": rows,
    }


def float_operand(payload: torch.Tensor, x: Operand, granularity: ScalingGranularity) -> dict[str, int]:
    """``payload`` as `payload_of` makes it of x, whose K is last."""
    scale, step, rows, stride = x.scale_inv, 0, 1, 0
    if granularity is not ScalingGranularity.TENSORWISE:
        stride = _stride_of(scale, 0)
    if granularity is ScalingGranularity.BLOCKWISE:
        step, rows = _stride_of(scale, 1), BLOCK if x.tiles else 1
    return _fields(payload, scale, stride, step, rows)


def mx_operand(payload: torch.Tensor, scale: torch.Tensor) -> dict[str, int]:
    """``scale`` as `mx_scale` makes it."""
    return _fields(payload, scale, row_bytes(scale))


def mx_scale(scale: torch.Tensor) -> torch.Tensor:
    """Scales as bytes, adjacent in rows that begin on 4 bytes."""
    scale = scale.view(torch.uint8)
    fits = _stride_of(scale, 1) in (0, 1) and scale.data_ptr() % 4 == 0 and _stride_of(scale, 0) % 4 == 0
    if fits and (scale.shape[0] <= 1 or scale.shape[1] <= scale.stride(0) <= MAX_ROW_BYTES):
        return scale
    return scale.clone(memory_format=torch.contiguous_format)


# --- C ----------------------------------------------------------------------------------------------------------------


class Output:
    """C as the kernels take it: rows with adjacent columns. Another layout of ``out`` goes through a copy."""

    def __init__(self, call: GemmFp8Call) -> None:
        m, n, _ = call.sizes()
        self.out = out = call.out
        self.bias = None if call.bias is None else call.bias.contiguous()
        if out is None:
            self.c = empty(specs(call), call.a.data.device)
        elif _stride_of(out, 1) in (0, 1) and (m <= 1 or n <= out.stride(0) <= MAX_ROW_BYTES // 4):
            self.c = out
        else:
            self.c = out.contiguous()

    def fields(self) -> dict[str, int]:
        """Those of turbo_gemm_output."""
        return {
            "data": self.c.data_ptr(),
            "stride": self.c.shape[1] if self.c.shape[0] <= 1 else self.c.stride(0),
            "bias": address(self.bias),
            "dtype": float_code("out_dtype", self.c.dtype),
            "bias_dtype": 0 if self.bias is None else float_code("bias.dtype", self.bias.dtype),
            "accumulate": self.out is not None,
        }

    def result(self) -> torch.Tensor:
        """C where the call wants it."""
        if self.out is None or self.out is self.c:
            return self.c
        return self.out.copy_(self.c)
