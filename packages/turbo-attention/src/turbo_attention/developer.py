# SPDX-License-Identifier: MIT
"""What other wheels build on, besides the names of `turbo_attention` itself. Imported lazily.

- `sparse_mla_gradients`: the gradients of `turbo_attention.sparse_mla_func` from its results, without a graph.
"""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_attention.pytorch.ops.sparse_mla_gradients import sparse_mla_gradients

__all__ = ["sparse_mla_gradients"]

__getattr__, __dir__ = attach(__name__, {"sparse_mla_gradients": "turbo_attention.pytorch.ops.sparse_mla_gradients"})
