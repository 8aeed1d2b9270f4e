# SPDX-License-Identifier: MIT
"""Covering arrays: few rows of a product in which every pair of values still meets.

Most faults need one or two values to come together (a dtype and a layout), so a test over four axes says nearly as much
with the rows of a covering array as with the whole product. The plugin thins the tests marked `covering` with this.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence

__all__ = ["covering_rows"]


def covering_rows(rows: Sequence[Sequence[Hashable]], kept: Iterable[int] = (), strength: int = 2) -> list[int]:
    """Positions of a few of `rows`, in order, that hold every combination of `strength` values that `rows` hold.

    A row has one value for each axis. Rows in `kept` are always taken. The same rows give the same answer: of those
    that hold most of the combinations still missing, the first is taken, until none is missing.
    """
    combinations = [_combinations(row, strength) for row in rows]
    taken = set(kept)
    missing = set().union(*combinations) - set().union(*(combinations[row] for row in taken))
    while missing:
        best = max(range(len(rows)), key=lambda row: len(combinations[row] & missing))  # max takes the first of equals
        taken.add(best)
        missing -= combinations[best]
    return sorted(taken)


def _combinations(row: Sequence[Hashable], strength: int) -> set[Hashable]:
    axes = list(enumerate(row))
    return set(itertools.combinations(axes, min(strength, len(axes))))
