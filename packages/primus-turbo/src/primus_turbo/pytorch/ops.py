# SPDX-License-Identifier: MIT
"""Every op as a function of tensors."""

from turbo_gemm import gemm

__all__ = ["gemm"]
