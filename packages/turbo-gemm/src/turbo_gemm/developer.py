# SPDX-License-Identifier: MIT
"""What other wheels build on, besides the names of `turbo_gemm` itself. Imported lazily.

- `multiply_payloads`: a product of operands that are quantised already, payloads and scales, in any granularity.
"""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_gemm.pytorch.ops.payload_product import multiply_payloads

__all__ = ["multiply_payloads"]

__getattr__, __dir__ = attach(__name__, {"multiply_payloads": "turbo_gemm.pytorch.ops.payload_product"})
