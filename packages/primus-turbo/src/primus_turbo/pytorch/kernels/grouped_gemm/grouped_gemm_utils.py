# SPDX-License-Identifier: MIT
"""`group_offs_from_lens`: where groups of rows begin."""

from turbo_grouped_gemm import group_offs_from_lens

__all__ = ["group_offs_from_lens"]
