# SPDX-License-Identifier: MIT
"""What other wheels build on, besides the names of `turbo_grouped_gemm` itself. Imported lazily.

- `grouped_wgrad`: a contraction over the rows of each group, X_g^T Y_g.
"""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_grouped_gemm.pytorch.ops.grouped_wgrad import grouped_wgrad

__all__ = ["grouped_wgrad"]

__getattr__, __dir__ = attach(__name__, {"grouped_wgrad": "turbo_grouped_gemm.pytorch.ops.grouped_wgrad"})
