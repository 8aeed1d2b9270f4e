# SPDX-License-Identifier: MIT
"""The functions of attention where flash-attn has them, and a class for code that names one."""

from turbo_attention import flash_attn_fp8_func, flash_attn_func, flash_attn_varlen_func

__all__ = ["FlashAttnFunc", "flash_attn_fp8_func", "flash_attn_func", "flash_attn_varlen_func"]


class FlashAttnFunc:
    """`flash_attn_func` as ``apply``, its arguments in the same order; differentiable, as it is."""

    apply = staticmethod(flash_attn_func)
