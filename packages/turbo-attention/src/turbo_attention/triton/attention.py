# SPDX-License-Identifier: MIT
"""The backend TRITON of attention: which calls its kernels take, tile choice, descriptors or pointers, launches.

A launch is planned from metadata alone, so that the audit compiles what a target would run. The large kernels use no
buffer instructions on AMD: with them up to 14 scalar registers spilled (triton 3.9).
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.calls import (
    AttentionGradients,
    AttentionResult,
    BackwardCall,
    ForwardCall,
    backward_specs,
    forward_specs,
)
from turbo_attention.fp8_calls import FP8_ROWS, Fp8Result, Fp8Scales
from turbo_attention.triton.arguments import WIDE_STRIDE, Common, named_strides, sources_of, strides_of
from turbo_attention.triton.backward_kv_kernel import backward_kv_kernel
from turbo_attention.triton.backward_q_kernel import backward_q_kernel
from turbo_attention.triton.clear_rows import plan_clear_rows
from turbo_attention.triton.forward_kernel import forward_kernel
from turbo_attention.triton.query_rows import QueryRows
from turbo_attention.triton.tiles import Tile
from turbo_core.calls import outputs
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_core.low_precision import fp8_max

__all__ = ["forward_launches", "plan", "plan_backward", "plan_forward", "why_not", "why_not_widths"]

MAX_HEAD_DIM = 576
MAX_HEAD_DIM_V = 512


def why_not(call: ForwardCall | BackwardCall) -> str | None:
    """What the kernels have against ``call``."""
    forward = call if isinstance(call, ForwardCall) else call.forward
    return why_not_widths(forward) or _why_not_features(forward)


def why_not_widths(call: ForwardCall) -> str | None:
    """What they have against its head dims, in FP8 too."""
    dims = call.q.shape[3], call.v.shape[3]
    if max(dims) > MAX_HEAD_DIM:
        return f"the head dim is {max(dims)}; up to {MAX_HEAD_DIM} is accepted"
    if dims[1] > MAX_HEAD_DIM_V:
        return f"the head dim of v is {dims[1]}; up to {MAX_HEAD_DIM_V} is accepted"
    # rows that end within a vector of 8 bytes are loaded in smaller ones, each with masks in AMD's scalar registers
    uneven = any(width % (4 if width <= 256 else 16) for width in dims if width > 128)
    if uneven and device_facts(call.q.device).vendor == "amd":
        return f"the head dims are {dims}; over 128 multiples of 4 are accepted, over 256 multiples of 16"
    return None


def _why_not_features(call: ForwardCall) -> str | None:
    """What no tile of the table holds in AMD's scalar registers."""
    if device_facts(call.q.device).vendor != "amd":
        return None
    others = {"alibi_slopes": call.alibi_slopes is not None, "softcap": call.softcap, "dropout": call.dropout_p}
    extras = [name for name, given in others.items() if given]
    dims = {call.q.shape[3], call.v.shape[3]}
    if extras and call.bias is not None and not dims <= {16, 32, 64, 128}:
        return f"bias with {' and '.join(extras)}; head dims 16, 32, 64 and 128 are accepted for that, not {dims}"
    if len(extras) > 1 and max(dims) > 256:
        return f"{' with '.join(extras)}; head dims up to 256 are accepted for that, not {max(dims)}"
    return None


def plan(
    call: ForwardCall | BackwardCall, facts: DeviceFacts
) -> tuple[AttentionResult | AttentionGradients, list[Launch]]:
    """What the call's launches write, and these."""
    return plan_forward(call, facts) if isinstance(call, ForwardCall) else plan_backward(call, facts)


# --- forward ----------------------------------------------------------------------------------------------------------


def plan_forward(
    call: ForwardCall, facts: DeviceFacts, tile: Tile | None = None
) -> tuple[AttentionResult, list[Launch]]:
    """The result to be, and the launches that fill it; ``tile`` in place of the table's (benchmarks)."""
    result = outputs(forward_specs(call), call.q.device)
    return result, forward_launches(call, result, facts, tile=tile)


def forward_launches(
    call: ForwardCall,
    result: AttentionResult | Fp8Result,
    facts: DeviceFacts,
    *,
    tile: Tile | None = None,
    scales: Fp8Scales | None = None,
) -> list[Launch]:
    """The launches that write out, lse and lse_low of ``result``; with ``scales`` q, k and v are FP8 payloads."""
    q, k, v = call.q, call.k, call.v
    out, lse, lse_low = result.out, result.lse, result.lse_low
    common = Common(call)
    tile = tile or common.tile("forward", facts)
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
    launches = [Launch(forward_kernel, grid, arguments, constants, tile.launch_options(), ALL)]
    if call.cu_seqlens_q is not None:
        launches.append(plan_clear_rows(call.cu_seqlens_q, out, lse=lse, lse_low=lse_low))
    return launches


def _row_sums(facts: DeviceFacts) -> int:
    """Partial sums of a row (`forward_kernel`)."""
    return 1 if facts.vendor == "amd" else 8


# --- backward ---------------------------------------------------------------------------------------------------------


def plan_backward(
    call: BackwardCall, facts: DeviceFacts, tiles_of: dict[str, Tile] | None = None
) -> tuple[AttentionGradients, list[Launch]]:
    """The gradients to be, with dbias in whole tiles and dsink of each query, and the launches that fill them.

    ``tiles_of`` ("kv", "q") are in place of the table's choice.
    """
    fwd = call.forward
    q, k, do = fwd.q, fwd.k, call.dout
    common = Common(fwd)
    tiles_of = tiles_of or {}
    tile = tiles_of.get("kv") or common.tile("kv", facts)
    sequences = fwd.sequences
    specs: Any = backward_specs(call)
    if specs.dbias is not None:
        rows, columns = _padded(fwd.max_seqlen_q, tile.block_m), _padded(fwd.max_seqlen_k, tile.block_n)
        specs = specs._replace(dbias=specs.dbias._replace(shape=(*specs.dbias.shape[:2], rows, columns)))
    if specs.dsink is not None:
        specs = specs._replace(dsink=specs.dsink._replace(shape=call.lse.shape))
    gradients: AttentionGradients = outputs(specs, q.device)
    dq, dk, dv, dbias, dsink = gradients
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
    launches.append(Launch(backward_kv_kernel, grid, arguments, constants, tile.launch_options(), ALL, zeroed))
    if not of_queries.exact:
        again, exact = {**arguments, "far": of_queries.far}, {**constants, "LOW": True}
        launches.append(Launch(backward_kv_kernel, grid, again, exact, tile.launch_options(), ALL))
    q_tile = tiles_of.get("q") or common.tile("q", facts)
    launches.append(_plan_q(call, common, q_tile, facts, dq, dsink, of_queries))
    if fwd.cu_seqlens_q is not None and fwd.cu_seqlens_k is not None:
        launches.append(plan_clear_rows(fwd.cu_seqlens_q, dq))
        launches.append(plan_clear_rows(fwd.cu_seqlens_k, dk, dv))
    return gradients, launches


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
    return Launch(backward_q_kernel, grid, arguments, constants, tile.launch_options(), ALL, zeroed)
