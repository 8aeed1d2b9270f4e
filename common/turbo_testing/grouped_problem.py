# SPDX-License-Identifier: MIT
"""Groups of rows for the tests of single kernels: lengths, offsets and indices on the host and on the device."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from turbo_grouped_gemm.calls import Groups
from turbo_testing.group_lens import group_lens
from turbo_testing.metrics import assert_close

# where the groups lie: one after the other without offsets, with them, with gaps, and with rows before the first
LAYOUTS = ("none", "tight", "gaps", "head")
NAN = float("nan")


@dataclass
class Problem:
    """G groups of the S rows.

    Attributes:
        lens, offs: on the host; offs None: one group after the other.
        groups: on the device.
        a_idx, out_idx: on the device, wild for rows of no group; on the host as the formula takes them.
        out_rows: rows of C.
        a_rows: rows of A.
    """

    lens: list[int]
    offs: list[int] | None
    groups: Groups
    size: int
    a_rows: int
    out_rows: int
    a_idx: torch.Tensor | None
    out_idx: torch.Tensor | None
    a_idx_host: torch.Tensor | None
    out_idx_host: torch.Tensor | None

    @property
    def count(self) -> int:
        """G."""
        return len(self.lens)

    def owned(self) -> list[int]:
        """The rows that belong to groups."""
        starts = self.offs or [sum(self.lens[:g]) for g in range(self.count)]
        return [row for start, length in zip(starts, self.lens) for row in range(start, start + length)]

    def rows_of_none(self) -> list[int]:
        """Rows of C that no group writes."""
        owned = self.owned()
        named = set(owned) if self.out_idx_host is None else {int(self.out_idx_host[row]) for row in owned}
        return [row for row in range(self.out_rows) if row not in named]

    def rows(self, columns: int, dtype: torch.dtype, scale: float = 1.0, gathered: bool = True) -> torch.Tensor:
        """Random rows; those of no group are NaN, or those that no group names."""
        owned = self.owned()
        given = self.a_idx_host if gathered else None
        x = torch.full((self.a_rows if given is not None else self.size, columns), NAN)
        named = sorted(set(owned if given is None else (int(given[row]) for row in owned)))
        x[named] = torch.randn(len(named), columns) * scale
        return x.to(self.groups.lens.device, dtype)


def problem(
    lens: str | list[int],
    count: int,
    size: int,
    layout: str,
    device: torch.device,
    gather: bool = False,
    scatter: bool = False,
) -> Problem:
    """Groups of at most ``size`` rows, of which with names of ``lens`` an eighth belongs to none."""
    if isinstance(lens, str):
        lens = [0] * count if lens == "all-empty" else group_lens(lens, count, size - size // 8, seed=count)
    spare = size - sum(lens)
    start = min(3, spare) if layout == "head" else 0
    offs = [start]
    for group, length in enumerate(lens):
        gap = min(1 + group % 2, spare - start) if layout in ("gaps", "head") and spare > start else 0
        spare -= gap
        offs.append(offs[-1] + length + gap)
    offs_or_none = None if layout == "none" else offs
    groups = Groups(
        torch.tensor(lens, dtype=torch.int64, device=device),
        None if layout == "none" else torch.tensor(offs, dtype=torch.int64, device=device),
    )
    a_rows, out_rows = (size // 2 + 1 if gather else size), (size + 7 if scatter else size)
    made = Problem(lens, offs_or_none, groups, size, a_rows, out_rows, None, None, None, None)
    owned = made.owned()
    draw = random.Random(size)
    if gather:
        made.a_idx_host = torch.full((size,), -(2**40))
        made.a_idx_host[owned] = torch.tensor([draw.randrange(a_rows) for _ in owned], dtype=torch.int64)
        made.a_idx = made.a_idx_host.to(device, copy=True)
    if scatter:
        made.out_idx_host = torch.full((size,), 2**40)
        made.out_idx_host[owned] = torch.tensor(draw.sample(range(out_rows), len(owned)), dtype=torch.int64)
        made.out_idx = made.out_idx_host.to(device, copy=True)
    return made


def poisoned(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory that shows where nothing was written."""
    return torch.full(shape, NAN, dtype=dtype, device=device)


def check(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    """Against float64 on the CPU."""
    assert_close(actual.cpu(), expected, dtype=dtype or actual.dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bits, for comparisons that tell zeros apart."""
    return x.contiguous().view(torch.uint8)


def specialisations(launches) -> set[str]:
    """What Triton would compile for the launches."""
    return {f"{launch.signature()} {launch.all_options()}" for launch in launches}
