# SPDX-License-Identifier: MIT
"""Launchers of the gated activations: 2-D tensors in, 2-D tensors out. No autograd, no dispatch, no checks.

Rows and H are at least 1. gate and up may be views of one packed tensor; they share their column stride.
"""

from __future__ import annotations

import math

import torch

from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import Launch, power_of_two
from turbo_norm_act.triton.activation_kernel import glu_backward_kernel, glu_forward_kernel
from turbo_norm_act.triton.tiles import ACTIVATION_TILES, Tile, choose_tile
from turbo_norm_act.values import Formula

__all__ = ["glu_backward", "glu_forward", "plan_backward", "plan_forward"]


def _scalars(formula: Formula) -> dict[str, float | None]:
    """The kernels' limit and alpha; None where they are not read, so that they cause no further compilations."""
    clamped = formula.activation == "clamped"
    limited = clamped or formula.limit != math.inf
    return {"limit": float(formula.limit) if limited else None, "alpha": float(formula.alpha) if clamped else None}


def _grid_and_constants(
    rows: int, H: int, formula: Formula, tile: Tile, split_columns: bool
) -> tuple[tuple[int, int, int], int, dict[str, object]]:
    """The grid, how many programs share a row, and the kernel's constants."""
    block_h = min(tile.elements, power_of_two(H))
    block_r = max(1, tile.elements // block_h)
    shares = -(-H // block_h) if split_columns else 1
    return (
        (-(-rows // block_r) * shares, 1, 1),
        shares,
        {
            "ACTIVATION": formula.activation,
            "BLOCK_R": block_r,
            "BLOCK_H": block_h,
            "MASK_R": rows % block_r != 0,
            "MASK_H": H % block_h != 0,
        },
    )


def plan_forward(
    gate: torch.Tensor,
    up: torch.Tensor,
    probs: torch.Tensor | None,
    row_mask: torch.Tensor | None,
    formula: Formula,
    out: torch.Tensor,
    *,
    facts: DeviceFacts,
    tile: Tile | None = None,
) -> Launch:
    rows, H = gate.shape
    tile = tile or choose_tile(ACTIVATION_TILES, "forward", H, (gate.stride(0), up.stride(0)), facts)
    grid, shares, constants = _grid_and_constants(rows, H, formula, tile, split_columns=True)
    arguments = {
        "gate_ptr": gate,
        "up_ptr": up,
        "probs_ptr": probs,
        "mask_ptr": row_mask,
        "out_ptr": out,
        "n_rows": rows,
        "H": H,
        "shares": shares,
        "gate_stride": gate.stride(0),
        "up_stride": up.stride(0),
        "col_stride": gate.stride(1),
        **_scalars(formula),
    }
    return Launch(glu_forward_kernel, grid, arguments, constants, {"num_warps": tile.num_warps})


def glu_forward(
    gate: torch.Tensor,
    up: torch.Tensor,
    probs: torch.Tensor | None,
    row_mask: torch.Tensor | None,
    formula: Formula,
    *,
    tile: Tile | None = None,
) -> torch.Tensor:
    """out [T, H], contiguous; ``tile`` replaces the table's choice (benchmarks and tests)."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    plan_forward(gate, up, probs, row_mask, formula, out, facts=device_facts(gate.device), tile=tile).run(gate.device)
    return out


def plan_backward(
    dout: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    probs: torch.Tensor | None,
    row_mask: torch.Tensor | None,
    formula: Formula,
    dgate: torch.Tensor | None,
    dup: torch.Tensor | None,
    dprobs: torch.Tensor | None,
    *,
    facts: DeviceFacts,
    tile: Tile | None = None,
) -> Launch:
    rows, H = gate.shape
    tile = tile or choose_tile(ACTIVATION_TILES, "backward", H, (gate.stride(0), up.stride(0), dout.stride(0)), facts)
    grid, shares, constants = _grid_and_constants(rows, H, formula, tile, split_columns=dprobs is None)
    arguments = {
        "dout_ptr": dout,
        "gate_ptr": gate,
        "up_ptr": up,
        "probs_ptr": probs,
        "mask_ptr": row_mask,
        "dgate_ptr": dgate,
        "dup_ptr": dup,
        "dprobs_ptr": dprobs,
        "n_rows": rows,
        "H": H,
        "shares": shares,
        "dout_stride": dout.stride(0),
        "gate_stride": gate.stride(0),
        "up_stride": up.stride(0),
        "col_stride": gate.stride(1),
        "dgate_stride": 1 if dgate is None else dgate.stride(0),
        "dup_stride": 1 if dup is None else dup.stride(0),
        **_scalars(formula),
    }
    return Launch(glu_backward_kernel, grid, arguments, constants, {"num_warps": tile.num_warps})


def glu_backward(
    dout: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    probs: torch.Tensor | None,
    row_mask: torch.Tensor | None,
    formula: Formula,
    dgate: torch.Tensor | None,
    dup: torch.Tensor | None,
    dprobs: torch.Tensor | None,
    *,
    tile: Tile | None = None,
) -> None:
    """Writes dgate and dup [T, H] (column stride of gate) and dprobs float32 [T], each unless it is None."""
    facts = device_facts(gate.device)
    plan = plan_backward(dout, gate, up, probs, row_mask, formula, dgate, dup, dprobs, facts=facts, tile=tile)
    plan.run(gate.device)
