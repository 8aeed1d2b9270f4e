# SPDX-License-Identifier: MIT
"""`scale_rows` by Triton kernels: the backend TRITON. A plan says what would be launched, from metadata alone."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.calls import empty, outputs
from turbo_core.device import DeviceFacts
from turbo_core.launch import Launch
from turbo_template.calls import (
    ScaleRows,
    ScaleRowsBackward,
    ScaleRowsCall,
    ScaleRowsGradients,
    backward_specs,
    forward_specs,
)
from turbo_template.triton.scale_rows_kernel import scale_rows_backward_kernel, scale_rows_forward_kernel
from turbo_template.triton.tiles import RowTile, choose_tile

__all__ = ["plan", "why_not"]

MAX_WIDTH = 2**30  # column indices of the kernels are 32-bit


def why_not(call: ScaleRowsCall) -> str | None:
    """Why the kernels cannot take ``call``; None when they can."""
    D = call.data.shape[1]
    return None if D <= MAX_WIDTH else f"D={D}; up to {MAX_WIDTH} is accepted"


def plan(call: ScaleRowsCall, facts: DeviceFacts, tile: RowTile | None = None) -> tuple[Any, list[Launch]]:
    """The empty results of ``call`` and the launch that writes them; ``tile`` replaces the table's choice."""
    tile = tile or choose_tile(call.data.shape[1], facts)
    return _forward(call, tile) if isinstance(call, ScaleRows) else _backward(call, tile)


def _forward(call: ScaleRows, tile: RowTile) -> tuple[torch.Tensor, list[Launch]]:
    x, scale, residual = call
    rows, D = x.shape
    block_r, block_d = tile.shape(D)
    y = empty(forward_specs(call), x.device)
    arguments = {
        "x_ptr": x,
        "scale_ptr": scale,
        "residual_ptr": residual,
        "y_ptr": y,
        "n_rows": rows,
        "D": D,
        "x_stride": x.stride(0),
        "residual_stride": 0 if residual is None else residual.stride(0),
    }
    grid = (-(-rows // block_r), -(-D // block_d))
    constants = {"BLOCK_R": block_r, "BLOCK_D": block_d}
    return y, [Launch(scale_rows_forward_kernel, grid, arguments, constants, tile.launch_options())]


def _backward(call: ScaleRowsBackward, tile: RowTile) -> tuple[ScaleRowsGradients, list[Launch]]:
    dy, x, scale, _ = call
    rows, D = dy.shape
    block_r, block_d = tile.shape(D)
    gradients = outputs(backward_specs(call), dy.device)
    arguments = {
        "dy_ptr": dy,
        "x_ptr": x,
        "scale_ptr": scale,
        "dx_ptr": gradients.dx,
        "dscale_ptr": gradients.dscale,
        "n_rows": rows,
        "D": D,
        "dy_stride": dy.stride(0),
        "x_stride": 0 if x is None else x.stride(0),
    }
    constants = {"BLOCK_R": block_r, "BLOCK_D": block_d}
    launch = Launch(scale_rows_backward_kernel, (-(-rows // block_r),), arguments, constants, tile.launch_options())
    return gradients, [launch]
