# SPDX-License-Identifier: MIT
"""Numbers out: rates, means, a table for the eye and CSV for machines."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

Row = Mapping[str, object]
Item = TypeVar("Item")


def gemm_tflops(m: int, n: int, k: int, milliseconds: float, gemms: int = 1) -> float:
    """Rate of ``gemms`` products of that size in ``milliseconds``, a multiply-add counting as two operations."""
    return gemms * 2 * m * n * k / (milliseconds * 1e9)


def geometric_mean(values: Iterable[float]) -> float:
    """The mean for ratios; NaN for no values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def shard(items: Sequence[Item], number: int, count: int) -> list[Item]:
    """Every ``count``-th item from ``number`` on."""
    if not 0 <= number < count:
        raise SystemExit(f"--shard-id {number} must be from 0 to --num-shards - 1 = {count - 1}")
    return list(items[number::count])


def cell(value: object) -> str:
    """A value as it stands in tables and files: numbers with four significant digits at least."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"
    return str(value)


def format_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """The rows under their column names, each column as wide as it needs."""
    texts = [[cell(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *texts]) for i in range(len(columns))]
    lines = [list(columns), ["-" * width for width in widths], *texts]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write all rows; a row's missing values stay empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([cell(row.get(column, "")) for column in columns] for row in rows)
