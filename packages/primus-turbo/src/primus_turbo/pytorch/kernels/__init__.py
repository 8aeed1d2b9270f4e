# SPDX-License-Identifier: MIT
"""The ops without gradients, in the call forms of their kernels."""

from primus_turbo.pytorch.kernels import gemm, grouped_gemm, quantization

__all__ = ["gemm", "grouped_gemm", "quantization"]
