# SPDX-License-Identifier: MIT
"""The linear layer in FP8 and MXFP8."""

from turbo_gemm import Float8Linear

__all__ = ["Float8Linear"]
