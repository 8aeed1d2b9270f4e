# SPDX-License-Identifier: MIT
"""Grouped products in the call form of kernels, and what they are told about their groups."""

from primus_turbo.pytorch.kernels.grouped_gemm import grouped_gemm_fp8_impl, grouped_gemm_impl, grouped_gemm_utils

__all__ = ["grouped_gemm_fp8_impl", "grouped_gemm_impl", "grouped_gemm_utils"]
