# SPDX-License-Identifier: MIT
"""`ScaleRows`."""

from __future__ import annotations

import torch

from turbo_template.pytorch.ops.scale_rows import scale_rows

__all__ = ["ScaleRows"]


class ScaleRows(torch.nn.Module):
    """`turbo_template.scale_rows` as a module: it has no parameters."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """y [..., D] of x [..., D], scale [...] and residual [..., D] or None."""
        return scale_rows(x, scale, residual)
