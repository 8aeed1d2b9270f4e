# SPDX-License-Identifier: MIT
"""How a device mesh may divide grouped products: by columns of b, or along the contraction.

Rows are not divided: which group a row belongs to depends on all rows before it. Along the contraction each rank has a
term of C, to which it adds its share of the bias. Groups and indices are the same on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turbo_core import UnsupportedError
from turbo_core.sharding import SUM, WHOLE, Rule, Shapes, Split

__all__ = ["REPLICATED", "grouped_gemm_rules"]

REPLICATED = ("group_lens", "group_offs", "a_idx", "out_idx")


def grouped_gemm_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of grouped_gemm."""
    pattern = arguments["fuse_bgrad_accum_pattern"]
    if pattern is not None:
        raise UnsupportedError(
            f"grouped_gemm: fuse_bgrad_accum_pattern={pattern!r} of a DTensor; None is accepted, or local tensors"
        )
    a, b = shapes.get("a", ()), shapes.get("b", ())
    if len(a) not in (2, 3) or len(b) != 3:
        return [WHOLE]
    last = len(a) - 1
    k, n = (2, 1) if arguments["trans_b"] else (1, 2)
    return [
        WHOLE,
        Rule({"b": n, "bias": 1}, (Split(last, b[n]),)),
        Rule({"a": last, "b": k}, (SUM,), ("bias",)),
    ]
