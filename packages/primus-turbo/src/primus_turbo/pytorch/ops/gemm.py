# SPDX-License-Identifier: MIT
"""Dense GEMM in 16 and 32 bits."""

from turbo_gemm import gemm

__all__ = ["gemm"]
