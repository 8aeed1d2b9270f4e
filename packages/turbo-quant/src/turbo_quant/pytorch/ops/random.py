# SPDX-License-Identifier: MIT
"""Random numbers of quantisation: the state of stochastic rounding, and signs of the Hadamard rotation."""

from __future__ import annotations

import torch

from turbo_core import UnsupportedError
from turbo_quant.pytorch.kernels.hadamard import HADAMARD_SIZE, rotate, unrotate
from turbo_quant.pytorch.ops.checks import DTYPES, check_sign_mask, what

__all__ = ["hadamard_transform", "random_sign_mask", "rng_state"]


def rng_state(device: torch.device | str) -> torch.Tensor:
    """A seed and an offset for stochastic rounding: int64 [2], drawn from torch's generator of ``device``.

    It follows `torch.manual_seed`, stays on the device, and differs at each replay of a captured graph.
    """
    return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=device)


def random_sign_mask(generator: torch.Generator | None = None) -> int:
    """16 random signs for the Hadamard rotation, from torch's CPU generator (or the one given)."""
    return int(torch.randint(0, 1 << HADAMARD_SIZE, (), generator=generator).item())


def hadamard_transform(x: torch.Tensor, sign_mask: int = 0, *, inverse: bool = False) -> torch.Tensor:
    """y = H D x / 4 for each 16 consecutive elements of the last dimension; orthonormal, so products over it stay.

    H is the 16-point Hadamard matrix in Sylvester order, D the signs (bit i of ``sign_mask`` set: -1). Float32 inside.

    Args:
        x: [..., n], n a multiple of 16; bfloat16, float16 or float32.
        sign_mask: 16 bits.
        inverse: x = D H y / 4 instead.

    Returns:
        A tensor like x, contiguous; differentiable in x.
    """
    check_sign_mask("hadamard_transform", sign_mask)
    if not isinstance(x, torch.Tensor) or x.dtype not in DTYPES or x.dim() == 0 or x.shape[-1] % HADAMARD_SIZE:
        raise UnsupportedError(
            f"hadamard_transform: x is {what(x)}; bfloat16, float16 or float32 with a last dimension that is a "
            f"multiple of {HADAMARD_SIZE} is accepted"
        )
    if x.numel() == 0:
        return torch.empty_like(x.detach(), memory_format=torch.contiguous_format)
    y = (unrotate if inverse else rotate)(x.float(), sign_mask)
    return y.to(x.dtype).contiguous()
