# SPDX-License-Identifier: MIT
"""Launchers of the norm kernels: 2-D tensors in, 2-D tensors out. No autograd, no dispatch, no checks.

``plan_forward`` and ``plan_backward`` allocate the results and say what would be launched; the other two launch it.
Rows and D are at least 1; the last stride of every input is 1.
"""

from __future__ import annotations

import torch

from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_core.prepared import PreparedLaunches
from turbo_norm_act.triton.norm_kernel import (
    column_sum_kernel,
    norm_backward_kernel,
    norm_forward_kernel,
    norm_terms_kernel,
)
from turbo_norm_act.triton.tiles import COLUMN_SUM_TILES, NORM_TILES, Tile, choose_tile
from turbo_norm_act.values import NormGradients, NormResult, Wanted

__all__ = ["norm_backward", "norm_forward", "plan_backward", "plan_forward"]


_prepared = PreparedLaunches()


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


def plan_forward(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    eps: float,
    *,
    center: bool,
    zero_centered: bool,
    facts: DeviceFacts,
    tile: Tile | None = None,
) -> tuple[NormResult, list[Launch]]:
    rows, D = x.shape
    op = "layernorm" if center else "rmsnorm" if residual is None else "rmsnorm_residual"
    tile = tile or choose_tile(NORM_TILES, f"forward {op}", D, _strides(x, residual), facts, x.element_size())
    block_r, block_d = _tile_shape(tile, D)
    kept = -(-D // block_d) if tile.whole else 0
    y = torch.empty((rows, D), dtype=x.dtype, device=x.device)
    s = None if residual is None else torch.empty_like(y)
    rstd = torch.empty((rows,), dtype=torch.float32, device=x.device)
    mean = torch.empty_like(rstd) if center else None
    launch = Launch(
        norm_forward_kernel,
        (-(-rows // block_r), 1, 1),
        {
            "x_ptr": x,
            "residual_ptr": residual,
            "gamma_ptr": gamma,
            "beta_ptr": beta,
            "y_ptr": y,
            "s_ptr": s,
            "mean_ptr": mean,
            "rstd_ptr": rstd,
            "n_rows": rows,
            "D": D,
            "x_stride": x.stride(0),
            "residual_stride": 1 if residual is None else residual.stride(0),
            "eps": float(eps),
        },
        {
            "CENTER": center,
            "ZERO_CENTERED": zero_centered,
            "BLOCK_R": block_r,
            "BLOCK_D": block_d,
            "KEPT": kept,
            "EARLY": tile.early and kept == 1,
            "STREAM": tile.stream,
            "PACKED": facts.vendor == "nvidia" and kept > 1,
            "MASK_R": rows % block_r != 0,
            "MASK_D": D % block_d != 0,
        },
        {"num_warps": tile.num_warps},
    )
    return NormResult(y, s, mean, rstd), [launch]


def norm_forward(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    eps: float,
    *,
    center: bool,
    zero_centered: bool,
    tile: Tile | None = None,
) -> NormResult:
    """y, s, mean, rstd of x [rows, D]; ``tile`` replaces the table's choice (benchmarks and tests)."""

    def plan() -> tuple[NormResult, list[Launch]]:
        facts = device_facts(x.device)
        return plan_forward(
            x, residual, gamma, beta, eps, center=center, zero_centered=zero_centered, facts=facts, tile=tile
        )

    call = (x, residual, gamma, beta, eps, center, zero_centered, tile)
    result: NormResult = _prepared.run("forward", call, x.device, plan)
    return result


def plan_backward(
    dy: torch.Tensor,
    ds: torch.Tensor | None,
    s: torch.Tensor,
    gamma: torch.Tensor | None,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    *,
    zero_centered: bool,
    wanted: Wanted,
    facts: DeviceFacts,
    tile: Tile | None = None,
) -> tuple[NormGradients, list[Launch]]:
    rows, D = s.shape
    tile = tile or choose_tile(NORM_TILES, "backward", D, _strides(dy, ds, s), facts, s.element_size())
    block_r, block_d = _tile_shape(tile, D)
    whole = tile.whole and block_d >= D
    column_blocks, row_tiles = -(-D // block_d), -(-rows // block_r)
    programs = max(1, min(row_tiles, facts.compute_units * tile.per_unit // column_blocks))
    where = s.device
    partials = [
        None if dtype is None else torch.empty((programs, D), dtype=torch.float32, device=where) for dtype in wanted[1:]
    ]
    dx = torch.empty((rows, D), dtype=s.dtype, device=where) if wanted.dx else None
    terms = None
    launches = []
    prefetch = _prefetch(tile, block_r * block_d * s.element_size() * (2 if ds is None else 3), facts)
    shape = {
        "CENTER": mean is not None,
        "ZERO_CENTERED": zero_centered,
        "BLOCK_R": block_r,
        "BLOCK_D": block_d,
        "MASK_R": rows % block_r != 0,
        "MASK_D": D % block_d != 0,
    }
    if wanted.dx and not whole:
        terms = torch.empty((2, rows), dtype=torch.float32, device=where)
        inputs = {"dy_ptr": dy, "s_ptr": s, "gamma_ptr": gamma, "mean_ptr": mean, "rstd_ptr": rstd, "terms_ptr": terms}
        sizes = {"n_rows": rows, "D": D, "dy_stride": dy.stride(0), "s_stride": s.stride(0)}
        options = {"num_warps": tile.num_warps}
        launches.append(Launch(norm_terms_kernel, (row_tiles, 1, 1), {**inputs, **sizes}, shape, options))
    launches.append(
        Launch(
            norm_backward_kernel,
            (programs, column_blocks, 1),
            {
                "dy_ptr": dy,
                "ds_ptr": ds,
                "s_ptr": s,
                "gamma_ptr": gamma,
                "mean_ptr": mean,
                "rstd_ptr": rstd,
                "terms_ptr": terms,
                "dx_ptr": dx,
                "dgamma_ptr": partials[0],
                "dbeta_ptr": partials[1],
                "n_rows": rows,
                "n_tiles": row_tiles,
                "D": D,
                "dy_stride": dy.stride(0),
                "ds_stride": 1 if ds is None else ds.stride(0),
                "s_stride": s.stride(0),
            },
            {**shape, "WHOLE": whole, "PREFETCH": prefetch},
            {"num_warps": tile.num_warps},
            unbuffered=ALL,  # odd rows spilled 3 to 5 scalar registers with buffer instructions (triton 3.9)
        )
    )
    sums = [None if dtype is None else torch.empty((D,), dtype=dtype, device=where) for dtype in wanted[1:]]
    for partial, out in zip(partials, sums):
        if out is not None:
            block_p, block, warps = COLUMN_SUM_TILES[facts.vendor]
            arguments = {"partial_ptr": partial, "out_ptr": out, "P": programs, "D": D}
            blocks = {"BLOCK_P": block_p, "BLOCK_D": block}
            launches.append(Launch(column_sum_kernel, (-(-D // block), 1, 1), arguments, blocks, {"num_warps": warps}))
    return NormGradients(dx, *sums), launches


def norm_backward(
    dy: torch.Tensor,
    ds: torch.Tensor | None,
    s: torch.Tensor,
    gamma: torch.Tensor | None,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    *,
    zero_centered: bool,
    wanted: Wanted,
    tile: Tile | None = None,
) -> NormGradients:
    """The gradients that are ``wanted``; the norm is centred if there is a ``mean``.

    dy, ds, s: [rows, D]; mean, rstd: float32 [rows].
    """

    def plan() -> tuple[NormGradients, list[Launch]]:
        facts = device_facts(s.device)
        return plan_backward(
            dy, ds, s, gamma, mean, rstd, zero_centered=zero_centered, wanted=wanted, facts=facts, tile=tile
        )

    call = (dy, ds, s, gamma, mean, rstd, zero_centered, wanted, tile)
    result: NormGradients = _prepared.run("backward", call, s.device, plan)
    return result
