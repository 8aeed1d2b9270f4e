# SPDX-License-Identifier: MIT
"""What grouped products must equal, in float64: whole, or in some of their rows.

For x [R,K], w [G,N,K] and dy [R,N]: y [R,N] with y[r] = x[r] w[g]^T for the rows r of group g, dx [R,K], dw [G,N,K].
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmark.common.sampling import one_of_each_stretch

__all__ = ["checked_rows", "exact_product", "exact_wgrad"]

Bounds = list[tuple[int, int]]


def checked_rows(count: int, bounds: Bounds, stretches: int, device: torch.device) -> Tensor:
    """Rows of ``count`` to compare: one of each stretch, and the first and the last of each group."""
    edges = {edge for start, end in bounds if end > start for edge in (start, end - 1)}
    sampled = one_of_each_stretch(count, stretches, device)
    return torch.cat([sampled, torch.tensor(sorted(edges), dtype=torch.int64, device=device)]).unique()


def exact_product(a: Tensor, b: Tensor, bounds: Bounds, rows: Tensor) -> Tensor:
    """float64 [len(rows),N]: a[r] b[g] for a [R,K], b [G,K,N] and each of these rows, ascending."""
    parts = [a.new_empty(0, b.shape[2], dtype=torch.float64)]
    for group, (start, end) in enumerate(bounds):
        mine = rows[(rows >= start) & (rows < end)]
        if len(mine):
            parts.append(a[mine].double() @ b[group].double())
    return torch.cat(parts)


def exact_wgrad(dy: Tensor, x: Tensor, bounds: Bounds, rows: Tensor) -> Tensor:
    """float64 [G,len(rows),K]: these rows of dy_g^T x_g for dy [R,N], x [R,K] and each group g."""
    parts = [dy[start:end, rows].double().t() @ x[start:end].double() for start, end in bounds]
    return torch.stack(parts)
