# SPDX-License-Identifier: MIT
"""Launchers of the Triton sparse MLA. No checks, autograd or dispatch."""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.sparse_calls import SparseBackward, SparseForward, SparseGradients, SparseResult
from turbo_attention.triton.sparse_mla_kernel import (
    forward_kernel,
    queries_kernel,
    shares_kernel,
    sum_shares_kernel,
)
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import ALL, Launch, power_of_two

__all__ = ["backward", "forward", "plan_forward", "plan_queries", "plan_shares", "plan_sum"]

_SHARES = 2**27  # float32 elements of dkv shares held at a time: 512 MiB

# (kernel, vendor, bytes of an element) -> heads, slots, warps of a tile. A row of 576 is 36 KiB a 32 slots in 16 bits,
# and 32 heads of sums are 64 KiB of registers; the audit passes these without a spill.
_TILES: dict[tuple[str, str, int], tuple[int, int, int]] = {
    ("forward", "amd", 2): (32, 32, 4),
    ("queries", "amd", 2): (16, 32, 4),
    ("shares", "amd", 2): (16, 32, 4),
    ("forward", "nvidia", 2): (64, 32, 8),
    ("queries", "nvidia", 2): (32, 32, 8),
    ("shares", "nvidia", 2): (32, 32, 8),
    ("forward", "amd", 4): (16, 16, 4),
    ("queries", "amd", 4): (16, 16, 4),
    ("shares", "amd", 4): (16, 16, 4),
    ("forward", "nvidia", 4): (16, 16, 4),
    ("queries", "nvidia", 4): (16, 16, 4),
    ("shares", "nvidia", 4): (16, 16, 4),
}
# (vendor, bytes of an element) -> queries_kernel's PIECE: with all of q and do, 113 vector registers spilled
_PIECES: dict[tuple[str, int], int] = {("amd", 4): 64}
_SUM_ENTRIES, _SUM_COLUMNS = 8, 256


def forward(call: SparseForward) -> SparseResult:
    """The attention of ``call``."""
    result, launch = plan_forward(call, device_facts(call.q.device))
    launch.run(call.q.device)
    return result


