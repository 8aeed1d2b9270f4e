# SPDX-License-Identifier: MIT
"""What torch's BLAS must be told, and must not be given, for gemm to keep its promises."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["BLAS_REACH", "promised_blas", "reach", "why_not_blas_sizes"]

BLAS_REACH = 2**31 - 1
"""Elements between the first and the last of an operand that a BLAS is trusted with.

A BLAS that keeps sizes, strides or offsets in 32 bits wraps past them, without an error: an SNR of 11 dB was reported
for the weight gradient of bf16 [524289, 4096], contracted over its rows. cuBLAS of torch 2.11.0+cu130 was right there
when we looked (H200, 53 to 55 dB, 2026-12-01); other versions, and hipBLASLt, we have not seen.
"""


def reach(x: torch.Tensor) -> int:
    """How many elements lie from the first of a matrix to its last; how many it has where it is expanded."""
    (rows, columns), (row_stride, column_stride) = x.shape, x.stride()
    count = rows * columns
    return max(count, 1 + (rows - 1) * row_stride + (columns - 1) * column_stride) if count else 0


def why_not_blas_sizes(**operands: torch.Tensor) -> str | None:
    """Why a BLAS must not be given one of these matrices; None where it may have all of them."""
    for name, x in operands.items():
        if reach(x) > BLAS_REACH:
            what = f"{name} of shape {list(x.shape)} and strides {list(x.stride())} spans {reach(x)} elements"
            return f"{what}; torch's BLAS is trusted with {BLAS_REACH}"
    return None


# The switches are the process's, so one thread at a time changes them and puts them back.
_lock = threading.Lock()
_SWITCHES = {
    torch.bfloat16: "allow_bf16_reduced_precision_reduction",
    torch.float16: "allow_fp16_reduced_precision_reduction",
}


@contextmanager
def promised_blas(dtype: torch.dtype) -> Iterator[None]:
    """Inside: operands of ``dtype`` are summed in float32, by hipBLASLt on ROCm. The user's settings come back after.

    By default torch lets split-K add up its parts in 16 bits: a few roundings instead of one, and where the bias
    cancels the sum an error of 0.015 on values of order one (H200, bf16, K = 2048, 2026-11-30), over the promised
    0.01; without it the error is one rounding.
    """
    matmul: Any = torch.backends.cuda.matmul
    with _lock:
        switch = _SWITCHES.get(dtype)
        reduced = switch is not None and getattr(matmul, switch)
        library = torch.backends.cuda.preferred_blas_library() if torch.version.hip else None
        try:
            if reduced:
                setattr(matmul, switch, False)
            if library is not None:
                torch.backends.cuda.preferred_blas_library("hipblaslt")
            yield
        finally:
            if reduced:
                setattr(matmul, switch, True)
            if library is not None:
                torch.backends.cuda.preferred_blas_library(library)
