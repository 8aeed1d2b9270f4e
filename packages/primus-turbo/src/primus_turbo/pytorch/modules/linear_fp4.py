# SPDX-License-Identifier: MIT
"""The linear layer in MXFP4."""

from turbo_gemm import Float4Linear

__all__ = ["Float4Linear"]
