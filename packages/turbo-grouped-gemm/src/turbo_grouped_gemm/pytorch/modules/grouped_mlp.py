# SPDX-License-Identifier: MIT
"""`GroupedMLP`: the gated MLP of each expert, on `turbo_grouped_gemm.grouped_mlp`."""

from __future__ import annotations

import math
from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_grouped_gemm.pytorch.ops.grouped_mlp import grouped_mlp

__all__ = ["GroupedMLP"]


class GroupedMLP(torch.nn.Module):
    """y[r] = (act(gate) up probs[r]) W2[g]^T with [gate, up] = x[r] W1[g]^T, for each row r of group g.

    Each group is initialised as ``torch.nn.Linear`` initialises its parameters.

    Args:
        group_num: number of groups.
        hidden_size: size of the last dimension of x, and of y.
        ffn_size: columns of the gate, and of up.
        activation, clamp_limit, limit, alpha: see `turbo_grouped_gemm.grouped_mlp`.
        device: where the parameters live.
        dtype: of the parameters.
        fuse_wgrad_accumulation: the gradients of the weights are added to their ``main_grad`` by their products; both
            need ``main_grad`` and ``grad_added_to_main_grad`` wherever they get a gradient.

    Attributes:
        w1: [group_num, 2 ffn_size, hidden_size], the gate's rows first.
        w2: [group_num, hidden_size, ffn_size].

    Raises:
        UnsupportedError: what `turbo_grouped_gemm.grouped_mlp` refuses.
    """

    def __init__(
        self,
        group_num: int,
        hidden_size: int,
        ffn_size: int,
        activation: str | None = None,
        *,
        clamp_limit: float | None = None,
        limit: float | None = None,
        alpha: float | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        fuse_wgrad_accumulation: bool = False,
    ) -> None:
        super().__init__()
        self.group_num, self.hidden_size, self.ffn_size = group_num, hidden_size, ffn_size
        self.activation, self.fuse_wgrad_accumulation = activation, fuse_wgrad_accumulation
        self.clamp_limit, self.limit, self.alpha = clamp_limit, limit, alpha
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.w1 = torch.nn.Parameter(torch.empty(group_num, 2 * ffn_size, hidden_size, **made))
        self.w2 = torch.nn.Parameter(torch.empty(group_num, hidden_size, ffn_size, **made))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        for weight in (self.w1, self.w2):
            bound = 1 / math.sqrt(weight.shape[2]) if weight.shape[2] else 0.0
            torch.nn.init.uniform_(weight, -bound, bound)

    def forward(
        self,
        x: torch.Tensor,
        group_lens: torch.Tensor,
        group_offs: torch.Tensor | None = None,
        probs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """y like x [R,hidden] or [G,M,hidden]; groups and probs as for `turbo_grouped_gemm.grouped_mlp`."""
        return grouped_mlp(
            x,
            self.w1,
            self.w2,
            group_lens,
            group_offs,
            probs,
            trans_w1=True,
            trans_w2=True,
            fuse_wgrad_accum_pattern=self._pattern(),
            activation=self.activation,
            clamp_limit=self.clamp_limit,
            limit=self.limit,
            alpha=self.alpha,
        )

    def _pattern(self) -> str | None:
        """How the weights' gradients are accumulated, where they get one."""
        weights = (self.w1, self.w2)
        needed = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
        if not self.fuse_wgrad_accumulation or not needed:
            return None
        if not all(hasattr(w, "main_grad") and hasattr(w, "grad_added_to_main_grad") for w in weights):
            raise UnsupportedError(
                "GroupedMLP: fuse_wgrad_accumulation=True needs main_grad (a tensor of the weight's shape) and "
                "grad_added_to_main_grad of w1 and w2; these lack them"
            )
        return "megatron"

    def extra_repr(self) -> str:
        sizes = f"{self.group_num}, {self.hidden_size}, {self.ffn_size}, activation={self.activation!r}"
        return sizes + (", fuse_wgrad_accumulation=True" if self.fuse_wgrad_accumulation else "")
