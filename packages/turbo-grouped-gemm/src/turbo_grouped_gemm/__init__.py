# SPDX-License-Identifier: MIT
"""Grouped GEMM of mixture-of-experts training. Importing it imports neither torch nor triton before first use."""

from turbo_core.lazy import attach

__all__: list[str] = []

__getattr__, __dir__ = attach(__name__, {})
