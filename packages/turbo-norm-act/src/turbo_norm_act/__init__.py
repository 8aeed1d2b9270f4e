# SPDX-License-Identifier: MIT
"""Normalisation and gated activations for training. Importing it imports neither torch nor triton before first use."""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_norm_act.pytorch.modules.activation import GeGLU, SwiGLU
    from turbo_norm_act.pytorch.modules.norm import LayerNorm, RMSNorm
    from turbo_norm_act.pytorch.ops.activation import geglu, geglu_with_probs, swiglu, swiglu_with_probs
    from turbo_norm_act.pytorch.ops.norm import layernorm, rmsnorm, rmsnorm_residual

__all__ = [
    "GeGLU",
    "LayerNorm",
    "RMSNorm",
    "SwiGLU",
    "geglu",
    "geglu_with_probs",
    "layernorm",
    "rmsnorm",
    "rmsnorm_residual",
    "swiglu",
    "swiglu_with_probs",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "GeGLU": "turbo_norm_act.pytorch.modules.activation",
        "LayerNorm": "turbo_norm_act.pytorch.modules.norm",
        "RMSNorm": "turbo_norm_act.pytorch.modules.norm",
        "SwiGLU": "turbo_norm_act.pytorch.modules.activation",
        "geglu": "turbo_norm_act.pytorch.ops.activation",
        "geglu_with_probs": "turbo_norm_act.pytorch.ops.activation",
        "layernorm": "turbo_norm_act.pytorch.ops.norm",
        "rmsnorm": "turbo_norm_act.pytorch.ops.norm",
        "rmsnorm_residual": "turbo_norm_act.pytorch.ops.norm",
        "swiglu": "turbo_norm_act.pytorch.ops.activation",
        "swiglu_with_probs": "turbo_norm_act.pytorch.ops.activation",
    },
)
