# SPDX-License-Identifier: MIT
"""Public functions and their gradients."""

from turbo_grouped_gemm.pytorch.ops.grouped_gemm import grouped_gemm
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp4 import grouped_gemm_fp4
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8 import grouped_gemm_fp8
from turbo_grouped_gemm.pytorch.ops.grouped_mlp import grouped_mlp
from turbo_grouped_gemm.pytorch.ops.grouped_mlp_fp4 import grouped_mlp_fp4
from turbo_grouped_gemm.pytorch.ops.grouped_mlp_fp8 import grouped_mlp_fp8
from turbo_grouped_gemm.pytorch.ops.groups import group_offs_from_lens

__all__ = [
    "group_offs_from_lens",
    "grouped_gemm",
    "grouped_gemm_fp4",
    "grouped_gemm_fp8",
    "grouped_mlp",
    "grouped_mlp_fp4",
    "grouped_mlp_fp8",
]
