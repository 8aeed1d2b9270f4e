# SPDX-License-Identifier: MIT
"""The 16-point Hadamard rotation with signs: y = H D x / 4, in the order of additions that all backends share."""

from __future__ import annotations

import torch

__all__ = ["HADAMARD_SIZE", "rotate", "unrotate"]

HADAMARD_SIZE = 16


def _signs(sign_mask: int, device: torch.device) -> torch.Tensor:
    bits = torch.arange(HADAMARD_SIZE, device=device)
    return (1 - 2 * ((sign_mask >> bits) & 1)).float()


def _butterflies(x: torch.Tensor) -> torch.Tensor:
    """H x / 4 for pieces x [..., 16] in Sylvester order."""
    shape = x.shape
    for stride in (1, 2, 4, 8):
        a, b = x.view(*shape[:-1], HADAMARD_SIZE // (2 * stride), 2, stride).unbind(-2)
        x = torch.stack((a + b, a - b), dim=-2).view(shape)
    return x * 0.25


def rotate(x: torch.Tensor, sign_mask: int) -> torch.Tensor:
    """Each 16 consecutive elements of the last dimension (a multiple of 16), float32."""
    pieces = x.reshape(*x.shape[:-1], -1, HADAMARD_SIZE)
    return _butterflies(pieces * _signs(sign_mask, x.device)).view(x.shape)


def unrotate(y: torch.Tensor, sign_mask: int) -> torch.Tensor:
    """The inverse of `rotate`: x = D H y / 4."""
    pieces = y.reshape(*y.shape[:-1], -1, HADAMARD_SIZE)
    return (_butterflies(pieces) * _signs(sign_mask, y.device)).view(y.shape)
