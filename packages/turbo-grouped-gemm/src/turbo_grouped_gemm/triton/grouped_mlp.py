# SPDX-License-Identifier: MIT
"""Backend TRITON of the fused expert MLP's steps: tile choice and launches. No autograd, no checks."""

from __future__ import annotations

import math
from typing import Any

import torch

from turbo_core.calls import empty, outputs
from turbo_core.device import DeviceFacts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_gemm.developer import Tile, group_rows, is_wide
from turbo_grouped_gemm.calls_mlp import (
    DgateCall,
    Gate,
    GateCall,
    GatedDgradCall,
    GatedGemmCall,
    GatedRows,
    GateGradients,
    MlpCall,
    dgate_specs,
    gate_specs,
    gated_dgrad_specs,
    gated_specs,
)
from turbo_grouped_gemm.triton.grouped_launch import (
    MOST_ROWS_IN_ALL,
    counter_for,
    edge_mask,
    group_arguments,
    index_stride,
    is_regular,
    operand_bytes,
    programs_for,
)
from turbo_grouped_gemm.triton.grouped_mlp_gate_kernel import (
    grouped_dgate_kernel,
    grouped_gate_kernel,
    sum_partials_kernel,
)
from turbo_grouped_gemm.triton.grouped_mlp_kernel import grouped_dgated_kernel, grouped_gated_kernel
from turbo_grouped_gemm.triton.grouped_mlp_tiles import choose_mlp_tile, columns_of
from turbo_grouped_gemm.triton.grouped_tiles import average_rows

__all__ = ["plan", "why_not"]

_GATE_TILE = Tile(16, 256, 1, num_warps=4, num_stages=1, why="4096 elements a program, each read and written once")
_SUM_BLOCK = 256


def why_not(call: MlpCall) -> str | None:
    """Any strides and any pairing of dtypes are accepted: different ones are multiplied as float32."""
    rows = call.sizes()[1]
    return None if rows < MOST_ROWS_IN_ALL else f"{rows} rows of groups; TRITON takes fewer than {MOST_ROWS_IN_ALL}"


def plan(call: MlpCall, facts: DeviceFacts, tile: Tile | None = None) -> tuple[Any, list[Launch]]:
    """The results, empty, and the launches that write them; no size is 0. Bit-identical each time.

    tile: a row to use in place of the model's choice; the audit and tests give it.
    """
    if isinstance(call, GatedGemmCall):
        return _gated(call, facts, tile)
    if isinstance(call, GatedDgradCall):
        return _dgated(call, facts, tile)
    return _gate(call, facts) if isinstance(call, GateCall) else _dgate(call, facts)


def _gate_numbers(gate: Gate) -> dict[str, float | None]:
    """Numbers that a formula does not use are None and cause no further compilations."""
    clamped = gate.activation == "clamped"
    limited = clamped or gate.limit != math.inf
    return {"limit": float(gate.limit) if limited else None, "alpha": float(gate.alpha) if clamped else None}


def _probs(probs: torch.Tensor | None) -> dict[str, Any]:
    return {"probs": probs, "stride_probs": 1 if probs is None else probs.stride(0)}


def _constants(
    tile: Tile, F: int, K: int, G: int, gate: Gate, kind: str, facts: DeviceFacts, upcast: bool, wide: bool
) -> dict[str, Any]:
    columns = columns_of(kind, tile)
    # loads of single elements by buffer instructions ran out of scalar registers (gfx950, triton 3.9)
    single = edge_mask(K, tile.block_k) == 2 or edge_mask(F, columns) == 2
    wide = wide or (single and facts.vendor == "amd")
    return dict(
        ACTIVATION=gate.activation, BLOCK_M=tile.block_m, BLOCK_F=columns, BLOCK_K=tile.block_k,
        BLOCK_G=power_of_two(G), GROUP_M=group_rows(tile, facts), XCDS=facts.xcds, UPCAST=upcast,
        EDGE=edge_mask(F, columns), MASK_F=columns > F, MASK_K=edge_mask(K, tile.block_k), WIDE=wide,
        SUBTILE=tile.subtile,
    )  # fmt: skip


