# SPDX-License-Identifier: MIT
"""The check of groups and row indices that PRIMUS_TURBO_CHECK_INDICES=1 asks for.

Values are read only on request, since reading them stops the host until the device is done. Under graph capture and
under a compiler, where nothing can be read, there is no check.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from turbo_core import UnsupportedError
from turbo_core.environment import CHECK_INDICES_VARIABLE, check_indices_from_environment
from turbo_grouped_gemm.calls import Groups

__all__ = ["check_group_values"]


def _wanted(lens: torch.Tensor) -> bool:
    if torch.compiler.is_compiling() or type(lens) is not torch.Tensor or lens.device.type == "meta":
        return False
    if not check_indices_from_environment():
        return False
    return lens.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def _refuse(op: str, what: str, accepted: str) -> NoReturn:
    raise UnsupportedError(f"{op}: {what}; {accepted} ({CHECK_INDICES_VARIABLE}=1)")


def check_group_values(
    op: str,
    groups: Groups,
    rows: int,
    a_idx: torch.Tensor | None = None,
    a_rows: int = 0,
    out_idx: torch.Tensor | None = None,
    out_rows: int = 0,
) -> None:
    """Refuse groups that overlap or leave the ``rows``, and indices of their rows that leave a or C or name a row of C
    twice."""
    if not _wanted(groups.lens):
        return
    lens = groups.lens.tolist()
    offs = [0] if groups.offs is None else groups.offs.tolist()
    if groups.offs is None:
        for count in lens:
            offs.append(offs[-1] + count)
    for g, count in enumerate(lens):
        if count < 0:
            _refuse(op, f"group_lens[{g}] is {count}", "numbers from 0 are accepted")
        if not 0 <= offs[g] <= offs[g + 1]:
            _refuse(op, f"group_offs[{g}] is {offs[g]} and the next {offs[g + 1]}", "ascending ones are accepted")
        if count > offs[g + 1] - offs[g]:
            room = f"group_lens[{g}] is {count} and group_offs give it {offs[g + 1] - offs[g]} rows"
            _refuse(op, room, "at most these are accepted")
        if count and offs[g] + count > rows:
            _refuse(op, f"group {g} ends with row {offs[g] + count}", f"at most {rows}, the rows, are accepted")
    for name, index, size in (("a_idx", a_idx, a_rows), ("out_idx", out_idx, out_rows)):
        if index is None:
            continue
        values = index.tolist()
        seen: set[int] = set()
        for g, count in enumerate(lens):
            for row in range(offs[g], offs[g] + count):
                value = values[row]
                if not 0 <= value < size:
                    _refuse(op, f"{name}[{row}] is {value}", f"0 to {size - 1} are accepted")
                if index is out_idx and value in seen:
                    _refuse(op, f"out_idx[{row}] is {value} again", "no row of a group may be named twice")
                seen.add(value)
