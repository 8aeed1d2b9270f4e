# SPDX-License-Identifier: MIT
"""Every op as a function of tensors."""

from turbo_gemm import gemm, gemm_fp4, gemm_fp8
from turbo_norm_act import geglu, geglu_with_probs, layernorm, rmsnorm, rmsnorm_residual, swiglu, swiglu_with_probs

__all__ = [
    "geglu",
    "geglu_with_probs",
    "gemm",
    "gemm_fp4",
    "gemm_fp8",
    "layernorm",
    "rmsnorm",
    "rmsnorm_residual",
    "swiglu",
    "swiglu_with_probs",
]
