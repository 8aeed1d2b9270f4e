# SPDX-License-Identifier: MIT
"""How a device mesh may divide the products: by rows of op(a), by columns of op(b), or along the contraction.

Along the contraction each rank has a term of C, to which it adds its share of the bias. `Linear` and its kin keep their
leading dimensions, each of which may be divided: sequence parallel activations are not gathered for their shape.

Shards of quantised products are quantised where they are. A TENSORWISE scale is that of the whole matrix. Other scales
are those of the shards: the same numbers where blocks are not cut, finer ones where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turbo_core import UnsupportedError
from turbo_core.sharding import SUM, WHOLE, Rule, Shapes, Split, full_pieces

__all__ = ["gemm_rules", "linear_rules", "gemm_fp8_rules", "linear_fp8_rules"]


def _refuse_main_grad(pattern: str | None) -> None:
    if pattern is not None:
        raise UnsupportedError(
            f"gemm: fuse_bgrad_accum_pattern={pattern!r} of a DTensor; None is accepted, or local tensors"
        )


def gemm_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of gemm."""
    _refuse_main_grad(arguments["fuse_bgrad_accum_pattern"])
    m, k_a = (1, 0) if arguments["trans_a"] else (0, 1)
    k_b, n = (1, 0) if arguments["trans_b"] else (0, 1)
    a, b = shapes.get("a", ()), shapes.get("b", ())
    if len(a) != 2 or len(b) != 2:
        return [WHOLE]
    return [
        WHOLE,
        Rule({"a": m}, (Split(0, a[m]),)),
        Rule({"b": n, "bias": 0}, (Split(1, b[n]),)),
        Rule({"a": k_a, "b": k_b}, (SUM,), ("bias",)),
    ]


def linear_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of y [...,N] = x [...,K] W [N,K]^T + bias."""
    _refuse_main_grad(arguments["options"].get("fuse_bgrad_accum_pattern"))
    x, weight = shapes.get("x", ()), shapes.get("weight", ())
    if not x or len(weight) != 2:
        return [WHOLE]
    last = len(x) - 1
    return [
        WHOLE,
        *(Rule({"x": dim}, (Split(dim, x[dim]),)) for dim in range(last)),
        Rule({"weight": 0, "bias": 0}, (Split(last, weight[0]),)),
        Rule({"x": last, "weight": 1}, (SUM,), ("bias",)),
    ]


def gemm_fp8_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of gemm_fp8 and gemm_fp4."""
    return full_pieces(gemm_rules(shapes, arguments, parts), shapes, parts)


def linear_fp8_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of their layers."""
    return full_pieces(linear_rules(shapes, arguments, parts), shapes, parts)
