# SPDX-License-Identifier: MIT
"""Attention for training. Importing it imports neither torch nor triton until a name is used."""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_attention.pytorch.modules.attention import TurboAttention
    from turbo_attention.pytorch.ops.attention import flash_attn_func, flash_attn_varlen_func
    from turbo_attention.pytorch.ops.attention_fp8 import flash_attn_fp8_func
    from turbo_attention.pytorch.ops.sparse_mla import sparse_mla_func

__all__ = ["TurboAttention", "flash_attn_fp8_func", "flash_attn_func", "flash_attn_varlen_func", "sparse_mla_func"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "TurboAttention": "turbo_attention.pytorch.modules.attention",
        "flash_attn_fp8_func": "turbo_attention.pytorch.ops.attention_fp8",
        "flash_attn_func": "turbo_attention.pytorch.ops.attention",
        "flash_attn_varlen_func": "turbo_attention.pytorch.ops.attention",
        "sparse_mla_func": "turbo_attention.pytorch.ops.sparse_mla",
    },
)
