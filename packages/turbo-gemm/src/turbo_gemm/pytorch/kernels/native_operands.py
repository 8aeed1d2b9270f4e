# SPDX-License-Identifier: MIT
"""Operands and C as the kernels of the native library take them, in place where they can be, else copied."""

from __future__ import annotations

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import ScalingGranularity
from turbo_core.native import NativeLibrary, address, float_code

__all__ = [
    "BLOCK",
    "MAX_ROW_BYTES",
    "Operand",
    "Output",
    "check_scale",
    "float_operand",
    "library",
    "operand",
    "payload_of",
    "row_bytes",
    "stride_of",
]

BLOCK = 128  # edge of a block with one scale
MAX_ROW_BYTES = 2**23 - 1024  # of an operand or of C, from row to row; kMaxRowBytes in csrc/kernels/gemm.cpp

library = NativeLibrary("turbo_gemm")

# --- operands ---------------------------------------------------------------------------------------------------------

Operand = dict[str, int]  # the fields of turbo_gemm_operand


def stride_of(tensor: torch.Tensor, dim: int) -> int:
    """Elements from index to index. That of a single one is never used and may be anything."""
    return 0 if tensor.shape[dim] <= 1 else tensor.stride(dim)


def payload_of(x: torch.Tensor) -> torch.Tensor:
    """x [rows, bytes] as uint8, adjacent in rows that begin on 16 bytes, zeros after K; x itself if it may."""
    x = x.view(torch.uint8)
    rows, width = x.shape
    fits = stride_of(x, 1) in (0, 1) and x.data_ptr() % 16 == 0 and stride_of(x, 0) % 16 == 0 and width % 16 == 0
    if fits and (rows <= 1 or width <= x.stride(0) <= MAX_ROW_BYTES):
        return x
    padded = (width + 15) // 16 * 16
    copy = x.new_empty((rows, padded))
    copy[:, :width] = x
    copy[:, width:] = 0  # bits of 0.0 in every format
    return copy


def row_bytes(payload: torch.Tensor) -> int:
    return payload.shape[1] if payload.shape[0] <= 1 else payload.stride(0)


def operand(payload: torch.Tensor, scale: torch.Tensor, stride: int, step: int = 0, rows: int = 1) -> Operand:
    """A payload as `payload_of` gives it; ``stride`` and ``step`` of its scales, of which ``rows`` share one."""
    return {
        "data": payload.data_ptr(),
        "stride": row_bytes(payload),
        "scale": scale.data_ptr(),
        "scale_stride": stride,
        "scale_step": step,
        "scale_rows": rows,
    }


def float_operand(payload: torch.Tensor, scale: torch.Tensor, rows: int, kind: ScalingGranularity) -> Operand:
    """``scale`` has rows along those of the payload: 0-dim, [rows, 1], or [rows or tiles, K blocks]."""
    step, sharing, stride = 0, 1, 0
    if kind is not ScalingGranularity.TENSORWISE:
        stride = stride_of(scale, 0)
    if kind is ScalingGranularity.BLOCKWISE:
        step, sharing = stride_of(scale, 1), rows
    return operand(payload, scale, stride, step, sharing)


def check_scale(
    name: str, scale: torch.Tensor, rows: int, k: int, granularity: ScalingGranularity, tiles: bool
) -> None:
    expected: tuple[int, ...]
    if granularity is ScalingGranularity.TENSORWISE:
        expected = ()
    elif granularity is ScalingGranularity.ROWWISE:
        expected = (rows, 1)
    elif granularity is ScalingGranularity.BLOCKWISE:
        expected = (-(-rows // BLOCK) if tiles else rows, -(-k // BLOCK))
    else:
        raise UnsupportedError(f"granularity={granularity}; TENSORWISE, ROWWISE and BLOCKWISE are accepted")
    if scale.shape != expected or scale.dtype != torch.float32:
        raise UnsupportedError(
            f"{name} is {tuple(scale.shape)} {scale.dtype}; {expected} torch.float32 is needed "
            "(rows of the product first)"
        )


# --- C ----------------------------------------------------------------------------------------------------------------


class Output:
    """C as the kernels take it: rows with adjacent columns. Another layout of ``out`` goes through a copy."""

    def __init__(
        self,
        m: int,
        n: int,
        a: torch.Tensor,
        out_dtype: torch.dtype,
        bias: torch.Tensor | None,
        out: torch.Tensor | None,
        accumulate: bool,
    ) -> None:
        if accumulate and out is None:
            raise UnsupportedError("accumulate needs out")
        if out is not None and (out.shape != (m, n) or out.device != a.device or out.dtype != out_dtype):
            raise UnsupportedError(
                f"out is {tuple(out.shape)} {out.dtype} on {out.device}; {(m, n)} {out_dtype} on {a.device} is needed"
            )
        if bias is not None and (bias.shape != (n,) or bias.device != a.device):
            raise UnsupportedError(f"bias is {tuple(bias.shape)} on {bias.device}; ({n},) on {a.device} is needed")
        self.out = out
        self.bias = None if bias is None else bias.contiguous()
        self.accumulate = accumulate
        if out is None:
            self.c = torch.empty((m, n), dtype=out_dtype, device=a.device)
        elif stride_of(out, 1) in (0, 1) and (m <= 1 or n <= out.stride(0) <= MAX_ROW_BYTES // 4):
            self.c = out
        else:
            self.c = out.contiguous() if accumulate else torch.empty_like(out, memory_format=torch.contiguous_format)

    def fields(self) -> dict[str, int]:
        """Those of turbo_gemm_output."""
        return {
            "data": self.c.data_ptr(),
            "stride": self.c.shape[1] if self.c.shape[0] <= 1 else self.c.stride(0),
            "bias": address(self.bias),
            "dtype": float_code("out_dtype", self.c.dtype),
            "bias_dtype": 0 if self.bias is None else float_code("bias.dtype", self.bias.dtype),
            "accumulate": self.accumulate,
        }

    def result(self) -> torch.Tensor:
        if self.out is None or self.out is self.c:
            return self.c
        return self.out.copy_(self.c)
