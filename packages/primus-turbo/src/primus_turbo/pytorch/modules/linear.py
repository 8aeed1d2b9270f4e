# SPDX-License-Identifier: MIT
"""The linear layer."""

from turbo_gemm import Linear

__all__ = ["Linear"]
