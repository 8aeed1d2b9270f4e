# SPDX-License-Identifier: MIT
"""FP8 and MXFP8 grouped GEMM."""

from turbo_grouped_gemm import grouped_gemm_fp8

__all__ = ["grouped_gemm_fp8"]
