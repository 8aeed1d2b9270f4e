# SPDX-License-Identifier: MIT
"""The ops as `torch.nn.Module`s."""

from turbo_gemm import Linear
from turbo_norm_act import GeGLU, LayerNorm, RMSNorm, SwiGLU

__all__ = ["GeGLU", "LayerNorm", "Linear", "RMSNorm", "SwiGLU"]