def backward(call: SparseBackward, held: int = _SHARES) -> SparseGradients:
    """Its gradients; dkv in chunks of tokens, so that the shares of its rows, ``held`` elements, fit in memory."""
    fwd = call.forward
    facts = device_facts(fwd.q.device)
    delta = (call.dout.float() * call.out.float()).sum(2)
    if call.dlse is not None:
        delta -= call.dlse
    dq, dsink, launch = plan_queries(call, delta, facts)
    launch.run(fwd.q.device)
    dkv = torch.zeros(fwd.kv.shape, dtype=torch.float32, device=fwd.kv.device)
    tokens, topk = fwd.indices.shape
    step = max(1, held // max(1, topk * fwd.kv.shape[1]))
    for first in range(0, tokens, step):
        count = min(step, tokens - first)
        shares, launch = plan_shares(call, delta, first, count, facts)
        launch.run(fwd.q.device)
        plan_sum(fwd, shares, first, count, dkv).run(fwd.q.device)
    return SparseGradients(dq, dkv.to(fwd.kv.dtype), None if dsink is None else _dsink(call, dsink))


def _dsink(call: SparseBackward, shares: torch.Tensor) -> torch.Tensor:
    """The sum of the tokens' ``shares``, and of exp(sink - lse) dlse: small, left to torch."""
    dsink = shares.sum(0)
    if call.dlse is not None and call.forward.sink is not None:
        weights = torch.exp((call.forward.sink - call.lse) - call.lse_low)
        dsink += (weights * call.dlse).masked_fill_(call.lse == -torch.inf, 0.0).sum(0)
    return dsink


def _tile(kernel: str, call: SparseForward, facts: DeviceFacts) -> tuple[int, int, dict[str, Any], dict[str, int]]:
    """Heads and slots of a tile, the kernel's constants, and launch options."""
    vendor = "nvidia" if facts.vendor == "nvidia" else "amd"
    heads, slots, warps = _TILES[kernel, vendor, call.q.element_size()]
    tail = call.q.shape[2] - call.rank
    constants = dict(
        BLOCK_H=heads,
        BLOCK_N=slots,
        BLOCK_V=max(16, power_of_two(call.rank)),
        BLOCK_T=max(16, power_of_two(tail)) if tail else 0,
    )
    return heads, slots, constants, dict(num_warps=warps, num_stages=1)


def _sizes(call: SparseForward) -> dict[str, Any]:
    return dict(
        cached=call.kv.shape[0],
        heads=call.q.shape[1],
        topk=call.indices.shape[1],
        rank=call.rank,
        width=call.q.shape[2],
        scale=float(call.softmax_scale),
    )


def _inputs(call: SparseForward) -> dict[str, Any]:
    return dict(q=call.q, kv=call.kv, indices=call.indices)


def _strides(call: SparseForward) -> dict[str, int]:
    return dict(stride_qt=call.q.stride(0), stride_qh=call.q.stride(1), stride_kv=call.kv.stride(0))


def plan_forward(call: SparseForward, facts: DeviceFacts) -> tuple[SparseResult, Launch]:
    """The result to be, and the launch that fills it."""
    tokens, heads = call.q.shape[:2]
    out = call.q.new_empty((tokens, heads, call.rank))
    lse, lse_low = (call.q.new_empty((tokens, heads), dtype=torch.float32) for _ in range(2))
    block, _, constants, options = _tile("forward", call, facts)
    head_blocks = -(-heads // block)
    arguments = dict(
        **_inputs(call),
        sink=call.sink,
        out=out,
        lse=lse,
        lse_low=lse_low,
        **_strides(call),
        **_sizes(call),
        head_blocks=head_blocks,
    )
    launch = Launch(forward_kernel, (tokens * head_blocks,), arguments, constants, options, ALL)
    return SparseResult(out, lse, lse_low), launch


def plan_queries(
    call: SparseBackward, delta: torch.Tensor, facts: DeviceFacts
) -> tuple[torch.Tensor, torch.Tensor | None, Launch]:
    """dq and dsink of each token, [T,H], to be, and the launch that fills them."""
    fwd = call.forward
    dsink = None if fwd.sink is None else torch.empty_like(call.lse)
    dq = torch.empty(fwd.q.shape, dtype=fwd.q.dtype, device=fwd.q.device)
    block, _, constants, options = _tile("queries", fwd, facts)
    constants["PIECE"] = 0 if facts.vendor == "nvidia" else _PIECES.get(("amd", fwd.q.element_size()), 0)
    head_blocks = -(-fwd.q.shape[1] // block)
    arguments = dict(
        **_inputs(fwd),
        do=call.dout,
        lse=call.lse,
        lse_low=call.lse_low,
        delta=delta,
        dq=dq,
        sink=fwd.sink,
        dsink=dsink,
        **_strides(fwd),
        stride_dot=call.dout.stride(0),
        stride_doh=call.dout.stride(1),
        **_sizes(fwd),
        head_blocks=head_blocks,
    )
    return dq, dsink, Launch(queries_kernel, (fwd.q.shape[0] * head_blocks,), arguments, constants, options, ALL)


def plan_shares(
    call: SparseBackward, delta: torch.Tensor, first: int, count: int, facts: DeviceFacts
) -> tuple[torch.Tensor, Launch]:
    """What the slots of ``count`` tokens add to dkv, to be, and the launch that fills it."""
    fwd = call.forward
    topk, width = fwd.indices.shape[1], fwd.q.shape[2]
    shares = torch.empty((count, topk, width), dtype=torch.float32, device=fwd.q.device)
    _, block, constants, options = _tile("shares", fwd, facts)
    slot_blocks = -(-topk // block)
    arguments = dict(
        **_inputs(fwd),
        do=call.dout,
        lse=call.lse,
        lse_low=call.lse_low,
        delta=delta,
        shares=shares,
        first_token=first,
        **_strides(fwd),
        stride_dot=call.dout.stride(0),
        stride_doh=call.dout.stride(1),
        **_sizes(fwd),
        slot_blocks=slot_blocks,
    )
    return shares, Launch(shares_kernel, (count * slot_blocks,), arguments, constants, options, ALL)


def plan_sum(call: SparseForward, shares: torch.Tensor, first: int, count: int, dkv: torch.Tensor) -> Launch:
    """The launch that adds ``shares`` to dkv: slots sorted by the row that they name, empty ones last."""
    rows, width = dkv.shape
    named = call.indices[first : first + count].flatten().long()
    named = torch.where((named < 0) | (named > rows), rows, named)
    named, order = torch.sort(named, stable=True)
    begins = torch.searchsorted(named, torch.arange(rows + 1, device=named.device))
    arguments = dict(shares=shares, order=order, begins=begins, dkv=dkv, width=width)
    constants = dict(BLOCK_E=_SUM_ENTRIES, BLOCK_C=_SUM_COLUMNS)
    return Launch(sum_shares_kernel, (rows, -(-width // _SUM_COLUMNS)), arguments, constants, dict(num_warps=4))
