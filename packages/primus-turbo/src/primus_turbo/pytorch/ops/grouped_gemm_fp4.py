# SPDX-License-Identifier: MIT
"""MXFP4 grouped GEMM."""

from turbo_grouped_gemm import grouped_gemm_fp4

__all__ = ["grouped_gemm_fp4"]
