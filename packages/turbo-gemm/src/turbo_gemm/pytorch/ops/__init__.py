# SPDX-License-Identifier: MIT
"""Public functions and their gradients."""

from turbo_gemm.pytorch.ops.gemm import gemm
from turbo_gemm.pytorch.ops.gemm_fp4 import gemm_fp4
from turbo_gemm.pytorch.ops.gemm_fp8 import gemm_fp8

__all__ = ["gemm", "gemm_fp4", "gemm_fp8"]
