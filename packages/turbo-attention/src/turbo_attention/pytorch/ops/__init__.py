# SPDX-License-Identifier: MIT
"""Public functions and their gradients."""

from turbo_attention.pytorch.ops.attention import flash_attn_func, flash_attn_varlen_func

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
