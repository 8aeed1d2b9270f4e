# SPDX-License-Identifier: MIT
"""`Linear`: ``torch.nn.Linear`` on `turbo_gemm.gemm`."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from turbo_gemm.pytorch.modules.conversion import TurboLinear, converted
from turbo_gemm.pytorch.ops.gemm import gemm
from turbo_gemm.pytorch.ops.linear import linear

__all__ = ["Linear"]

_Linear = TypeVar("_Linear", bound="Linear")


class Linear(TurboLinear):
    """y = x W^T + bias. Parameters, initialisation and state dict are those of ``torch.nn.Linear``.

    Args:
        in_features: size of the last dimension of x.
        out_features: size of the last dimension of y.
        bias: whether there is a bias [out_features].
        device: where the parameters live.
        dtype: of the parameters.
        fuse_wgrad_accumulation: the gradient of the weight is added to ``weight.main_grad`` by its GEMM; the weight
            needs ``main_grad`` and ``grad_added_to_main_grad`` wherever it gets a gradient.

    Raises:
        UnsupportedError: the last dimension of x is not ``in_features``, or what `turbo_gemm.gemm` refuses.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        fuse_wgrad_accumulation: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation

    @classmethod
    def from_float(
        cls: type[_Linear], mod: torch.nn.Linear, inplace: bool = True, *, fuse_wgrad_accumulation: bool = False
    ) -> _Linear:
        """``mod`` as a layer of this class.

        Args:
            mod: a ``torch.nn.Linear``, or another layer of ours.
            inplace: ``mod`` itself changes its class and keeps everything else; otherwise a deep copy of it does, with
                copies of its parameters, their attributes and hooks.
            fuse_wgrad_accumulation: as for the constructor.

        Raises:
            UnsupportedError: mod is another class or a subclass, or its weight is not its own: parametrized, pruned,
                not initialised, or wrapped by ``fully_shard``. mod is as it was.
        """
        return converted(cls, mod, inplace, fuse_wgrad_accumulation=fuse_wgrad_accumulation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._check(x)
        return linear(gemm, x, self.weight, self.bias, self._options())
