# SPDX-License-Identifier: MIT
"""``torch.nn`` modules; they call ops."""

from turbo_grouped_gemm.pytorch.modules.grouped_linear import GroupedLinear

__all__ = ["GroupedLinear"]
