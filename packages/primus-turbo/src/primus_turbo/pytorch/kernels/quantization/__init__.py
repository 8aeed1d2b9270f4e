# SPDX-License-Identifier: MIT
"""Quantisation in the call forms of its kernels."""

from primus_turbo.pytorch.kernels.quantization import quantization_impl

__all__ = ["quantization_impl"]
