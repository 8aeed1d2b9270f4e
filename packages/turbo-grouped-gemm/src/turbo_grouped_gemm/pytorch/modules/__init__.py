# SPDX-License-Identifier: MIT
"""``torch.nn`` modules; they call ops."""

from turbo_grouped_gemm.pytorch.modules.grouped_linear import GroupedLinear
from turbo_grouped_gemm.pytorch.modules.grouped_mlp import GroupedMLP

__all__ = ["GroupedLinear", "GroupedMLP"]