def _grid(tile: Tile, columns: int, S: int, G: int, F: int, facts: DeviceFacts, num_cu: int | None) -> tuple[int]:
    # each group may end in a tile of its own, and a gap begin with one
    most = (-(-S // tile.block_m) + 2 * G + 1) * -(-F // columns)
    return (programs_for(tile, most, facts, num_cu),)


def _gated(call: GatedGemmCall, facts: DeviceFacts, tile: Tile | None) -> tuple[GatedRows, list[Launch]]:
    x, w = call.x, call.w
    G, S, F, K = call.sizes()
    results: GatedRows = outputs(gated_specs(call), x.device)
    w_GKN = w.transpose(1, 2) if call.trans_w else w
    item = operand_bytes(x, w)
    if tile is None:
        regular = is_regular(x, w) and x.stride(1) == 1
        tile = choose_mlp_tile("gated", G, average_rows(G, S), F, K, facts, item, call.dtype.itemsize, regular)
    columns = columns_of("gated", tile)
    (stride_xm, stride_xk), (stride_wg, stride_wk, stride_wn) = x.stride(), w_GKN.stride()
    wide = is_wide(x.element_size(), (stride_xm, stride_xk), tile.block_m, tile.block_k) or is_wide(
        w.element_size(), (stride_wk, stride_wn), tile.block_k, columns
    )
    counter = counter_for(call.schedule, x.device)
    arguments = dict(
        x=x, w=w, pre=results.pre, out=results.out, **_probs(call.probs), **group_arguments(call.groups),
        x_idx=call.x_idx, counter=counter, G=G, S=S, X_ROWS=x.shape[0], F=F, K=K, **_gate_numbers(call.gate),
        stride_xm=stride_xm, stride_xk=stride_xk, stride_wg=stride_wg, stride_wk=stride_wk, stride_wn=stride_wn,
        stride_x_idx=index_stride(call.x_idx),
    )  # fmt: skip
    constants = _constants(tile, F, K, G, call.gate, "gated", facts, x.dtype != w.dtype, wide)
    grid = _grid(tile, columns, S, G, F, facts, call.num_cu)
    zeroed = () if counter is None else ("counter",)
    launch = Launch(
        grouped_gated_kernel, grid, arguments, constants, tile.launch_options(), unbuffered=ALL, zeroed=zeroed
    )
    return results, [launch]


def _dgated(call: GatedDgradCall, facts: DeviceFacts, tile: Tile | None) -> tuple[GateGradients, list[Launch]]:
    dy, w, pre = call.dy, call.w, call.pre
    G, S, F, N = call.sizes()
    results: GateGradients = outputs(gated_dgrad_specs(call), dy.device)
    w_GNF = w if call.trans_w else w.transpose(1, 2)
    item = operand_bytes(dy, w)
    if tile is None:
        regular = is_regular(dy, w, pre) and dy.stride(1) == 1
        tile = choose_mlp_tile("dgated", G, average_rows(G, S), F, N, facts, item, pre.element_size(), regular)
    columns = columns_of("dgated", tile)
    (stride_ym, stride_yn), (stride_wg, stride_wn, stride_wf) = dy.stride(), w_GNF.stride()
    wide = is_wide(dy.element_size(), (stride_ym, stride_yn), tile.block_m, tile.block_k) or is_wide(
        w.element_size(), (stride_wn, stride_wf), tile.block_k, columns
    )
    counter = counter_for(call.schedule, dy.device)
    partials = _partials(results, -(-F // columns), S)
    arguments = dict(
        dy=dy, w=w, pre=pre, dpre=results.pre, out=results.out, **_probs(call.probs), partials=partials,
        **group_arguments(call.groups), dy_idx=call.dy_idx, counter=counter, G=G, S=S, DY_ROWS=dy.shape[0], F=F, N=N,
        **_gate_numbers(call.gate), stride_ym=stride_ym, stride_yn=stride_yn, stride_wg=stride_wg, stride_wn=stride_wn,
        stride_wf=stride_wf, stride_dy_idx=index_stride(call.dy_idx),
    )  # fmt: skip
    constants = _constants(tile, F, N, G, call.gate, "dgated", facts, dy.dtype != w.dtype, wide)
    grid = _grid(tile, columns, S, G, F, facts, call.num_cu)
    zeroed = () if counter is None else ("counter",)
    launch = Launch(
        grouped_dgated_kernel, grid, arguments, constants, tile.launch_options(), unbuffered=ALL, zeroed=zeroed
    )
    return results, [launch, *_sums(results, partials)]


def _gate(call: GateCall, facts: DeviceFacts) -> tuple[torch.Tensor, list[Launch]]:
    G, S, F = call.sizes()
    out = empty(gate_specs(call), call.pre.device)
    arguments = dict(
        pre=call.pre, out=out, **_probs(call.probs), **group_arguments(call.groups), G=G, S=S, F=F,
        **_gate_numbers(call.gate),
    )  # fmt: skip
    return out, [_elementwise(grouped_gate_kernel, arguments, call, facts)]


def _dgate(call: DgateCall, facts: DeviceFacts) -> tuple[GateGradients, list[Launch]]:
    G, S, F = call.sizes()
    results: GateGradients = outputs(dgate_specs(call), call.pre.device)
    partials = _partials(results, -(-F // _GATE_TILE.block_n), S)
    arguments = dict(
        dout=call.dout, pre=call.pre, dpre=results.pre, out=results.out, **_probs(call.probs), partials=partials,
        **group_arguments(call.groups), G=G, S=S, F=F, **_gate_numbers(call.gate),
    )  # fmt: skip
    return results, [_elementwise(grouped_dgate_kernel, arguments, call, facts), *_sums(results, partials)]


def _elementwise(kernel: Any, arguments: dict[str, Any], call: GateCall | DgateCall, facts: DeviceFacts) -> Launch:
    G, S, F = call.sizes()
    tile = _GATE_TILE
    most = (-(-S // tile.block_m) + 2 * G + 1) * -(-F // tile.block_n)
    grid = (max(1, min(most, 8 * facts.compute_units)),)
    constants = dict(
        ACTIVATION=call.gate.activation, BLOCK_M=tile.block_m, BLOCK_F=tile.block_n, BLOCK_G=power_of_two(G)
    )
    return Launch(kernel, grid, arguments, constants, tile.launch_options(), unbuffered=ALL)


def _partials(results: GateGradients, tiles: int, S: int) -> torch.Tensor | None:
    """Sums of the rows of each tile, [tiles,S], where those of all columns are wanted."""
    if results.probs is None:
        return None
    return torch.empty(tiles, S, dtype=torch.float32, device=results.pre.device)


def _sums(results: GateGradients, partials: torch.Tensor | None) -> list[Launch]:
    if partials is None:
        return []
    tiles, S = partials.shape
    arguments = dict(partials=partials, sums=results.probs, S=S, tiles=tiles)
    grid = (-(-S // _SUM_BLOCK),)
    return [Launch(sum_partials_kernel, grid, arguments, {"BLOCK": _SUM_BLOCK}, {"num_warps": 4}, unbuffered=ALL)]
