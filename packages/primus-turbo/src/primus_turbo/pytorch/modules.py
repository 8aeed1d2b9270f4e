# SPDX-License-Identifier: MIT
"""The ops as `torch.nn.Module`s."""

from turbo_gemm import Linear

__all__ = ["Linear"]
