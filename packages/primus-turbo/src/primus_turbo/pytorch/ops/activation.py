# SPDX-License-Identifier: MIT
"""Gated activations."""

from turbo_norm_act import geglu, geglu_with_probs, swiglu, swiglu_with_probs

__all__ = ["geglu", "geglu_with_probs", "swiglu", "swiglu_with_probs"]
