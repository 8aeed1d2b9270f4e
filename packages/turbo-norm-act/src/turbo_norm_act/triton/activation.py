# SPDX-License-Identifier: MIT
"""The backend TRITON of the gated activations: what a call launches."""

from __future__ import annotations

import math
from typing import Any

import torch

from turbo_core.calls import empty, outputs
from turbo_core.device import DeviceFacts
from turbo_core.launch import Launch, power_of_two
from turbo_norm_act.calls import (
    GluBackward,
    GluCall,
    GluForward,
    GluGradients,
    glu_gradient_specs,
    glu_specs,
)
from turbo_norm_act.triton.activation_kernel import glu_backward_kernel, glu_forward_kernel
from turbo_norm_act.triton.tiles import ACTIVATION_TILES, Tile, choose_tile

__all__ = ["plan", "why_not"]

MAX_WIDTH = 2**30  # column indices of the kernels are 32-bit, and interleaved columns count twice


def why_not(call: GluCall) -> str | None:
    return f"H={call.width}; up to {MAX_WIDTH} is accepted" if call.width > MAX_WIDTH else None


def plan(call: GluCall, facts: DeviceFacts, tile: Tile | None = None) -> tuple[Any, list[Launch]]:
    """The result, empty, and the launches that write it; ``tile`` replaces the table's choice (benchmarks, tests)."""
    if isinstance(call, GluForward):
        out = empty(glu_specs(call), call.x.device)
        return out, [_launch_forward(call, out, facts, tile)]
    gradients: GluGradients = outputs(glu_gradient_specs(call), call.x.device)
    return gradients, [_launch_backward(call, gradients, facts, tile)]


def _launch_forward(call: GluForward, out: torch.Tensor, facts: DeviceFacts, tile: Tile | None) -> Launch:
    inputs = _inputs(call)
    if tile is None:
        strides = (inputs["gate_stride"], inputs["up_stride"])
        tile = choose_tile(ACTIVATION_TILES["forward"], call.width, strides, facts)
    grid, shares, constants = _grid_and_constants(call, tile, split_columns=True)
    arguments = {**inputs, "shares": shares, "out_ptr": out}
    return Launch(glu_forward_kernel, grid, arguments, constants, tile.launch_options())


def _launch_backward(call: GluBackward, gradients: GluGradients, facts: DeviceFacts, tile: Tile | None) -> Launch:
    inputs = _inputs(call)
    dx, dup, dprobs = gradients
    if tile is None:
        strides = (inputs["gate_stride"], inputs["up_stride"], call.dout.stride(0))
        tile = choose_tile(ACTIVATION_TILES["backward"], call.width, strides, facts)
    grid, shares, constants = _grid_and_constants(call, tile, split_columns=dprobs is None)
    arguments = {
        **inputs,
        "shares": shares,
        "dout_ptr": call.dout,
        "dout_stride": call.dout.stride(0),
        "dgate_ptr": dx,
        "dup_ptr": dup,
        "dprobs_ptr": dprobs,
        "dx_stride": call.x.shape[1],
    }
    return Launch(glu_backward_kernel, grid, arguments, constants, tile.launch_options())


def _inputs(call: GluCall) -> dict[str, Any]:
    """What both kernels read; numbers that a formula does not use are None and cause no further compilations."""
    x, up, H = call.x, call.up, call.width
    clamped = call.activation == "clamped"
    limited = clamped or call.limit != math.inf
    interleaved = up is None and call.interleaved
    return {
        "gate_ptr": x,
        "up_ptr": up,
        "probs_ptr": call.probs,
        "mask_ptr": call.row_mask,
        "n_rows": x.shape[0],
        "H": H,
        "gate_stride": x.stride(0),
        "up_stride": x.stride(0) if up is None else up.stride(0),
        "col_stride": 2 if interleaved else 1,
        "up_offset": None if up is not None else 1 if interleaved else H,
        "limit": float(call.limit) if limited else None,
        "alpha": float(call.alpha) if clamped else None,
    }


def _grid_and_constants(
    call: GluCall, tile: Tile, split_columns: bool
) -> tuple[tuple[int, int, int], int, dict[str, object]]:
    """The grid, how many programs share a row, and the kernel's constants."""
    rows, H = call.x.shape[0], call.width
    block_h = min(tile.elements, power_of_two(H))
    block_r = max(1, tile.elements // block_h)
    shares = -(-H // block_h) if split_columns else 1
    constants = {
        "ACTIVATION": call.activation,
        "BLOCK_R": block_r,
        "BLOCK_H": block_h,
        "MASK_R": rows % block_r != 0,
        "MASK_H": H % block_h != 0,
    }
    return (-(-rows // block_r) * shares, 1, 1), shares, constants
