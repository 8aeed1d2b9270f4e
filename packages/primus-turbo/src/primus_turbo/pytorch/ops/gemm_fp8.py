# SPDX-License-Identifier: MIT
"""FP8 and MXFP8 GEMM."""

from turbo_gemm import gemm_fp8

__all__ = ["gemm_fp8"]
