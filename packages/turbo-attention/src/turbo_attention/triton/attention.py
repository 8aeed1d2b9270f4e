# SPDX-License-Identifier: MIT
"""Launchers of the Triton attention: tile choice, descriptors or pointers, launches. No checks, autograd or dispatch.

A launch is planned from metadata alone, so that the audit compiles what a target would run. The large kernels use no
buffer instructions on AMD: with them up to 14 scalar registers spilled (triton 3.9).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_attention.calls import (
    FP8_ROWS,
    AttentionGradients,
    AttentionResult,
    BackwardCall,
    ForwardCall,
    Fp8Scales,
)
from turbo_attention.layout import empty_like_rows
from turbo_attention.triton.arguments import (
    WIDE_STRIDE,
    Common,
    named_strides,
    options_of,
    sources_of,
    strides_of,
)
from turbo_attention.triton.backward_kv_kernel import backward_kv_kernel
from turbo_attention.triton.backward_q_kernel import backward_q_kernel
from turbo_attention.triton.clear_rows import plan_clear_rows
from turbo_attention.triton.forward_kernel import forward_kernel
from turbo_attention.triton.query_rows import QueryRows
from turbo_attention.triton.tiles import Tile
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_core.low_precision import fp8_max
from turbo_core.prepared import PreparedLaunches

__all__ = ["backward", "forward", "plan_backward", "plan_forward"]

_prepared = PreparedLaunches()


def forward(call: ForwardCall, scales: Fp8Scales | None = None) -> AttentionResult:
    """The attention of ``call``; of FP8 payloads with their ``scales``."""
    device = call.q.device

    def plan() -> tuple[AttentionResult, list[Launch]]:
        return plan_forward(call, device_facts(device), scales=scales)

    result: AttentionResult = _prepared.run("forward", (*call, *(scales or ())), device, plan)
    return result


class Planned(NamedTuple):
    """What the launches of a backward write: dbias padded to whole tiles, dsink of each query, [B,Hq,Sq]."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dbias: torch.Tensor | None
    dsink: torch.Tensor | None


def backward(call: BackwardCall) -> AttentionGradients:
    """Its gradients."""
    fwd, device = call.forward, call.dout.device

    def plan() -> tuple[Planned, list[Launch]]:
        return plan_backward(call, device_facts(device))

    dq, dk, dv, dbias, dsink = _prepared.run("backward", (*fwd, *call[1:]), device, plan)
    if dbias is not None:
        dbias = dbias[:, :, : fwd.max_seqlen_q, : fwd.max_seqlen_k].contiguous()
    return AttentionGradients(dq, dk, dv, dbias, None if dsink is None else _dsink(call, dsink))


def _dsink(call: BackwardCall, shares: torch.Tensor) -> torch.Tensor:
    """The sum of the queries' ``shares``, and of exp(sink - lse) dlse: small, left to torch."""
    dsink = shares.sum((0, 2))
    if call.dlse is not None and call.forward.sink is not None:
        weights = torch.exp((call.forward.sink[:, None] - call.lse) - call.lse_low)
        dsink += (weights * call.dlse).masked_fill_(call.lse == -torch.inf, 0.0).sum((0, 2))
    return dsink


# --- forward ----------------------------------------------------------------------------------------------------------


