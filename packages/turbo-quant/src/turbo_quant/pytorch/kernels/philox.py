# SPDX-License-Identifier: MIT
"""Philox4x32-10 in torch integers (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC11)."""

from __future__ import annotations

import torch

__all__ = ["philox_uniform", "philox_words"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_COLUMN_BIT = 1 << 31


def _high_low(multiplier: int, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product = value * multiplier  # wraps at 64 bits, which keeps all of them
    return (product >> 32) & _MASK, product & _MASK


def philox_words(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Four 32-bit words for each counter, in a new last dimension. Counters and keys are int64 that hold 32 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _high_low(_MULTIPLIERS[0], c0)
        high1, low1 = _high_low(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack((c0, c1, c2, c3), dim=-1)


def philox_uniform(shape: torch.Size, rng: torch.Tensor, *, column: bool) -> torch.Tensor:
    """u in [0, 1) with 24 bits, float32, for each element of a copy of ``shape`` (its size a multiple of 4).

    ``rng`` is int64 [2], seed and offset, read on its device.
    """
    index = torch.arange(shape.numel() // 4, device=rng.device)
    seed, offset = rng.unbind()
    offset_high = (offset >> 32) & _MASK
    if column:
        offset_high = offset_high ^ _COLUMN_BIT
    counter = (index & _MASK, index >> 32, offset & _MASK, offset_high)
    words = philox_words(counter, (seed & _MASK, (seed >> 32) & _MASK))
    return ((words >> 8).float() * 2.0**-24).view(shape)
