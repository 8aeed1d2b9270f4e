# SPDX-License-Identifier: MIT
"""Public functions and their gradients."""

from turbo_norm_act.pytorch.ops.activation import geglu, geglu_with_probs, swiglu, swiglu_with_probs
from turbo_norm_act.pytorch.ops.norm import layernorm, rmsnorm, rmsnorm_residual

__all__ = [
    "geglu",
    "geglu_with_probs",
    "layernorm",
    "rmsnorm",
    "rmsnorm_residual",
    "swiglu",
    "swiglu_with_probs",
]
