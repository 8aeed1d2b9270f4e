# SPDX-License-Identifier: MIT
"""Names of the environment variables that choose backends, and the block sizes of the low-precision formats."""

from turbo_core.environment import AUTO_TUNE_VARIABLE, FAMILIES
from turbo_core.low_precision import BLOCK_SIZE, MX_BLOCK_SIZE, MX_PADDING

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "ENV_ATTN_BACKEND",
    "ENV_AUTO_TUNE",
    "ENV_GEMM_BACKEND",
    "ENV_GROUPED_GEMM_BACKEND",
    "ENV_MOE_DISPATCH_COMBINE_BACKEND",
    "ENV_SPARSE_ATTN_BACKEND",
    "MXFP4_BLOCK_SIZE",
    "MXFP4_PADDING_ALIGN_SIZE",
    "MXFP8_BLOCK_SIZE",
    "MXFP8_PADDING_ALIGN_SIZE",
]

ENV_GEMM_BACKEND = FAMILIES["gemm"].variables[0]
ENV_GROUPED_GEMM_BACKEND = FAMILIES["grouped_gemm"].variables[0]
ENV_ATTN_BACKEND = FAMILIES["attn"].variables[-1]
ENV_SPARSE_ATTN_BACKEND = FAMILIES["sparse_attn"].variables[0]
ENV_MOE_DISPATCH_COMBINE_BACKEND = FAMILIES["moe_dispatch_combine"].variables[0]
ENV_AUTO_TUNE = AUTO_TUNE_VARIABLE

DEFAULT_BLOCK_SIZE = BLOCK_SIZE
MXFP8_BLOCK_SIZE = MXFP4_BLOCK_SIZE = MX_BLOCK_SIZE
MXFP8_PADDING_ALIGN_SIZE = MXFP4_PADDING_ALIGN_SIZE = MX_PADDING
