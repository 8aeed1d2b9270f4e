# SPDX-License-Identifier: MIT
"""What launches are told of the rows that count: groups as a call has them, or marks that a launch makes of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_core.launch import Launch, power_of_two
from turbo_core.low_precision import MX_PADDING
from turbo_quant.calls import QuantizeFloatCall, QuantizeMxCall, padded_rows
from turbo_quant.triton.group_amax_kernel import mark_rows_kernel

__all__ = ["ALL_ROWS", "Rows", "mark_rows", "rows_of"]


class Rows(NamedTuple):
    """Which rows of x count, and that their number changes from call to call, so that nothing is compiled for it.

    Attributes:
        offs, lens, padded, idx: the fields of a call with groups, contiguous; None without groups.
        count: how many rows the groups count.
        groups: how many groups.
        mark: uint8 [R], 0 for rows that count as zeros, or None. Without groups.
    """

    offs: torch.Tensor | None = None
    lens: torch.Tensor | None = None
    padded: torch.Tensor | None = None
    idx: torch.Tensor | None = None
    count: int = 1
    groups: int = 0
    mark: torch.Tensor | None = None

    def arguments(self) -> dict[str, Any]:
        """Those of the kernels."""
        return {
            "offs_ptr": self.offs,
            "lens_ptr": self.lens,
            "padded_ptr": self.padded,
            "idx_ptr": self.idx,
            "n_groups": self.groups,
            "rows": self.count,
        }

    def most(self) -> int:
        """The constant GROUPS; 0: none."""
        return 0 if self.offs is None else power_of_two(self.groups)


ALL_ROWS = Rows()


def rows_of(call: QuantizeFloatCall | QuantizeMxCall) -> Rows:
    """The groups of a call that has some."""
    offs, lens, padded, idx = call.group_offs, call.group_lens, call.group_offs_padded, call.row_idx
    return Rows(
        offs.contiguous(),
        None if lens is None else lens.contiguous(),
        padded.contiguous(),
        None if idx is None else idx.contiguous(),
        call.x.shape[1] if idx is None else idx.shape[0],
        offs.shape[0] - 1,
    )


def mark_rows(call: QuantizeFloatCall | QuantizeMxCall, groups: Rows) -> Launch:
    """The launch that writes ``mark_ptr``, uint8 [R]: 1 for each row of x that belongs to a group, or is named."""
    R = call.x.shape[1]
    mark = torch.empty((R,), dtype=torch.uint8, device=call.x.device)
    arguments = {"mark_ptr": mark, **groups.arguments(), "R": R}
    constants = {"GROUPS": groups.most(), "BLOCK": MX_PADDING}
    programs = max(1, padded_rows(groups.count, groups.groups) // MX_PADDING)
    options = {"num_warps": 2, "enable_fp_fusion": False}
    return Launch(mark_rows_kernel, (programs, 1, 1), arguments, constants, options, zeroed=("mark_ptr",))
