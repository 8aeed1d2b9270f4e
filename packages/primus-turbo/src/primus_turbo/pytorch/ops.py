# SPDX-License-Identifier: MIT
"""Every op as a function of tensors."""

from turbo_gemm import gemm
from turbo_norm_act import geglu, geglu_with_probs, layernorm, rmsnorm, rmsnorm_residual, swiglu, swiglu_with_probs

__all__ = [
    "geglu",
    "geglu_with_probs",
    "gemm",
    "layernorm",
    "rmsnorm",
    "rmsnorm_residual",
    "swiglu",
    "swiglu_with_probs",
]
