# SPDX-License-Identifier: MIT
"""`Linear`: ``torch.nn.Linear`` on `turbo_gemm.gemm`."""

from __future__ import annotations

import torch

from turbo_core import UnsupportedError
from turbo_gemm.pytorch.ops.gemm import gemm
from turbo_gemm.pytorch.ops.linear import linear

__all__ = ["Linear"]


class Linear(torch.nn.Linear):
    """y = x W^T + bias. Parameters, initialisation and state dict are those of ``torch.nn.Linear``.

    Args:
        in_features: size of the last dimension of x.
        out_features: size of the last dimension of y.
        bias: whether there is a bias [out_features].
        device: where the parameters live.
        dtype: of the parameters.

    Raises:
        UnsupportedError: the last dimension of x is not ``in_features``, or what `turbo_gemm.gemm` refuses.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise UnsupportedError(f"Linear: x has shape {list(x.shape)}; [..., {self.in_features}] is accepted")
        return linear(gemm, x, self.weight, self.bias, {})
