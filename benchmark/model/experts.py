# SPDX-License-Identifier: MIT
"""The experts of a block without a router, from torch's grouped matmul or from Turbo's ops, with the same parameters.

    h = rows gate_up[g]^T        rows [R,H], each in group g; gate_up [E,2W,H]
    y = swiglu(h) down[g]^T      down [E,H,W]

Each token has top-k rows, and gets their mean. Which expert a row is for depends on its place alone: rows lie expert
after expert without having been permuted, so what is measured is what lies between the two permutations of a mixture
of experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

import turbo_grouped_gemm
import turbo_norm_act
from benchmark.ops.training.grouped_sides import GroupedMm, Groups, Loop, groups_of
from turbo_core.low_precision import Float8QuantConfig
from turbo_testing.group_lens import group_lens

if TYPE_CHECKING:
    from benchmark.model.blocks import BlockShape

__all__ = ["Experts", "TorchExperts", "TurboExperts"]


class Experts(torch.nn.Module):
    """What the implementations have in common.

    Args:
        shape: of the model; its experts have the width ``intermediate``.
        lens: how rows are shared out among experts, one of `turbo_testing.group_lens.GROUP_LENS`.
    """

    def __init__(self, shape: BlockShape, lens: str, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        count, width, hidden = shape.experts, shape.intermediate, shape.hidden
        self.topk, self.lens = shape.topk, lens
        self.gate_up = torch.nn.Parameter(torch.empty(count, 2 * width, hidden, device=device, dtype=dtype))
        self.down = torch.nn.Parameter(torch.empty(count, hidden, width, device=device, dtype=dtype))
        self._groups: dict[int, Groups] = {}

    def groups(self, rows: int) -> Groups:
        """Which rows belong to which expert; on the device before the first timed step."""
        if rows not in self._groups:
            lens = group_lens(self.lens, self.gate_up.shape[0], rows)
            self._groups[rows] = groups_of(lens, self.gate_up.device)
        return self._groups[rows]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, S, hidden = x.shape
        rows = x.view(-1, hidden).repeat(self.topk, 1)
        groups = self.groups(rows.shape[0])
        y = self.product(self.gated(self.product(rows, self.gate_up, groups)), self.down, groups)
        return y.view(self.topk, B, S, hidden).mean(0)

    def product(self, rows: torch.Tensor, weight: torch.Tensor, groups: Groups) -> torch.Tensor:
        """rows [R,K], weight [E,N,K] -> [R,N]."""
        raise NotImplementedError

    def gated(self, h: torch.Tensor) -> torch.Tensor:
        """silu(gate) up of h [R,2W]."""
        raise NotImplementedError


class TorchExperts(Experts):
    """torch's grouped matmul; a loop of products in float32, for which that has no kernel on every GPU."""

    def product(self, rows: torch.Tensor, weight: torch.Tensor, groups: Groups) -> torch.Tensor:
        side = GroupedMm() if weight.dtype == torch.bfloat16 else Loop()
        return side.forward(rows, weight, groups)

    def gated(self, h: torch.Tensor) -> torch.Tensor:
        gate, up = h.chunk(2, -1)
        return F.silu(gate) * up


class TurboExperts(Experts):
    """Turbo's ops; in FP8 under a config."""

    config: Float8QuantConfig | None = None

    def product(self, rows: torch.Tensor, weight: torch.Tensor, groups: Groups) -> torch.Tensor:
        if self.config is None:
            return turbo_grouped_gemm.grouped_gemm(rows, weight, groups.lens, trans_b=True)
        return turbo_grouped_gemm.grouped_gemm_fp8(rows, weight, groups.lens, trans_b=True, config=self.config)

    def gated(self, h: torch.Tensor) -> torch.Tensor:
        return turbo_norm_act.swiglu(h)
