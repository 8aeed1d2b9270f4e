# SPDX-License-Identifier: MIT
"""What the linear layers compute: a product of the rows of x, whose leading dimensions stay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from turbo_core.sharding import shardable
from turbo_gemm.pytorch.ops.gemm_fp8 import quantised_gemm
from turbo_gemm.pytorch.ops.sharding import linear_fp8_rules, linear_rules

__all__ = ["linear", "linear_fp8"]


def _of_rows(x: torch.Tensor, product: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    leading = x.shape[:-1]
    y = product(x.reshape(math.prod(leading), x.shape[-1]))
    return y.view(*leading, y.shape[-1])


@shardable(linear_rules, name="Linear")
def linear(
    product: Callable[..., torch.Tensor],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    options: Mapping[str, Any],
) -> torch.Tensor:
    """y [...,N] = x [...,K] weight [N,K]^T + bias by ``product``, which is gemm or quantises, with its ``options``."""
    return _of_rows(x, lambda rows: product(rows, weight, trans_b=True, bias=bias, **options))


def _linear_fp8_of_shards(
    product: Callable[..., torch.Tensor],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    options: Mapping[str, Any],
    divided: Mapping[str, tuple[str, ...]],
) -> torch.Tensor:
    groups = (divided.get("x", ()), divided.get("weight", ()), divided["output"])
    op, config = product.__name__, options["config"]
    return _of_rows(x, lambda rows: quantised_gemm(op, rows, weight, False, True, None, config, None, bias, groups))


@shardable(linear_fp8_rules, _linear_fp8_of_shards, name="Float8Linear, Float4Linear")
def linear_fp8(
    product: Callable[..., torch.Tensor],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    options: Mapping[str, Any],
) -> torch.Tensor:
    """`linear` for a product that quantises by ``options["config"]``."""
    return _of_rows(x, lambda rows: product(rows, weight, trans_b=True, bias=bias, **options))
