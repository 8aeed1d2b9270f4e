# SPDX-License-Identifier: MIT
"""Dense GEMM for training. Importing it imports neither torch nor triton until a name is used."""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_gemm.pytorch.modules.linear import Linear
    from turbo_gemm.pytorch.ops.gemm import gemm

__all__ = ["Linear", "gemm"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Linear": "turbo_gemm.pytorch.modules.linear",
        "gemm": "turbo_gemm.pytorch.ops.gemm",
    },
)
