# SPDX-License-Identifier: MIT
"""Dense GEMM for training. Importing it imports neither torch nor triton until a name is used."""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_gemm.pytorch.modules.linear import Linear
    from turbo_gemm.pytorch.modules.linear_fp8 import Float4Linear, Float8Linear
    from turbo_gemm.pytorch.ops.gemm import gemm
    from turbo_gemm.pytorch.ops.gemm_fp4 import gemm_fp4
    from turbo_gemm.pytorch.ops.gemm_fp8 import gemm_fp8

__all__ = ["Float4Linear", "Float8Linear", "Linear", "gemm", "gemm_fp4", "gemm_fp8"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Float4Linear": "turbo_gemm.pytorch.modules.linear_fp8",
        "Float8Linear": "turbo_gemm.pytorch.modules.linear_fp8",
        "Linear": "turbo_gemm.pytorch.modules.linear",
        "gemm": "turbo_gemm.pytorch.ops.gemm",
        "gemm_fp4": "turbo_gemm.pytorch.ops.gemm_fp4",
        "gemm_fp8": "turbo_gemm.pytorch.ops.gemm_fp8",
    },
)