def plan_forward(
    call: ForwardCall, facts: DeviceFacts, tile: Tile | None = None, scales: Fp8Scales | None = None
) -> tuple[AttentionResult, list[Launch]]:
    """The result to be, and the launches that fill it; ``tile`` in place of the table's (benchmarks)."""
    q, k, v = call.q, call.k, call.v
    common = Common(call)
    tile = tile or common.tile("forward", facts)
    out = empty_like_rows(q, common.DV, None if scales is None else scales.out_dtype)
    lse = torch.empty((q.shape[0], common.heads, q.shape[1]), dtype=torch.float32, device=q.device)
    lse_low = torch.empty_like(lse)
    tiles = -(-call.max_seqlen_q // tile.block_m)
    sources, described = sources_of(common, tile, facts, q, k, v)
    arguments = dict(
        **sources,
        out=out,
        lse=lse,
        lse_low=lse_low,
        sink=call.sink,
        scale_q=None if scales is None else scales.q,
        scale_k=None if scales is None else scales.k,
        scale_v=None if scales is None else scales.v,
        **named_strides("o", out),
        **common.lse_strides(lse),
        **common.extras(call),
        **common.scalars(call, tiles),
        **common.ends(tile),
    )
    constants = dict(
        **common.blocks(tile),
        DESCRIPTOR=described,
        EVEN_N=common.even(call.max_seqlen_k, tile.block_n),
        **common.flags,
        FP8_MAX=0.0 if scales is None else fp8_max(q.dtype),
        SCALE_ROWS=FP8_ROWS,
        XCDS=facts.xcds,
        ALIGN=common.align(arguments),
        SUMS=_row_sums(facts),
    )
    grid = (tiles * common.heads * call.sequences,)
    launches = [Launch(forward_kernel, grid, arguments, constants, options_of(tile), ALL)]
    if call.cu_seqlens_q is not None:
        launches.append(plan_clear_rows(call.cu_seqlens_q, out, lse=lse, lse_low=lse_low))
    return AttentionResult(out, lse, lse_low), launches


def _row_sums(facts: DeviceFacts) -> int:
    """Partial sums of a row (`forward_kernel`)."""
    return 1 if facts.vendor == "amd" else 8


# --- backward ---------------------------------------------------------------------------------------------------------


def plan_backward(
    call: BackwardCall, facts: DeviceFacts, tiles_of: dict[str, Tile] | None = None
) -> tuple[Planned, list[Launch]]:
    """The gradients to be and the launches that fill them; ``tiles_of`` ("kv", "q") in place of the tables' choice."""
    fwd = call.forward
    q, k, v, do = fwd.q, fwd.k, fwd.v, call.dout
    common = Common(fwd)
    tiles_of = tiles_of or {}
    tile = tiles_of.get("kv") or common.tile("kv", facts)
    sequences = fwd.sequences
    dq, dk, dv = empty_like_rows(q, common.D), empty_like_rows(k, common.D), empty_like_rows(v, common.DV)
    dbias = None
    if call.want_dbias and fwd.bias is not None:
        rows, columns = _padded(fwd.max_seqlen_q, tile.block_m), _padded(fwd.max_seqlen_k, tile.block_n)
        dbias = torch.empty((q.shape[0], common.heads, rows, columns), dtype=fwd.bias.dtype, device=q.device)
    of_queries = QueryRows(call, common, facts)
    wide = common.flags["WIDE"] or do.stride(1) >= WIDE_STRIDE or call.out.stride(1) >= WIDE_STRIDE
    common.flags["WIDE"] = wide
    launches = [of_queries.plan(call, common, wide)]
    shared, described = _backward_inputs(call, common, tile, facts, of_queries)
    key_tiles = -(-fwd.max_seqlen_k // tile.block_n)
    arguments = dict(
        **shared,
        far=None,
        far_tiles=of_queries.tiles,
        dk=dk,
        dv=dv,
        dbias=dbias,
        **named_strides("dk", dk),
        **named_strides("dv", dv),
        **_dbias_strides(dbias),
        **common.scalars(fwd, key_tiles),
        **common.ends(tile),
    )
    constants = dict(
        **common.blocks(tile),
        DESCRIPTOR=described,
        EVEN_M=common.even(fwd.max_seqlen_q, tile.block_m),
        EVEN_N=common.even(fwd.max_seqlen_k, tile.block_n),
        **common.flags,
        WANT_DBIAS=dbias is not None,
        XCDS=facts.xcds,
        ALIGN=common.align(arguments),
        FAR_ROWS=of_queries.tile,
        FAR_TILES=min(1024, power_of_two(of_queries.tiles * common.heads // k.shape[2])),
        LOW=of_queries.exact,
        STEP=of_queries.step,
    )
    grid = (key_tiles * k.shape[2] * sequences,)
    zeroed = () if dbias is None else ("dbias",)
    launches.append(Launch(backward_kv_kernel, grid, arguments, constants, options_of(tile), ALL, zeroed))
    if not of_queries.exact:
        again, exact = {**arguments, "far": of_queries.far}, {**constants, "LOW": True}
        launches.append(Launch(backward_kv_kernel, grid, again, exact, options_of(tile), ALL))
    q_tile = tiles_of.get("q") or common.tile("q", facts)
    dsink = None if fwd.sink is None else torch.empty_like(call.lse)
    launches.append(_plan_q(call, common, q_tile, facts, dq, dsink, of_queries))
    if fwd.cu_seqlens_q is not None and fwd.cu_seqlens_k is not None:
        launches.append(plan_clear_rows(fwd.cu_seqlens_q, dq))
        launches.append(plan_clear_rows(fwd.cu_seqlens_k, dk, dv))
    return Planned(dq, dk, dv, dbias, dsink), launches


def _backward_inputs(
    call: BackwardCall,
    common: Common,
    tile: Tile,
    facts: DeviceFacts,
    of_queries: QueryRows,
) -> tuple[dict[str, Any], bool]:
    """What both kernels read, and whether q, k, v and do are descriptors."""
    fwd = call.forward
    sources, described = sources_of(common, tile, facts, fwd.q, fwd.k, fwd.v, call.dout)
    inputs = dict(
        **sources,
        **of_queries.arguments(),
        **named_strides("do", call.dout),
        **common.lse_strides(call.lse),
        **common.extras(fwd),
    )
    return inputs, described


def _padded(length: int, block: int) -> int:
    return -(-length // block) * block


def _dbias_strides(dbias: torch.Tensor | None) -> dict[str, int]:
    return dict(zip(("stride_dbias_b", "stride_dbias_h", "stride_dbias_m"), strides_of(dbias, 4)[:3], strict=True))


def _plan_q(
    call: BackwardCall,
    common: Common,
    tile: Tile,
    facts: DeviceFacts,
    dq: torch.Tensor,
    dsink: torch.Tensor | None,
    of_queries: QueryRows,
) -> Launch:
    fwd = call.forward
    tiles = -(-fwd.max_seqlen_q // tile.block_m)
    shared, described = _backward_inputs(call, common, tile, facts, of_queries)
    arguments = dict(
        **shared,
        dq=dq,
        sink=fwd.sink,
        dsink=dsink,
        **named_strides("dq", dq),
        **common.scalars(fwd, tiles),
        **common.ends(tile),
    )
    constants = dict(
        **common.blocks(tile),
        DESCRIPTOR=described,
        EVEN_N=common.even(fwd.max_seqlen_k, tile.block_n),
        **common.flags,
        XCDS=facts.xcds,
        ALIGN=common.align(arguments),
        SUMS=0 if dsink is None else _row_sums(facts),
        STEP=of_queries.step,
    )
    grid = (tiles * common.heads * fwd.sequences,)
    zeroed = ("dsink",) if dsink is not None and common.ragged else ()
    return Launch(backward_q_kernel, grid, arguments, constants, options_of(tile), ALL, zeroed)
