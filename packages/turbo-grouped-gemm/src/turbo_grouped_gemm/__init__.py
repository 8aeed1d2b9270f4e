# SPDX-License-Identifier: MIT
"""Grouped GEMM of mixture-of-experts training. Importing it imports neither torch nor triton before first use."""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_grouped_gemm.pytorch.modules.grouped_linear import GroupedLinear
    from turbo_grouped_gemm.pytorch.modules.grouped_mlp import GroupedMLP
    from turbo_grouped_gemm.pytorch.ops.grouped_gemm import grouped_gemm
    from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp4 import grouped_gemm_fp4
    from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8 import grouped_gemm_fp8
    from turbo_grouped_gemm.pytorch.ops.grouped_mlp import grouped_mlp
    from turbo_grouped_gemm.pytorch.ops.grouped_mlp_fp4 import grouped_mlp_fp4
    from turbo_grouped_gemm.pytorch.ops.grouped_mlp_fp8 import grouped_mlp_fp8
    from turbo_grouped_gemm.pytorch.ops.groups import group_offs_from_lens

__all__ = [
    "GroupedLinear",
    "GroupedMLP",
    "group_offs_from_lens",
    "grouped_gemm",
    "grouped_gemm_fp4",
    "grouped_gemm_fp8",
    "grouped_mlp",
    "grouped_mlp_fp4",
    "grouped_mlp_fp8",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "GroupedLinear": "turbo_grouped_gemm.pytorch.modules.grouped_linear",
        "GroupedMLP": "turbo_grouped_gemm.pytorch.modules.grouped_mlp",
        "group_offs_from_lens": "turbo_grouped_gemm.pytorch.ops.groups",
        "grouped_gemm": "turbo_grouped_gemm.pytorch.ops.grouped_gemm",
        "grouped_gemm_fp4": "turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp4",
        "grouped_gemm_fp8": "turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8",
        "grouped_mlp": "turbo_grouped_gemm.pytorch.ops.grouped_mlp",
        "grouped_mlp_fp4": "turbo_grouped_gemm.pytorch.ops.grouped_mlp_fp4",
        "grouped_mlp_fp8": "turbo_grouped_gemm.pytorch.ops.grouped_mlp_fp8",
    },
)
