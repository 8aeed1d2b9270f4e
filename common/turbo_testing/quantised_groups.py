# SPDX-License-Identifier: MIT
"""What a grouped product of quantised operands must equal: `turbo_testing.quantised`, group by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig, ScalingGranularity
from turbo_testing.quantised import round_trip

__all__ = ["Results", "grouped_product"]

Config = Float8QuantConfig | Float4QuantConfig | None


class Results(NamedTuple):
    """C and the gradients in float64."""

    out: Tensor
    a: Tensor
    b: Tensor
    bias: Tensor


def grouped_product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    grad_out: Tensor,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    trans_b: bool,
    config: Config,
    rotate: Any = None,
) -> Results:
    """Each group's products of operands quantised along the contraction; config None: of the operands as they are.

    Args:
        sources: for each group its rows of a; targets: for each of these its row of C and of ``grad_out``.
        rotate: (x, axis): applied along the rows to both sides of dB before they are quantised.
    """
    a, b, grad_out = (t.detach() for t in (a, b, grad_out))
    one_scale = config is not None and config.granularity is ScalingGranularity.TENSORWISE
    whole = {
        "a": a[[row for rows in sources for row in rows]],
        "b": b.flatten(0, 1),
        "gradient": grad_out[[row for rows in targets for row in rows]],
    }
    if one_scale:
        whole = {which: round_trip(x, config, which, 1) for which, x in whole.items()}

    def left(x: Tensor, which: str, axis: int, rows: slice) -> Tensor:
        """What is left of x, which is the ``rows`` of the whole."""
        if config is None:
            return x.double()
        return whole[which][rows] if one_scale else round_trip(x, config, which, axis)

    out = torch.zeros(grad_out.shape, dtype=torch.float64, device=a.device)
    grad_a = torch.zeros(a.shape, dtype=torch.float64, device=a.device)
    grad_b = torch.zeros(b.shape, dtype=torch.float64, device=a.device)
    grad_bias = torch.zeros(b.shape[0], grad_out.shape[1], dtype=torch.float64, device=a.device)
    first, height = 0, b.shape[1]
    for g, (taken, written) in enumerate(zip(sources, targets, strict=True)):
        if not len(taken):
            continue
        rows, of_b = slice(first, first + len(taken)), slice(g * height, (g + 1) * height)
        first = rows.stop
        a_g, g_g = a[list(taken)], grad_out[list(written)]
        b_k, b_n = (left(b[g], "b", axis, of_b) for axis in ((1, 0) if trans_b else (0, 1)))
        b_k, b_n = (b_k.mT, b_n.mT) if trans_b else (b_k, b_n)
        c = left(a_g, "a", 1, rows) @ b_k
        out[list(written)] = c if bias is None else c + bias[g].detach().double()
        grad_a.index_add_(0, torch.tensor(taken, device=a.device), left(g_g, "gradient", 1, rows) @ b_n.mT)
        grad_bias[g] = g_g.double().sum(0)
        if rotate is not None:
            a_g, g_g = rotate(a_g, 0), rotate(g_g, 0)
        of_rows = left(a_g, "a", 0, rows).mT @ left(g_g, "gradient", 0, rows)
        grad_b[g] = of_rows.mT if trans_b else of_rows
    return Results(out, grad_a, grad_b, grad_bias)
