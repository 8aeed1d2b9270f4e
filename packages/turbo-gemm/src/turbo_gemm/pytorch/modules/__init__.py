# SPDX-License-Identifier: MIT
"""``torch.nn`` modules."""

from turbo_gemm.pytorch.modules.linear import Linear

__all__ = ["Linear"]
