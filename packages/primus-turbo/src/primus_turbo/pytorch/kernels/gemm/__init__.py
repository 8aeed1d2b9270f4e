# SPDX-License-Identifier: MIT
"""Products without gradients."""

from primus_turbo.pytorch.kernels.gemm import gemm_fp4_impl, gemm_fp8_impl, gemm_impl

__all__ = ["gemm_fp4_impl", "gemm_fp8_impl", "gemm_impl"]
