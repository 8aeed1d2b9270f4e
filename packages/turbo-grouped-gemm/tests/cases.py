# SPDX-License-Identifier: MIT
"""Shapes for the tests and the benchmark of this wheel, and its formulas for any dtype."""

from __future__ import annotations

# rows, D: tokens of a batch and hidden sizes of models (Llama 3.1 8B and 70B, DeepSeek-V3)
SHAPES = [(8192, 4096), (8192, 8192), (16384, 7168)]

# nothing divides anything, one element, nothing at all, and a row longer than a tile
ODD_SHAPES = [(5, 123), (1, 1), (7, 64), (257, 33), (3, 0), (0, 8), (2, 20001)]


def scale_rows(x, scale, residual=None):
    """The formula of `scale_rows`, in the dtype of its arguments."""
    y = x * scale[..., None]
    return y if residual is None else y + residual
