# SPDX-License-Identifier: MIT
"""Normalisations."""

from turbo_norm_act import layernorm, rmsnorm, rmsnorm_residual

__all__ = ["layernorm", "rmsnorm", "rmsnorm_residual"]
