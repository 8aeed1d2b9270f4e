# SPDX-License-Identifier: MIT
"""Public functions and their gradients."""

from turbo_attention.pytorch.ops.attention import flash_attn_func, flash_attn_varlen_func
from turbo_attention.pytorch.ops.attention_fp8 import flash_attn_fp8_func
from turbo_attention.pytorch.ops.sparse_mla import sparse_mla_func

__all__ = ["flash_attn_fp8_func", "flash_attn_func", "flash_attn_varlen_func", "sparse_mla_func"]
