# SPDX-License-Identifier: MIT
"""Grouped GEMM."""

from turbo_grouped_gemm import grouped_gemm

__all__ = ["grouped_gemm"]
