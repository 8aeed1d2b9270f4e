# SPDX-License-Identifier: MIT
"""The backend TRITON of sparse MLA: which calls its kernels take, tiles, launches.

The backward is more than launches: the slots are sorted by torch, and dkv is summed in chunks of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from turbo_attention.sparse_calls import (
    SparseBackward,
    SparseForward,
    SparseGradients,
    SparseResult,
    sparse_forward_specs,
)
from turbo_attention.triton.sparse_mla_kernel import (
    forward_kernel,
    queries_kernel,
    shares_kernel,
    sum_shares_kernel,
)
from turbo_core import tiles
from turbo_core.calls import outputs
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.launch import ALL, Launch, power_of_two

__all__ = ["plan", "plan_forward", "plan_queries", "plan_shares", "plan_sum", "run", "why_not"]

MAX_RANK = 512  # of one tile's registers
MAX_TAIL = 128
_SHARES = 2**27  # float32 elements of dkv shares held at a time: 512 MiB
_SUM_ENTRIES, _SUM_COLUMNS = 8, 256


@dataclass(frozen=True, kw_only=True)
class _Tile(tiles.Tile):
    """Heads and slots of a score tile; block_k: of `queries_kernel`."""

    heads: int
    slots: int
    block_k: int = 0


def _rows(why: str, num_warps: int, queries_k: int = 0, **sizes: tuple[int, int]) -> dict[str, _Tile]:
    """Kernel -> its tile."""
    return {
        kernel: _Tile(
            heads=heads,
            slots=slots,
            num_warps=num_warps,
            block_k=queries_k if kernel == "queries" else 0,
            why=why,
        )
        for kernel, (heads, slots) in sizes.items()
    }


# (vendor, bytes of an element) -> kernel -> tile. A row of 576 is 36 KiB a 32 slots in 16 bits, and 32 heads of sums
# are 64 KiB of registers.
_TILES: dict[tuple[str, int], dict[str, _Tile]] = {
    ("amd", 2): _rows("passes the audit without a spill", 4, forward=(32, 32), queries=(16, 32), shares=(16, 32)),
    ("nvidia", 2): _rows(
        "64 heads of sums are 128 KiB of registers", 8, forward=(64, 32), queries=(32, 32), shares=(32, 32)
    ),
    ("amd", 4): _rows(
        "passes the audit; with all columns of q and do, 113 vector registers spilled",
        4,
        queries_k=64,
        forward=(16, 16),
        queries=(16, 16),
        shares=(16, 16),
    ),
    ("nvidia", 4): _rows("float32 on FMA units", 4, forward=(16, 16), queries=(16, 16), shares=(16, 16)),
}


def why_not(call: SparseForward | SparseBackward) -> str | None:
    """What the kernels have against ``call``."""
    forward = call if isinstance(call, SparseForward) else call.forward
    tail = forward.q.shape[2] - forward.rank
    if forward.rank > MAX_RANK or tail > MAX_TAIL:
        return f"kv has {forward.rank} + {tail} columns; up to {MAX_RANK} + {MAX_TAIL} are accepted"
    return None


def plan(call: SparseForward | SparseBackward, facts: DeviceFacts) -> tuple[SparseResult, list[Launch]] | None:
    """What a forward's launch writes, and that."""
    return plan_forward(call, facts) if isinstance(call, SparseForward) else None


def run(call: SparseBackward, held: int = _SHARES) -> SparseGradients:
    """The gradients; dkv in chunks of tokens, so that the shares of its rows, ``held`` elements, fit in memory."""
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


def _tile(kernel: str, call: SparseForward, facts: DeviceFacts) -> tuple[_Tile, dict[str, Any]]:
    """The kernel's tile and constants."""
    vendor = "nvidia" if facts.vendor == "nvidia" else "amd"  # a CPU, which interprets, as if it were AMD's
    tile = _TILES[vendor, call.q.element_size()][kernel]
    tail = call.q.shape[2] - call.rank
    constants = dict(
        BLOCK_H=tile.heads,
        BLOCK_N=tile.slots,
        BLOCK_V=max(16, power_of_two(call.rank)),
        BLOCK_T=max(16, power_of_two(tail)) if tail else 0,
    )
    return tile, constants


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


def plan_forward(call: SparseForward, facts: DeviceFacts) -> tuple[SparseResult, list[Launch]]:
    """The result to be, and the launch that fills it."""
    result = outputs(sparse_forward_specs(call), call.q.device)
    tile, constants = _tile("forward", call, facts)
    tokens, heads = call.q.shape[:2]
    head_blocks = -(-heads // tile.heads)
    arguments = dict(
        **_inputs(call),
        sink=call.sink,
        **result._asdict(),
        **_strides(call),
        **_sizes(call),
        head_blocks=head_blocks,
    )
    grid = (tokens * head_blocks,)
    return result, [Launch(forward_kernel, grid, arguments, constants, tile.launch_options(), ALL)]


def plan_queries(
    call: SparseBackward, delta: torch.Tensor, facts: DeviceFacts
) -> tuple[torch.Tensor, torch.Tensor | None, Launch]:
    """dq and dsink of each token, [T,H], to be, and the launch that fills them."""
    fwd = call.forward
    dsink = None if fwd.sink is None else torch.empty_like(call.lse)
    dq = torch.empty(fwd.q.shape, dtype=fwd.q.dtype, device=fwd.q.device)
    tile, constants = _tile("queries", fwd, facts)
    constants["BLOCK_K"] = tile.block_k
    head_blocks = -(-fwd.q.shape[1] // tile.heads)
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
    grid = (fwd.q.shape[0] * head_blocks,)
    return dq, dsink, Launch(queries_kernel, grid, arguments, constants, tile.launch_options(), ALL)


def plan_shares(
    call: SparseBackward, delta: torch.Tensor, first: int, count: int, facts: DeviceFacts
) -> tuple[torch.Tensor, Launch]:
    """What the slots of ``count`` tokens add to dkv, to be, and the launch that fills it."""
    fwd = call.forward
    topk, width = fwd.indices.shape[1], fwd.q.shape[2]
    shares = torch.empty((count, topk, width), dtype=torch.float32, device=fwd.q.device)
    tile, constants = _tile("shares", fwd, facts)
    slot_blocks = -(-topk // tile.slots)
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
    grid = (count * slot_blocks,)
    return shares, Launch(shares_kernel, grid, arguments, constants, tile.launch_options(), ALL)


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
