# SPDX-License-Identifier: MIT
"""The ops as `torch.nn.Module`s."""

from turbo_attention import TurboAttention
from turbo_gemm import Float4Linear, Float8Linear, Linear
from turbo_norm_act import GeGLU, LayerNorm, RMSNorm, SwiGLU

__all__ = ["Float4Linear", "Float8Linear", "GeGLU", "LayerNorm", "Linear", "RMSNorm", "SwiGLU", "TurboAttention"]
