# SPDX-License-Identifier: MIT
"""`shuffle_scale` and `shuffle_weight`, the orders that preshuffled FP4 GEMM kernels read, and their inverses."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_core.sharding import refuse_sharded
from turbo_quant.calls import (
    SHUFFLED_SCALE_COLUMNS,
    SHUFFLED_SCALE_ROWS,
    ShuffleScaleCall,
    ShuffleWeightCall,
    UnshuffleScaleCall,
)
from turbo_quant.formats import fp4_dtype, scale_dtype
from turbo_quant.pytorch.kernels.shuffle import WEIGHT_BYTES, WEIGHT_ROWS
from turbo_quant.pytorch.ops import library
from turbo_quant.pytorch.ops.checks import what

__all__ = ["shuffle_scale", "shuffle_weight", "unshuffle_scale", "unshuffle_weight"]


def _check(
    op: str, name: str, value: Any, dtypes: tuple[torch.dtype, ...], multiples: tuple[int, int] = (1, 1)
) -> torch.Tensor:
    refuse_sharded(op, "its local tensor (to_local) is accepted", **{name: value})
    valid = isinstance(value, torch.Tensor) and value.dim() in (2, 3) and value.dtype in dtypes
    if not valid or value.shape[-2] % multiples[0] or value.shape[-1] % multiples[1]:
        accepted = ", ".join(map(str, dict.fromkeys(dtypes)))
        rows = "" if multiples == (1, 1) else f", rows a multiple of {multiples[0]} and bytes of {multiples[1]}"
        raise UnsupportedError(
            f"{op}: {name} is {what(value)}; 2 or 3 dimensions{rows} in one of {accepted} are accepted"
        )
    contiguous: torch.Tensor = value.detach().contiguous()
    return contiguous


def shuffle_scale(scale: torch.Tensor) -> torch.Tensor:
    """E8M0 scales [..,rows,cols] in the order of preshuffled kernels: [..,rows up to 256,cols up to 8], zero padded.

    The byte of (row, col) of the padded array of Cp columns goes to (row/32)(Cp/8)256 + (col/8)256 + (col%4)64 +
    (row%16)4 + ((col%8)/4)2 + (row%32)/16.
    """
    scale = _check("shuffle_scale", "scale", scale, (scale_dtype(), torch.uint8))
    shuffled: torch.Tensor = library.shuffle_scale(ShuffleScaleCall(scale))
    return shuffled


def unshuffle_scale(scale: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """The inverse of `shuffle_scale`, cut to [..,rows,cols]."""
    op, multiples = "unshuffle_scale", (SHUFFLED_SCALE_ROWS, SHUFFLED_SCALE_COLUMNS)
    scale = _check(op, "scale", scale, (scale_dtype(), torch.uint8), multiples)
    for name, value, most in (("rows", rows, scale.shape[-2]), ("cols", cols, scale.shape[-1])):
        if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)) or not 0 <= value <= most:
            raise UnsupportedError(f"{op}: {name}={value!r}; a number from 0 to {most} is accepted")
    unshuffled: torch.Tensor = library.unshuffle_scale(UnshuffleScaleCall(scale, rows, cols))
    return unshuffled


_PAYLOADS = (fp4_dtype(), torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)


def shuffle_weight(payload: torch.Tensor) -> torch.Tensor:
    """A payload [..,rows,bytes] in the order of preshuffled kernels: tiles of 16 rows x 32 bytes, two halves each.

    Rows must be a multiple of 16, bytes of 32; the shape stays.
    """
    payload = _check("shuffle_weight", "payload", payload, _PAYLOADS, (WEIGHT_ROWS, WEIGHT_BYTES))
    shuffled: torch.Tensor = library.shuffle_weight(ShuffleWeightCall(payload))
    return shuffled


def unshuffle_weight(payload: torch.Tensor) -> torch.Tensor:
    """The inverse of `shuffle_weight`."""
    payload = _check("unshuffle_weight", "payload", payload, _PAYLOADS, (WEIGHT_ROWS, WEIGHT_BYTES))
    unshuffled: torch.Tensor = library.unshuffle_weight(ShuffleWeightCall(payload))
    return unshuffled
