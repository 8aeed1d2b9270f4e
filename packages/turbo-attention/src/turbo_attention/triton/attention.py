# SPDX-License-Identifier: MIT
"""Launchers of the Triton attention: tile choice, descriptors or pointers, launches. No checks, autograd or dispatch.

A launch is planned from metadata alone, so that the audit compiles what a target would run.
"""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import torch

from turbo_attention.calls import (
    FP8_ROWS,
    AttentionGradients,
    AttentionResult,
    BackwardCall,
    ForwardCall,
    Fp8Scales,
    dropout_terms,
)
from turbo_attention.layout import empty_like_rows
from turbo_attention.triton.backward_kv_kernel import backward_kv_kernel
from turbo_attention.triton.backward_q_kernel import backward_q_kernel, delta_kernel
from turbo_attention.triton.descriptors import flattened
from turbo_attention.triton.forward_kernel import forward_kernel
from turbo_attention.triton.tiles import Tile, choose_tile, split_width
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import Launch, power_of_two
from turbo_core.low_precision import fp8_max
from turbo_core.prepared import PreparedLaunches

__all__ = ["backward", "forward", "plan_backward", "plan_forward"]

_WIDE_STRIDE = 2**31 // 256  # elements between rows from which 32-bit offsets inside a tile of 128 rows may not do
_DELTA_BYTES = 2**16  # of out in a program of delta_kernel: twice that spilled 18 scalar registers on AMD

_prepared = PreparedLaunches()


def forward(call: ForwardCall, scales: Fp8Scales | None = None) -> AttentionResult:
    """The attention of ``call``; of FP8 payloads with their ``scales``."""
    device = call.q.device

    def plan() -> tuple[AttentionResult, list[Launch]]:
        result, launch = plan_forward(call, device_facts(device), scales=scales)
        return result, [launch]

    result: AttentionResult = _prepared.run("forward", (*call, *(scales or ())), device, plan)
    return result


