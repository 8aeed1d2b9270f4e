# SPDX-License-Identifier: MIT
"""``torch.nn`` modules."""

from turbo_gemm.pytorch.modules.linear import Linear
from turbo_gemm.pytorch.modules.linear_fp8 import Float4Linear, Float8Linear

__all__ = ["Float4Linear", "Float8Linear", "Linear"]
