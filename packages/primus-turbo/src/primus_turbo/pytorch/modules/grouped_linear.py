# SPDX-License-Identifier: MIT
"""The linear layers of experts."""

from turbo_grouped_gemm import GroupedLinear

__all__ = ["GroupedLinear"]
