# SPDX-License-Identifier: MIT
"""The orders in which preshuffled FP4 GEMM kernels (AITER's layout) read scales and payloads, and back.

Scales, from [rows, cols] padded with zeros to multiples of 256 and 8: the byte of (row, col) goes to

    (row / 32)(cols / 8) 256 + (col / 8) 256 + (col % 4) 64 + (row % 16) 4 + ((col % 8) / 4) 2 + (row % 32) / 16

Payloads, from [rows, bytes], rows a multiple of 16 and bytes of 32: tiles of 16 rows x 32 bytes, each as two halves of
16 x 16 bytes.
"""

from __future__ import annotations

import torch

from turbo_quant.calls import SHUFFLED_SCALE_COLUMNS, SHUFFLED_SCALE_ROWS

__all__ = [
    "WEIGHT_BYTES",
    "WEIGHT_ROWS",
    "shuffle_scale_bytes",
    "shuffle_weight_bytes",
    "unshuffle_scale_bytes",
    "unshuffle_weight_bytes",
]

WEIGHT_ROWS, WEIGHT_BYTES = 16, 32


def shuffle_scale_bytes(scale: torch.Tensor) -> torch.Tensor:
    """uint8 [..., rows, cols] -> [..., rows up to 256, cols up to 8], contiguous."""
    rows, columns = scale.shape[-2:]
    scale = torch.nn.functional.pad(scale, (0, -columns % SHUFFLED_SCALE_COLUMNS, 0, -rows % SHUFFLED_SCALE_ROWS))
    parts = scale.unflatten(-1, (-1, 2, 4)).unflatten(
        -4, (-1, 2, 16)
    )  # row/32, row%32/16, row%16, col/8, col%8/4, col%4
    return parts.movedim((-6, -3, -1, -4, -2, -5), (-6, -5, -4, -3, -2, -1)).reshape(scale.shape)


def unshuffle_scale_bytes(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The inverse of `shuffle_scale_bytes`, without its padding."""
    parts = scale.unflatten(-2, (-1, 32)).flatten(-2).unflatten(-1, (-1, 4, 16, 2, 2))
    parts = parts.movedim((-6, -5, -4, -3, -2, -1), (-6, -3, -1, -4, -2, -5))
    return parts.reshape(scale.shape)[..., :rows, :columns].contiguous()


def shuffle_weight_bytes(payload: torch.Tensor) -> torch.Tensor:
    """uint8 [..., rows, bytes] -> the same shape, contiguous."""
    parts = payload.unflatten(-1, (-1, 2, 16)).unflatten(
        -4, (-1, WEIGHT_ROWS)
    )  # row/16, row%16, byte/32, half, byte%16
    return parts.movedim((-5, -3, -2, -4, -1), (-5, -4, -3, -2, -1)).reshape(payload.shape)


def unshuffle_weight_bytes(payload: torch.Tensor) -> torch.Tensor:
    """The inverse of `shuffle_weight_bytes`."""
    parts = payload.unflatten(-2, (-1, WEIGHT_ROWS)).flatten(-2).unflatten(-1, (-1, 2, WEIGHT_ROWS, 16))
    return parts.movedim((-5, -4, -3, -2, -1), (-5, -3, -2, -4, -1)).reshape(payload.shape)
