# SPDX-License-Identifier: MIT
"""MXFP4 GEMM."""

from turbo_gemm import gemm_fp4

__all__ = ["gemm_fp4"]
