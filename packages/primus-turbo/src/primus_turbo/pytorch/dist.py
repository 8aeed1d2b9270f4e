# SPDX-License-Identifier: MIT
"""Collectives in low precision."""

from turbo_quant import FP8AllToAll

__all__ = ["FP8AllToAll"]
