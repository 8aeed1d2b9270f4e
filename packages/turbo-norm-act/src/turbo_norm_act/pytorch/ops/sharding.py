# SPDX-License-Identifier: MIT
"""How a device mesh may divide norms and activations: by rows, that is along any dimension but the last.

Parameters are whole on every rank, and their gradients sums over the ranks. A gate and its up in two tensors may be
divided by columns as well, and so may packed ones whose columns alternate; with both halves one after the other a
shard of the columns would hold gates alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turbo_core.sharding import WHOLE, Rule, Shapes, Split

__all__ = ["activation_rules", "norm_rules", "probs_rules"]


def norm_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of rmsnorm, rmsnorm_residual and layernorm."""
    x = shapes.get("x", ())
    return [WHOLE, *(Rule({"x": dim, "residual": dim}, (Split(dim, x[dim]),) * 2) for dim in range(len(x) - 1))]


def _columns(x: Sequence[int], arguments: Mapping[str, Any], parts: int) -> int | None:
    """Columns of the output, where shards of x's columns give shards of them."""
    if arguments.get("up") is not None:
        return x[-1]
    return x[-1] // 2 if arguments["interleaved"] and x[-1] % (2 * parts) == 0 else None


def activation_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of swiglu and geglu."""
    x = shapes.get("x", ())
    last = len(x) - 1
    rules = [WHOLE, *(Rule({"x": dim, "up": dim}, (Split(dim, x[dim]),)) for dim in range(last))]
    columns = _columns(x, arguments, parts)
    if columns is not None:
        rules.append(Rule({"x": last, "up": last}, (Split(last, columns),)))
    return rules


def probs_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of swiglu_with_probs and geglu_with_probs, whose result has two dimensions."""
    x = shapes.get("x", ())
    rules = [WHOLE]
    tokens = 1
    for extent in x[:-1]:
        tokens *= extent
    if len(x) == 2 or (len(x) > 2 and x[0] % parts == 0):
        rules.append(Rule({"x": 0, "probs": 0, "row_mask": 0}, (Split(0, tokens),)))
    columns = _columns(x, arguments, parts)
    if columns is not None:
        rules.append(Rule({"x": len(x) - 1}, (Split(1, columns),)))
    return rules
