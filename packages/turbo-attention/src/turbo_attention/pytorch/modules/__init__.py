# SPDX-License-Identifier: MIT
"""torch.nn modules."""

from turbo_attention.pytorch.modules.attention import TurboAttention

__all__ = ["TurboAttention"]
