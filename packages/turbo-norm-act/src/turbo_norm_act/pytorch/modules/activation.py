# SPDX-License-Identifier: MIT
"""`SwiGLU` and `GeGLU`."""

from __future__ import annotations

import torch

from turbo_norm_act.pytorch.ops.activation import geglu, swiglu
from turbo_norm_act.pytorch.ops.checks import check_clamp

__all__ = ["GeGLU", "SwiGLU"]


class SwiGLU(torch.nn.Module):
    """`turbo_norm_act.swiglu`; ``limit=7.0, interleaved=True`` is the gate of GPT-OSS."""

    def __init__(self, limit: float | None = None, alpha: float | None = None, interleaved: bool = False) -> None:
        super().__init__()
        check_clamp("SwiGLU", limit, alpha)
        self.limit, self.alpha, self.interleaved = limit, alpha, interleaved

    def forward(self, x: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        """x packed [..., 2H], or gate and up [..., H]."""
        return swiglu(x, up, limit=self.limit, alpha=self.alpha, interleaved=self.interleaved)

    def extra_repr(self) -> str:
        return f"limit={self.limit}, alpha={self.alpha}, interleaved={self.interleaved}"


class GeGLU(torch.nn.Module):
    """`turbo_norm_act.geglu`."""

    def __init__(self, approximate: str = "none", interleaved: bool = False) -> None:
        super().__init__()
        self.approximate, self.interleaved = approximate, interleaved

    def forward(self, x: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
        """x packed [..., 2H], or gate and up [..., H]."""
        return geglu(x, up, approximate=self.approximate, interleaved=self.interleaved)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}, interleaved={self.interleaved}"
