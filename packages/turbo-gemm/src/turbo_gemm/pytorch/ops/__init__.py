# SPDX-License-Identifier: MIT
"""Public functions and their gradients."""

from turbo_gemm.pytorch.ops.gemm import gemm

__all__ = ["gemm"]
