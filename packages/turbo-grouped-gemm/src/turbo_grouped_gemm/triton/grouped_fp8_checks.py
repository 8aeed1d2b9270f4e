# SPDX-License-Identifier: MIT
"""What the launchers of grouped FP8 products ask of their operands and results."""

from __future__ import annotations

import torch

from turbo_core.device import DeviceFacts
from turbo_core.low_precision import ScalingGranularity
from turbo_grouped_gemm.calls import GroupedOperand

__all__ = ["BLOCK_SIZE", "why_not_operands"]

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
