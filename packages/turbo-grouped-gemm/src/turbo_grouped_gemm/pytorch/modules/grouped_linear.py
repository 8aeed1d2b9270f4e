# SPDX-License-Identifier: MIT
"""`GroupedLinear`: a linear layer for each group of rows, on `grouped_gemm` and its quantised kin."""

from __future__ import annotations

import math
from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig
from turbo_grouped_gemm.pytorch.ops.grouped_gemm import grouped_gemm
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8 import KeptWeight, quantised_grouped_gemm

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
        config: a ``Float8QuantConfig`` or a ``Float4QuantConfig`` of `grouped_gemm_fp8` or `grouped_gemm_fp4`; None:
            products are of the dtypes as they are.

    Attributes:
        weight: [group_num, out_features, in_features].

    Raises:
        UnsupportedError: what `turbo_grouped_gemm.grouped_gemm`, or with a config its quantised kin, refuses.
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
        config: Float8QuantConfig | Float4QuantConfig | None = None,
    ) -> None:
        super().__init__()
        if config is not None and not isinstance(config, (Float8QuantConfig, Float4QuantConfig)):
            accepted = "a Float8QuantConfig, a Float4QuantConfig or None is accepted"
            raise UnsupportedError(f"GroupedLinear: config is a {type(config).__name__}; {accepted}")
        self.config = config
        self._kept: KeptWeight | None = None
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
        self,
        x: torch.Tensor,
        group_lens: torch.Tensor,
        group_offs: torch.Tensor | None = None,
        *,
        is_first_microbatch: bool | None = None,
    ) -> torch.Tensor:
        """y [R,out] of x [R,in], or [G,M,out] of [G,M,in]; groups as for `turbo_grouped_gemm.grouped_gemm`.

        Args:
            is_first_microbatch: with a config: True quantises the weight and keeps its payloads, both of a byte or less
                an element; False uses what the last True has kept, for further micro-batches of a step, between which
                the weight does not change. None quantises it for this call alone.
        """
        pattern = self._pattern()
        if self.config is None:
            return grouped_gemm(
                x,
                self.weight,
                group_lens,
                group_offs,
                trans_b=True,
                fuse_bgrad_accum_pattern=pattern,
                bias=self.bias,
            )
        op = "grouped_gemm_fp4" if isinstance(self.config, Float4QuantConfig) else "grouped_gemm_fp8"
        return quantised_grouped_gemm(
            op, x, self.weight, group_lens, group_offs, True, None, self.config, None, pattern, self.bias, "static",
            None, None, None, self._kept_weight(is_first_microbatch),
        )  # fmt: skip

    def _kept_weight(self, is_first_microbatch: bool | None) -> KeptWeight | None:
        if is_first_microbatch is None:
            return None
        if is_first_microbatch:
            self._kept = KeptWeight()
        elif self._kept is None:
            raise UnsupportedError(
                "GroupedLinear: is_first_microbatch=False before a call with True; None and True are accepted"
            )
        return self._kept

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
        if self.config is not None:
            sizes += f", {self.config.format.name}, {self.config.granularity.name}"
        return sizes + (", fuse_wgrad_accumulation=True" if self.fuse_wgrad_accumulation else "")
