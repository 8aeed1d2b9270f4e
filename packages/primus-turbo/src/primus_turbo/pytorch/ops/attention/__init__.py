# SPDX-License-Identifier: MIT
"""Attention."""

from turbo_attention import flash_attn_fp8_func, flash_attn_func, flash_attn_varlen_func, sparse_mla_func

__all__ = ["flash_attn_fp8_func", "flash_attn_func", "flash_attn_varlen_func", "sparse_mla_func"]
