# SPDX-License-Identifier: MIT
"""`RMSNorm` and `LayerNorm`."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_norm_act.pytorch.ops.norm import layernorm, rmsnorm, rmsnorm_residual

__all__ = ["LayerNorm", "RMSNorm"]


def _width(name: str, normalized_shape: Any) -> int:
    shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    if len(shape) != 1 or not isinstance(shape[0], int) or shape[0] < 0:
        raise UnsupportedError(f"{name}: normalized_shape={normalized_shape!r}; one size (D or [D]) is accepted")
    return shape[0]


def _check_input(name: str, x: torch.Tensor, D: int) -> None:
    if not isinstance(x, torch.Tensor):
        raise UnsupportedError(f"{name}: x is {x!r}; a tensor [..., {D}] is accepted")
    if x.dim() == 0 or x.shape[-1] != D:
        raise UnsupportedError(f"{name}: x has shape {list(x.shape)}; [..., {D}] is accepted")


class RMSNorm(torch.nn.Module):
    """`turbo_norm_act.rmsnorm` with a weight [D].

    Args:
        normalized_shape: D, or [D].
        eps: None means 1e-6.
        elementwise_affine: whether there is a weight.
        zero_centered_gamma: the weight starts at 0 and 1 is added to it.
        device: where the weight lives.
        dtype: of the weight; x may have another.
    """

    def __init__(
        self,
        normalized_shape: int | list[int] | tuple[int, ...],
        eps: float | None = None,
        elementwise_affine: bool = True,
        zero_centered_gamma: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = (_width("RMSNorm", normalized_shape),)
        self.eps = 1e-6 if eps is None else eps
        self.elementwise_affine = elementwise_affine
        self.zero_centered_gamma = zero_centered_gamma
        weight = torch.empty(self.normalized_shape, device=device, dtype=dtype) if elementwise_affine else None
        self.register_parameter("weight", None if weight is None else torch.nn.Parameter(weight))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The weight to what changes nothing: 1, or 0 where it is zero-centred."""
        if self.weight is not None:
            torch.nn.init.constant_(self.weight, 0.0 if self.zero_centered_gamma else 1.0)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """y; with a residual, (y, x + residual) where y is the norm of the sum."""
        _check_input("RMSNorm", x, self.normalized_shape[0])
        if residual is None:
            return rmsnorm(x, self.weight, self.eps, self.zero_centered_gamma)
        return rmsnorm_residual(x, residual, self.weight, self.eps, self.zero_centered_gamma)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"zero_centered_gamma={self.zero_centered_gamma}"
        )


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm`` over the last dimension, on `turbo_norm_act.layernorm`; state dict and arguments alike.

    Args:
        normalized_shape: D, or [D].
        eps, elementwise_affine, bias, device, dtype: as for ``torch.nn.LayerNorm``.
    """

    def __init__(
        self,
        normalized_shape: int | list[int] | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        width = _width("LayerNorm", normalized_shape)
        super().__init__(width, eps, elementwise_affine, bias, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _check_input("LayerNorm", x, self.normalized_shape[0])
        return layernorm(x, self.weight, self.bias, self.eps)
