# SPDX-License-Identifier: MIT
"""``torch.nn`` modules."""

from turbo_norm_act.pytorch.modules.activation import GeGLU, SwiGLU
from turbo_norm_act.pytorch.modules.norm import LayerNorm, RMSNorm

__all__ = ["GeGLU", "LayerNorm", "RMSNorm", "SwiGLU"]
