# SPDX-License-Identifier: MIT
"""Operands and C as the kernels of native libraries take them, in place where they can be, else copied.

A matrix [rows, bytes], or one for each group, [G, rows, bytes]: rows begin on 16 bytes, with their bytes adjacent.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from turbo_core.low_precision import ScalingGranularity
from turbo_core.native import NativeLibrary, address, float_code

__all__ = [
    "BLOCK",
    "MAX_ROW_BYTES",
    "TILES",
    "NativeOutput",
    "library",
    "native_operand",
    "payload_of",
    "row_bytes",
    "scale_of",
    "stride_of",
    "why_not_operands",
]

BLOCK = 128  # edge of a block with one scale
MAX_ROW_BYTES = 2**23 - 1024  # of an operand or of C, from row to row; kMaxRowBytes of csrc-common's gemm/launch.h
MX_ARCH = "gfx950"  # the one with scaled matrix instructions
TILES = {"chosen": 0, "large": 1, "small": 2}  # turbo_gemm_tile

_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_OCP = (torch.float8_e4m3fn, torch.float8_e5m2)

library = NativeLibrary("turbo_gemm")

# --- may they be taken ------------------------------------------------------------------------------------------------


def why_not_operands(
    a: torch.Tensor, b: torch.Tensor, granularity: ScalingGranularity, block_size: int, arch: str, names: str = "ab"
) -> str | None:
    """Why matrix units of ``arch`` cannot multiply payloads of these dtypes and scales; None when they can."""
    if granularity is ScalingGranularity.MX_BLOCKWISE:
        if arch != MX_ARCH:
            return f"the MX kernels use scaled matrix instructions, which {arch} does not have; {MX_ARCH} has them"
        if (a.dtype in _OCP) != (b.dtype in _OCP):
            return f"{names[0]} is {a.dtype} and {names[1]} is {b.dtype}; e2m1 goes with e2m1, FP8 with FP8"
        return None
    accepted = _FNUZ if arch == "gfx942" else _OCP
    for name, dtype in zip(names, (a.dtype, b.dtype), strict=True):
        if dtype not in accepted:
            return f"{name} is {dtype}; matrix units of {arch} take {' and '.join(map(str, accepted))}"
    if granularity is ScalingGranularity.BLOCKWISE and block_size != BLOCK:
        return f"block_size={block_size}; blocks of {BLOCK} are accepted"
    return None


# --- operands ---------------------------------------------------------------------------------------------------------


def stride_of(tensor: torch.Tensor, dim: int) -> int:
    """Elements from index to index. That of a single one is never used and may be anything."""
    return 0 if tensor.shape[dim] <= 1 else tensor.stride(dim)


def _in_place(x: torch.Tensor, multiple: int) -> bool:
    """Whether bytes of x are adjacent in rows, each of which begins on ``multiple`` bytes."""
    if stride_of(x, -1) not in (0, 1) or x.data_ptr() % multiple:
        return False
    if any(stride_of(x, dim) % multiple for dim in range(x.dim() - 1)):
        return False
    return x.shape[-2] <= 1 or x.shape[-1] <= x.stride(-2) <= MAX_ROW_BYTES


def payload_of(x: torch.Tensor) -> torch.Tensor:
    """x as uint8, adjacent in rows that begin on 16 bytes, zeros after K; x itself if it may."""
    x = x.view(torch.uint8)
    width = x.shape[-1]
    if width % 16 == 0 and _in_place(x, 16):
        return x
    copy = x.new_empty((*x.shape[:-1], (width + 15) // 16 * 16))
    copy[..., :width] = x
    copy[..., width:] = 0  # bits of 0.0 in every format
    return copy


def scale_of(scale: torch.Tensor, granularity: ScalingGranularity) -> torch.Tensor:
    """Scales as they are; those of MX as bytes, adjacent in rows that begin on 4 bytes."""
    if granularity is not ScalingGranularity.MX_BLOCKWISE:
        return scale
    scale = scale.view(torch.uint8)
    return scale if _in_place(scale, 4) else scale.clone(memory_format=torch.contiguous_format)


def row_bytes(payload: torch.Tensor) -> int:
    """Bytes from row to row."""
    return payload.shape[-1] if payload.shape[-2] <= 1 else payload.stride(-2)


def native_operand(
    payload: torch.Tensor,
    scale: torch.Tensor | None = None,
    granularity: ScalingGranularity = ScalingGranularity.TENSORWISE,
    tiles: bool = False,
) -> dict[str, int]:
    """The fields of turbo_gemm_operand; ``payload`` as `payload_of` makes it, ``scale`` as `scale_of` does, or none.

    tiles: BLOCKWISE with one scale for 128 rows.
    """
    step, stride = 0, 0
    if scale is not None and granularity is ScalingGranularity.MX_BLOCKWISE:
        stride = row_bytes(scale)
    elif scale is not None and granularity is not ScalingGranularity.TENSORWISE:
        stride = stride_of(scale, -2)
        step = stride_of(scale, -1) if granularity is ScalingGranularity.BLOCKWISE else 0
    return {
        "data": payload.data_ptr(),
        "stride": row_bytes(payload),
        "scale": address(scale),
        "scale_stride": stride,
        "scale_step": step,
        "scale_rows": BLOCK if tiles else 1,
    }


# --- C ----------------------------------------------------------------------------------------------------------------


class NativeOutput:
    """C as the kernels take it: rows with adjacent columns. Another layout of ``out`` goes through a copy.

    Args:
        out: C is added to it; None: ``fresh()`` becomes C.
        bias: of the rows, or None.
    """

    def __init__(self, out: torch.Tensor | None, bias: torch.Tensor | None, fresh: Callable[[], torch.Tensor]) -> None:
        self.out = out
        self.bias = None if bias is None else bias.contiguous()
        if out is None:
            self.c = fresh()
        elif stride_of(out, -1) in (0, 1) and (
            out.shape[-2] <= 1 or out.shape[-1] <= out.stride(-2) <= MAX_ROW_BYTES // 4
        ):
            self.c = out
        else:
            self.c = out.contiguous()

    def fields(self) -> dict[str, int]:
        """Those of turbo_gemm_output."""
        return {
            "data": self.c.data_ptr(),
            "stride": self.c.shape[-1] if self.c.shape[-2] <= 1 else self.c.stride(-2),
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
