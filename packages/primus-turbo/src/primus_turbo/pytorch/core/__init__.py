# SPDX-License-Identifier: MIT
"""Backend choice, low-precision types and quantised tensors."""

from primus_turbo.pytorch.core import backend, low_precision, quantized_tensor

__all__ = ["backend", "low_precision", "quantized_tensor"]
