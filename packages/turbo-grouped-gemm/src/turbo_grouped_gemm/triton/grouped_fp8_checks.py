# SPDX-License-Identifier: MIT
"""What the launchers of grouped FP8 products ask of their operands and results."""

from __future__ import annotations

import torch

from turbo_core.device import DeviceFacts
from turbo_core.low_precision import ScalingGranularity
from turbo_core.prepared import ALIGNMENT
from turbo_gemm.developer import MAX_REGULAR_STRIDE
from turbo_grouped_gemm.calls import GroupedOperand

__all__ = ["BLOCK_SIZE", "is_regular", "why_not_operands"]

BLOCK_SIZE = 128  # of BLOCKWISE: the rows of a group are padded to it

_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def why_not_operands(
    x: GroupedOperand, y: GroupedOperand, granularity: ScalingGranularity, block_size: int, facts: DeviceFacts
) -> str | None:
    """Why the kernels cannot multiply them; None when they can."""
    if facts.vendor == "nvidia" and (x.data.dtype in _FNUZ or y.data.dtype in _FNUZ):
        return f"operands are {x.data.dtype} and {y.data.dtype}; Triton compiles FNUZ types for AMD only"
    if granularity is ScalingGranularity.BLOCKWISE and block_size != BLOCK_SIZE:
        return f"block_size={block_size}; it must be {BLOCK_SIZE}"
    return None


def is_regular(c: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether C [...,N] and the bias are as rows of a table need them that are not for "any": aligned, unit stride."""
    for x in (c,) if bias is None else (c, bias):
        if x.data_ptr() % ALIGNMENT or x.stride(-1) != 1:
            return False
    return all(stride % ALIGNMENT == 0 for stride in c.stride()[:-1]) and c.stride(-2) <= MAX_REGULAR_STRIDE
