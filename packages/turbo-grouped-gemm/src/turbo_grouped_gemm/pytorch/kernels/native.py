# SPDX-License-Identifier: MIT
"""The native library of the wheel."""

from __future__ import annotations

from turbo_core.native import NativeLibrary

__all__ = ["library", "reset"]

library = NativeLibrary("turbo_grouped_gemm")
reset = library.reset  # for simulators, which put another device behind an index
