# SPDX-License-Identifier: MIT
"""`GroupedLinear`: a linear layer for each group of rows, on `turbo_grouped_gemm.grouped_gemm`."""

from __future__ import annotations

import math
from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_grouped_gemm.pytorch.ops.grouped_gemm import grouped_gemm

__all__ = ["GroupedLinear"]


class GroupedLinear(torch.nn.Module):
    """y[r] = x[r] W[g]^T + bias[g] for each row r of group g: the linear layers of the experts of a mixture.

    Each group is initialised as ``torch.nn.Linear`` initialises its parameters.

    Args:
        group_num: number of groups.
        in_features: size of the last dimension of x.
        out_features: size of the last dimension of y.
        device: where the parameters live.
        dtype: of the parameters.
        bias: whether there is a bias [group_num, out_features].
        fuse_wgrad_accumulation: the gradient of the weight is added to ``weight.main_grad`` by its product; the weight
            needs ``main_grad`` and ``grad_added_to_main_grad`` wherever it gets a gradient.

    Attributes:
        weight: [group_num, out_features, in_features].

    Raises:
        UnsupportedError: what `turbo_grouped_gemm.grouped_gemm` refuses.
    """

    def __init__(
        self,
        group_num: int,
        in_features: int,
        out_features: int,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = False,
        fuse_wgrad_accumulation: bool = False,
    ) -> None:
        super().__init__()
        self.group_num, self.in_features, self.out_features = group_num, in_features, out_features
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(torch.empty(group_num, out_features, in_features, **made))
        self.bias = torch.nn.Parameter(torch.empty(group_num, out_features, **made)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        for parameter in self.parameters(recurse=False):
            torch.nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self, x: torch.Tensor, group_lens: torch.Tensor, group_offs: torch.Tensor | None = None
    ) -> torch.Tensor:
        """y [R,out] of x [R,in], or [G,M,out] of [G,M,in]; groups as for `turbo_grouped_gemm.grouped_gemm`."""
        return grouped_gemm(
            x,
            self.weight,
            group_lens,
            group_offs,
            trans_b=True,
            fuse_bgrad_accum_pattern=self._pattern(),
            bias=self.bias,
        )

    def _pattern(self) -> str | None:
        """How the weight's gradient is accumulated, where it gets one."""
        if not self.fuse_wgrad_accumulation or not self.weight.requires_grad or not torch.is_grad_enabled():
            return None
        if not hasattr(self.weight, "main_grad") or not hasattr(self.weight, "grad_added_to_main_grad"):
            raise UnsupportedError(
                "GroupedLinear: fuse_wgrad_accumulation=True needs weight.main_grad (a tensor of the weight's shape) "
                "and weight.grad_added_to_main_grad; this weight lacks them"
            )
        return "megatron"

    def extra_repr(self) -> str:
        sizes = f"{self.group_num}, {self.in_features}, {self.out_features}, bias={self.bias is not None}"
        return sizes + (", fuse_wgrad_accumulation=True" if self.fuse_wgrad_accumulation else "")
