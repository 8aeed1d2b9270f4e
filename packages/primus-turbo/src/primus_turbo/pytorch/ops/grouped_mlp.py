# SPDX-License-Identifier: MIT
"""Fused expert MLPs."""

from turbo_grouped_gemm import grouped_mlp, grouped_mlp_fp4, grouped_mlp_fp8

__all__ = ["grouped_mlp", "grouped_mlp_fp4", "grouped_mlp_fp8"]
