# SPDX-License-Identifier: MIT
"""Backend choice and low-precision types."""

from primus_turbo.pytorch.core import backend, low_precision

__all__ = ["backend", "low_precision"]
