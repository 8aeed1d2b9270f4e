# SPDX-License-Identifier: MIT
"""Which rows of a large result are compared with float64."""

from __future__ import annotations

import torch
from torch import Tensor


def one_of_each_stretch(count: int, stretches: int, device: torch.device) -> Tensor:
    """Rows of ``count``, one at random out of each of ``stretches`` equal stretches; all of them where there are no
    more than that."""
    if count <= stretches:
        return torch.arange(count, device=device)
    edges = torch.linspace(0, count, stretches + 1, device=device, dtype=torch.float64).long()
    widths = edges[1:] - edges[:-1]
    return edges[:-1] + (torch.rand(stretches, device=device) * widths).long()
