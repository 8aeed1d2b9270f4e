# SPDX-License-Identifier: MIT
"""What grouped products are told about their groups."""

from primus_turbo.pytorch.kernels.grouped_gemm import grouped_gemm_utils

__all__ = ["grouped_gemm_utils"]
