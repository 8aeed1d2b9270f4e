# SPDX-License-Identifier: MIT
"""What other wheels build on, besides the names of `turbo_grouped_gemm` itself. Imported lazily.

- `grouped_wgrad`: a contraction over the rows of each group, X_g^T Y_g.
- `multiply_grouped_payloads`, `contract_grouped_payloads`: both kinds of product of operands that are quantised
  already, payloads and scales, in any granularity.
"""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_grouped_gemm.pytorch.ops.grouped_payloads import contract_grouped_payloads, multiply_grouped_payloads
    from turbo_grouped_gemm.pytorch.ops.grouped_wgrad import grouped_wgrad

__all__ = ["contract_grouped_payloads", "grouped_wgrad", "multiply_grouped_payloads"]

_PAYLOADS = "turbo_grouped_gemm.pytorch.ops.grouped_payloads"

__getattr__, __dir__ = attach(
    __name__,
    {
        "contract_grouped_payloads": _PAYLOADS,
        "grouped_wgrad": "turbo_grouped_gemm.pytorch.ops.grouped_wgrad",
        "multiply_grouped_payloads": _PAYLOADS,
    },
)
