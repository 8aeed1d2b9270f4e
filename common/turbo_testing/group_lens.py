# SPDX-License-Identifier: MIT
"""How the rows of a grouped product are shared out among its groups: one generator for tests and benchmarks.

    balanced         every group the same, to one row
    zipf             the i-th most popular group gets a share of 1/i, as without a balancing loss
    one-takes-all    one group has all rows
    many-empty       three of four groups are empty, the others balanced

Which groups are popular, or empty, depends on the seed alone.
"""

from __future__ import annotations

import random
from itertools import accumulate

__all__ = ["GROUP_LENS", "group_lens"]

GROUP_LENS = ("balanced", "zipf", "one-takes-all", "many-empty")


def group_lens(kind: str, groups: int, rows: int, seed: int = 0) -> list[int]:
    """Rows of each of ``groups`` groups, ``rows`` in all.

    Raises:
        ValueError: ``kind`` is none of `GROUP_LENS`; or there are rows, and no group.
    """
    if kind not in GROUP_LENS:
        raise ValueError(f"lens {kind!r} are unknown; there are {', '.join(GROUP_LENS)}")
    if rows and not groups:
        raise ValueError(f"{rows} rows need a group")
    weights = [1.0 / (rank + 1) if kind == "zipf" else 1.0 for rank in range(groups)]
    if kind != "balanced":
        random.Random(seed).shuffle(weights)
    if kind in ("one-takes-all", "many-empty"):
        filled = 1 if kind == "one-takes-all" else -(-groups // 4)
        chosen = set(random.Random(seed).sample(range(groups), min(filled, groups)))
        weights = [float(group in chosen) for group in range(groups)]
    total = sum(weights)
    # rounding the ends, not the lengths, makes them add up
    ends = [round(rows * end / total) for end in accumulate(weights)]
    return [end - start for start, end in zip([0, *ends], ends)]
