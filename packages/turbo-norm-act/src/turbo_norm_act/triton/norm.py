# SPDX-License-Identifier: MIT
"""The backend TRITON of the norms: what a call launches."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.calls import outputs
from turbo_core.device import DeviceFacts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_core.tiles import rows_for
from turbo_norm_act.calls import (
    NormBackward,
    NormCall,
    NormForward,
    NormGradients,
    NormResult,
    norm_gradient_specs,
    norm_specs,
)
from turbo_norm_act.triton.norm_kernel import (
    column_sum_kernel,
    norm_backward_kernel,
    norm_forward_kernel,
    norm_terms_kernel,
)
from turbo_norm_act.triton.tiles import COLUMN_SUM_TILES, NORM_TILES, Tile, choose_tile

__all__ = ["plan", "why_not"]

MAX_WIDTH = 2**30  # column indices of the kernels are 32-bit


def why_not(call: NormCall) -> str | None:
    D = call.data.shape[1]
    return f"D={D}; up to {MAX_WIDTH} is accepted" if D > MAX_WIDTH else None


def plan(call: NormCall, facts: DeviceFacts, tile: Tile | None = None) -> tuple[Any, list[Launch]]:
    """The result, empty, and the launches that write it; ``tile`` replaces the table's choice (benchmarks, tests)."""
    if isinstance(call, NormForward):
        return _plan_forward(call, facts, tile)
    return _plan_backward(call, facts, tile)


def _strides(*tensors: torch.Tensor | None) -> tuple[int, ...]:
    return tuple(tensor.stride(0) for tensor in tensors if tensor is not None and tensor.shape[0] > 1)


def _tile_shape(tile: Tile, D: int) -> tuple[int, int]:
    """Rows and columns of a tile, powers of two."""
    block_d = min(tile.elements, power_of_two(D))
    return max(1, tile.elements // block_d), block_d


def _prefetch(tile: Tile, tile_bytes: int, facts: DeviceFacts) -> int:
    """The tile's prefetch, or none where NVIDIA's pipeliner lacks room: it keeps all but one tile in shared memory."""
    room = facts.lds_bytes - 4096  # for reductions across warps
    return 1 if facts.vendor == "nvidia" and (tile.prefetch - 1) * tile_bytes > room // tile.per_unit else tile.prefetch


def _stride(tensor: torch.Tensor | None) -> int:
    return 1 if tensor is None else tensor.stride(0)


def _plan_forward(call: NormForward, facts: DeviceFacts, tile: Tile | None) -> tuple[NormResult, list[Launch]]:
    x, residual = call.x, call.residual
    rows, D = x.shape
    if tile is None:
        op = "layernorm" if call.center else "rmsnorm" if residual is None else "rmsnorm_residual"
        tile = choose_tile(NORM_TILES[f"forward {op}"], D, _strides(x, residual), facts, x.element_size())
    block_r, block_d = _tile_shape(tile, D)
    kept = -(-D // block_d) if tile.whole else 0
    result: NormResult = outputs(norm_specs(call), x.device)
    launch = Launch(
        norm_forward_kernel,
        (-(-rows // block_r), 1, 1),
        {
            "x_ptr": x,
            "residual_ptr": residual,
            "gamma_ptr": call.gamma,
            "beta_ptr": call.beta,
            "y_ptr": result.y,
            "s_ptr": result.s,
            "mean_ptr": result.mean,
            "rstd_ptr": result.rstd,
            "n_rows": rows,
            "D": D,
            "x_stride": x.stride(0),
            "residual_stride": _stride(residual),
            "eps": float(call.eps),
        },
        {
            "CENTER": call.center,
            "ZERO_CENTERED": call.zero_centered,
            "BLOCK_R": block_r,
            "BLOCK_D": block_d,
            "KEPT": kept,
            "EARLY": tile.early and kept == 1,
            "STREAM": tile.stream,
            "PACKED": facts.vendor == "nvidia" and kept > 1,
            "MASK_R": rows % block_r != 0,
            "MASK_D": D % block_d != 0,
        },
        tile.launch_options(),
    )
    return result, [launch]


def _plan_backward(call: NormBackward, facts: DeviceFacts, tile: Tile | None) -> tuple[NormGradients, list[Launch]]:
    """The terms of wide rows, then dx and partial sums of dgamma and dbeta, then their sums."""
    s, dy, ds = call.s, call.dy, call.ds
    rows, D = s.shape
    if tile is None:
        tile = choose_tile(NORM_TILES["backward"], D, _strides(dy, ds, s), facts, s.element_size())
    block_r, block_d = _tile_shape(tile, D)
    whole = tile.whole and block_d >= D
    column_blocks, row_tiles = -(-D // block_d), -(-rows // block_r)
    programs = max(1, min(row_tiles, facts.compute_units * tile.per_unit // column_blocks))
    gradients: NormGradients = outputs(norm_gradient_specs(call), s.device)
    sums = gradients.dgamma, gradients.dbeta
    partials = [None if x is None else _scratch(s, programs, D) for x in sums]
    terms = _scratch(s, 2, rows) if call.dx and not whole else None
    inputs = {
        "dy_ptr": dy,
        "s_ptr": s,
        "gamma_ptr": call.gamma,
        "mean_ptr": call.mean,
        "rstd_ptr": call.rstd,
        "terms_ptr": terms,
        "n_rows": rows,
        "D": D,
        "dy_stride": dy.stride(0),
        "s_stride": s.stride(0),
    }
    shape = {
        "CENTER": call.center,
        "ZERO_CENTERED": call.zero_centered,
        "BLOCK_R": block_r,
        "BLOCK_D": block_d,
        "MASK_R": rows % block_r != 0,
        "MASK_D": D % block_d != 0,
    }
    launches = []
    if terms is not None:
        launches.append(Launch(norm_terms_kernel, (row_tiles, 1, 1), inputs, shape, tile.launch_options()))
    more = {
        "ds_ptr": ds,
        "dx_ptr": gradients.dx,
        "dgamma_ptr": partials[0],
        "dbeta_ptr": partials[1],
        "n_tiles": row_tiles,
        "ds_stride": _stride(ds),
    }
    prefetch = _prefetch(tile, block_r * block_d * s.element_size() * (2 if ds is None else 3), facts)
    launches.append(
        Launch(
            norm_backward_kernel,
            (programs, column_blocks, 1),
            {**inputs, **more},
            {**shape, "WHOLE": whole, "PREFETCH": prefetch},
            tile.launch_options(),
            unbuffered=ALL,  # odd rows spilled 3 to 5 scalar registers with buffer instructions (triton 3.9)
        )
    )
    column = rows_for(COLUMN_SUM_TILES, facts)
    for partial, out in zip(partials, sums):
        if out is not None:
            arguments = {"partial_ptr": partial, "out_ptr": out, "P": programs, "D": D}
            blocks = {"BLOCK_P": column.rows, "BLOCK_D": column.columns}
            grid = (-(-D // column.columns), 1, 1)
            launches.append(Launch(column_sum_kernel, grid, arguments, blocks, column.launch_options()))
    return gradients, launches


def _scratch(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)
