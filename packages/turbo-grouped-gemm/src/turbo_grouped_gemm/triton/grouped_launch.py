# SPDX-License-Identifier: MIT
"""What the launchers of all grouped kernels share: how groups are handed over, the counter, the size of a grid."""

from __future__ import annotations

import torch

from turbo_core.device import DeviceFacts
from turbo_core.prepared import ALIGNMENT
from turbo_gemm.developer import MAX_REGULAR_STRIDE, Tile
from turbo_grouped_gemm.calls import Groups

__all__ = [
    "MOST_ROWS_IN_ALL",
    "counter_for",
    "edge_mask",
    "group_arguments",
    "index_stride",
    "is_regular",
    "operand_bytes",
    "programs_for",
]

MOST_ROWS_IN_ALL = 2**31 - 2**12  # rows are numbered in 32 bits, a tile past the last one included


def operand_bytes(a: torch.Tensor, b: torch.Tensor) -> int:
    """Bytes of an operand as the matrix units see it: a pair of dtypes is multiplied as float32."""
    return 2 if a.dtype == b.dtype and a.element_size() == 2 else 4


def group_arguments(groups: Groups) -> dict[str, torch.Tensor | int | None]:
    """The kernels' arguments that say which rows are whose."""
    lens, offs = groups
    return dict(lens=lens, offs=offs, stride_lens=lens.stride(0), stride_offs=index_stride(offs))


def index_stride(index: torch.Tensor | None) -> int:
    """Elements from one index to the next."""
    return 1 if index is None else index.stride(0)


def counter_for(schedule: str, device: torch.device) -> torch.Tensor | None:
    """The counter of a launch whose programs steal work: its own, so that no other stream or replay counts on it."""
    return torch.empty(1, dtype=torch.int32, device=device) if schedule == "work_steal" else None


def programs_for(tile: Tile, most_tiles: int, facts: DeviceFacts, num_cu: int | None) -> int:
    """Size of the grid: at most one program a tile, and per_unit programs for each compute unit that may be used."""
    units = facts.compute_units if num_cu is None else max(1, min(num_cu, facts.compute_units))
    return max(1, min(most_tiles, units * max(1, tile.per_unit)))


def edge_mask(size: int, block: int) -> int:
    """How the edge of a dimension is masked: 0: there is none; 1: whole vectors; 2: single elements."""
    return 0 if size % block == 0 else 1 if size % ALIGNMENT == 0 else 2


def is_regular(*tensors: torch.Tensor | None) -> bool:
    """Whether all are as rows of a table that are not for "any" launch need them: aligned, one unit stride each."""
    for tensor in tensors:
        if tensor is None:
            continue
        strides = sorted(tensor.stride())
        if tensor.data_ptr() % ALIGNMENT or strides[0] != 1 or any(stride % ALIGNMENT for stride in strides[1:]):
            return False
        if tensor.dim() > 1 and strides[1] > MAX_REGULAR_STRIDE:
            return False
    return True
