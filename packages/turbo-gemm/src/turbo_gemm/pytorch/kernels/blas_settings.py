# SPDX-License-Identifier: MIT
"""torch's BLAS switches as gemm promises its numbers: sums in float32 to the end, hipBLASLt on ROCm."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["promised_blas"]

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