class _Planned(NamedTuple):
    """What the launches of a backward without dbias write."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    delta: torch.Tensor


def backward(call: BackwardCall) -> AttentionGradients:
    """Its gradients."""
    fwd, device = call.forward, call.dout.device
    if call.want_dbias and fwd.bias is not None:  # its plan fills dbias with zeros, so it is made anew
        gradients, launches, delta = plan_backward(call, device_facts(device))
        for launch in launches:
            launch.run(device)
        dbias = gradients.dbias
        if dbias is not None:
            dbias = dbias[:, :, : fwd.max_seqlen_q, : fwd.max_seqlen_k].contiguous()
        return gradients._replace(dbias=dbias, dsink=_dsink(call, delta))

    def plan() -> tuple[_Planned, list[Launch]]:
        gradients, launches, delta = plan_backward(call, device_facts(device))
        return _Planned(*gradients[:3], delta), launches

    dq, dk, dv, delta = _prepared.run("backward", (*fwd, *call[1:]), device, plan)
    return AttentionGradients(dq, dk, dv, None, _dsink(call, delta))


def _dsink(call: BackwardCall, delta: torch.Tensor) -> torch.Tensor | None:
    """- sum over queries of exp(sink - lse) delta: a small product, left to torch."""
    sink = call.forward.sink
    if sink is None:
        return None
    seen = call.lse.masked_fill(call.lse == -torch.inf, torch.inf)
    return -(torch.exp(sink[:, None] - seen) * delta).sum((0, 2))


# --- what both directions need ----------------------------------------------------------------------------------------


class _Common:
    """Arguments of a call that all its kernels take."""

    def __init__(self, call: ForwardCall) -> None:
        q, k, v = call.q, call.k, call.v
        self.ragged = call.cu_seqlens_q is not None
        self.heads, self.D, self.DV = q.shape[2], q.shape[3], v.shape[3]
        self.element_bytes = q.element_size()
        self.block_d, self.tail_d = split_width(self.D, self.element_bytes)
        self.block_v = max(16, power_of_two(self.DV))
        self.widest = max(self.block_d + self.tail_d, self.block_v)
        self.even_d, self.even_v = self.block_d + self.tail_d == self.D, self.block_v == self.DV
        self.threshold, self.keep_scale = dropout_terms(call.dropout_p)
        self.window = call.left + call.right + 1 if call.left >= 0 and call.right >= 0 else None
        extras = call.bias is not None or call.alibi_slopes is not None or call.softcap > 0 or call.rng is not None
        self.brings = "any" if extras else "plain" if self.ragged or call.left >= 0 else "whole"
        self.flags = dict(
            EVEN_D=self.even_d,
            EVEN_V=self.even_v,
            HAS_LEFT=call.left >= 0,
            HAS_RIGHT=call.right >= 0,
            HAS_CAP=call.softcap > 0,
            WIDE=max(q.stride(1), k.stride(1), v.stride(1)) >= _WIDE_STRIDE,
        )

    def even(self, length: int, block: int) -> bool:
        return not self.ragged and length % block == 0

    def tile(self, kernel: str, facts: DeviceFacts) -> Tile:
        brings = self.brings
        if facts.vendor == "amd" and not (self.tail_d == 0 and self.even_d and self.even_v):
            brings = {"whole": "plain"}.get(brings, "any")  # masks of columns need scalar registers as well
        return choose_tile(kernel, self.widest, self.element_bytes, self.window, brings, facts)

    def blocks(self, tile: Tile) -> dict[str, int]:
        widths = dict(BLOCK_D=self.block_d, TAIL_D=self.tail_d, BLOCK_V=self.block_v, width_qk=self.D, width_v=self.DV)
        return dict(BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, PIECE=tile.piece, **widths)

    def align(self, arguments: dict[str, Any]) -> int:
        """The power of two that widths and strides of rows share; 1 from 16 on, which Triton sees by itself."""
        strides = [value for name, value in arguments.items() if name in _ROW_STRIDES]
        shared = gcd(self.D, self.DV, *strides)
        return 1 if shared % 16 == 0 else shared & -shared

    def ends(self, tile: Tile) -> dict[str, int | None]:
        """D and DV at run time, for tiles that take products over them in pieces."""
        return dict(end_qk=self.D if tile.piece else None, end_v=self.DV if tile.piece else None)

    def lse_strides(self, lse: torch.Tensor) -> dict[str, int]:
        """Of sequence and head; ragged sequences lie in one row per head."""
        return dict(stride_lse_b=0 if self.ragged else lse.stride(0), stride_lse_h=lse.stride(1))

    def extras(self, call: ForwardCall) -> dict[str, Any]:
        """What a call may bring beside q, k and v, and the strides of q, k and v."""
        bias, alibi = call.bias, call.alibi_slopes
        return dict(
            bias=bias,
            alibi_slopes=alibi,
            rng=call.rng,
            cu_seqlens_q=call.cu_seqlens_q,
            cu_seqlens_k=call.cu_seqlens_k,
            **_named("q", call.q),
            **_named("k", call.k),
            **_named("v", call.v),
            **dict(zip((f"stride_bias_{axis}" for axis in "bhmn"), _strides(bias, 4), strict=True)),
            stride_alibi_b=_strides(alibi, 2)[0],
            stride_alibi_h=_strides(alibi, 2)[1],
        )

    def scalars(self, call: ForwardCall, tiles: int) -> dict[str, Any]:
        return dict(
            heads=self.heads,
            group=self.heads // call.k.shape[2],
            tiles=tiles,
            len_q=call.max_seqlen_q,
            len_k=call.max_seqlen_k,
            scale=float(call.softmax_scale),
            softcap=float(call.softcap),
            left=call.left,
            right=call.right,
            threshold=self.threshold,
            keep_scale=self.keep_scale,
        )


def _padded(length: int, block: int) -> int:
    return -(-length // block) * block


def _strides(tensor: torch.Tensor | None, rank: int) -> tuple[int, ...]:
    return (0,) * rank if tensor is None else tensor.stride()


def _named(name: str, tensor: torch.Tensor) -> dict[str, int]:
    """Strides of batch, sequence and head."""
    return {f"stride_{name}{axis}": tensor.stride(at) for at, axis in enumerate("bsh")}


_ROW_STRIDES = {f"stride_{name}{axis}" for name in ("q", "k", "v", "o", "do", "dq", "dk", "dv") for axis in "bsh"}


def _options(tile: Tile) -> dict[str, int]:
    return dict(num_warps=tile.num_warps, num_stages=tile.num_stages, **dict(tile.options))


# --- forward ----------------------------------------------------------------------------------------------------------


def plan_forward(
    call: ForwardCall, facts: DeviceFacts, tile: Tile | None = None, scales: Fp8Scales | None = None
) -> tuple[AttentionResult, Launch]:
    """The result to be, and the launch that fills it; ``tile`` in place of the table's (benchmarks)."""
    q, k, v = call.q, call.k, call.v
    common = _Common(call)
    tile = tile or common.tile("forward", facts)
    out = empty_like_rows(q, common.DV, None if scales is None else scales.out_dtype)
    lse = torch.empty((q.shape[0], common.heads, q.shape[1]), dtype=torch.float32, device=q.device)
    tiles = -(-call.max_seqlen_q // tile.block_m)
    sources, described = _sources(common, tile, facts, q, k, v)
    arguments = dict(
        **sources,
        out=out,
        lse=lse,
        sink=call.sink,
        scale_q=None if scales is None else scales.q,
        scale_k=None if scales is None else scales.k,
        scale_v=None if scales is None else scales.v,
        **_named("o", out),
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
    )
    grid = (tiles * common.heads * call.sequences,)
    return AttentionResult(out, lse), Launch(forward_kernel, grid, arguments, constants, _options(tile))


def _sources(
    common: _Common, tile: Tile, facts: DeviceFacts, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    do: torch.Tensor | None = None,
) -> tuple[dict[str, Any], bool]:  # fmt: skip
    """The kernel's arguments q, q_tail, k, k_tail, v (, do), and whether they are descriptors of their blocks."""
    operands = [(q, tile.block_m), (k, tile.block_n), (v, tile.block_n)]
    if do is not None:
        operands.append((do, tile.block_m))
    described = None
    if facts.arch == "sm_90" and common.even_d and common.even_v and common.element_bytes == 2:
        described = flattened(*operands)
    if described is None:
        sources: dict[str, Any] = dict(q=q, q_tail=None, k=k, k_tail=None, v=v)
        return (sources if do is None else {**sources, "do": do}), False
    whole, tail = common.block_d, common.tail_d
    sources = dict(
        q=described[0].descriptor(whole),
        q_tail=described[0].descriptor(tail) if tail else None,
        k=described[1].descriptor(whole),
        k_tail=described[1].descriptor(tail) if tail else None,
        v=described[2].descriptor(common.block_v),
    )
    if do is not None:
        sources["do"] = described[3].descriptor(common.block_v)
    return sources, True


# --- backward ---------------------------------------------------------------------------------------------------------


def plan_backward(
    call: BackwardCall, facts: DeviceFacts, tiles_of: dict[str, Tile] | None = None
) -> tuple[AttentionGradients, list[Launch], torch.Tensor]:
    """The gradients to be (but dsink; dbias padded to whole tiles), the launches that fill them, and delta.

    ``tiles_of`` ("kv", "q") in place of the tables' choice.
    """
    fwd = call.forward
    q, k, v, do = fwd.q, fwd.k, fwd.v, call.dout
    common = _Common(fwd)
    tiles_of = tiles_of or {}
    tile = tiles_of.get("kv") or common.tile("kv", facts)
    sequences = fwd.sequences
    dq, dk, dv = empty_like_rows(q, common.D), empty_like_rows(k, common.D), empty_like_rows(v, common.DV)
    dbias = None
    if call.want_dbias and fwd.bias is not None:
        rows, columns = _padded(fwd.max_seqlen_q, tile.block_m), _padded(fwd.max_seqlen_k, tile.block_n)
        dbias = torch.zeros((q.shape[0], common.heads, rows, columns), dtype=fwd.bias.dtype, device=q.device)
    delta, lse_log2 = torch.empty_like(call.lse), torch.empty_like(call.lse)
    wide = common.flags["WIDE"] or do.stride(1) >= _WIDE_STRIDE or call.out.stride(1) >= _WIDE_STRIDE
    common.flags["WIDE"] = wide
    launches = [_plan_delta(call, common, delta, lse_log2, wide)]
    shared, described = _backward_inputs(call, common, tile, facts, delta, lse_log2)
    key_tiles = -(-fwd.max_seqlen_k // tile.block_n)
    arguments = dict(
        **shared,
        dk=dk,
        dv=dv,
        dbias=dbias,
        **_named("dk", dk),
        **_named("dv", dv),
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
    )
    grid = (key_tiles * k.shape[2] * sequences,)
    launches.append(Launch(backward_kv_kernel, grid, arguments, constants, _options(tile)))
    q_tile = tiles_of.get("q") or common.tile("q", facts)
    launches.append(_plan_q(call, common, q_tile, facts, dq, delta, lse_log2))
    return AttentionGradients(dq, dk, dv, dbias, None), launches, delta


def _backward_inputs(
    call: BackwardCall,
    common: _Common,
    tile: Tile,
    facts: DeviceFacts,
    delta: torch.Tensor,
    lse_log2: torch.Tensor,
) -> tuple[dict[str, Any], bool]:
    """What both kernels read, and whether q, k, v and do are descriptors."""
    fwd = call.forward
    sources, described = _sources(common, tile, facts, fwd.q, fwd.k, fwd.v, call.dout)
    inputs = dict(
        **sources,
        lse_log2=lse_log2,
        delta=delta,
        **_named("do", call.dout),
        **common.lse_strides(call.lse),
        **common.extras(fwd),
    )
    return inputs, described


def _dbias_strides(dbias: torch.Tensor | None) -> dict[str, int]:
    return dict(zip(("stride_dbias_b", "stride_dbias_h", "stride_dbias_m"), _strides(dbias, 4)[:3], strict=True))


def _plan_delta(call: BackwardCall, common: _Common, delta: torch.Tensor, lse_log2: torch.Tensor, wide: bool) -> Launch:
    fwd = call.forward
    rows = min(64, _DELTA_BYTES // (common.block_v * common.element_bytes))
    tiles = -(-fwd.max_seqlen_q // rows)
    dlse = _strides(call.dlse, 3)
    arguments = dict(
        out=call.out,
        do=call.dout,
        dlse=call.dlse,
        lse=call.lse,
        delta=delta,
        lse_log2=lse_log2,
        cu_seqlens_q=fwd.cu_seqlens_q,
        **_named("o", call.out),
        **_named("do", call.dout),
        **common.lse_strides(call.lse),
        stride_dlse_b=0 if common.ragged else dlse[0],
        stride_dlse_h=dlse[1],
        stride_dlse_s=dlse[2],
        heads=common.heads,
        tiles=tiles,
        len_q=fwd.max_seqlen_q,
    )
    constants = dict(BLOCK_M=rows, BLOCK_V=common.block_v, width_v=common.DV, WIDE=wide, ALIGN=common.align(arguments))
    grid = (tiles * common.heads * fwd.sequences,)
    return Launch(delta_kernel, grid, arguments, constants, dict(num_warps=4))


def _plan_q(
    call: BackwardCall,
    common: _Common,
    tile: Tile,
    facts: DeviceFacts,
    dq: torch.Tensor,
    delta: torch.Tensor,
    lse_log2: torch.Tensor,
) -> Launch:
    fwd = call.forward
    tiles = -(-fwd.max_seqlen_q // tile.block_m)
    shared, described = _backward_inputs(call, common, tile, facts, delta, lse_log2)
    arguments = dict(
        **shared,
        dq=dq,
        **_named("dq", dq),
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
    )
    grid = (tiles * common.heads * fwd.sequences,)
    return Launch(backward_q_kernel, grid, arguments, constants, _options(tile))
