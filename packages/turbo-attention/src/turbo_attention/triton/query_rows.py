# SPDX-License-Identifier: MIT
"""What both passes of the attention backward read of each query, and the launch of `delta_kernel` that writes it."""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.calls import BackwardCall
from turbo_attention.triton.arguments import Common, named_strides, strides_of
from turbo_attention.triton.backward_q_kernel import delta_kernel
from turbo_core.device import DeviceFacts
from turbo_core.launch import Launch

__all__ = ["QueryRows"]

_TILE_BYTES = 2**16  # of out in a program of delta_kernel: twice that spilled 18 scalar registers on AMD
# |lse| log2(e) from which its second number counts for 16-bit products: below, float32 has it to 2^-12 of a weight
_FAR = 2.0**12


class QueryRows:
    """Memory for `delta_kernel` to write, as it lies there.

    Attributes:
        norm, delta, far: see the kernel.
        step, low_at: where the numbers of norm lie.
        tile: queries of a program. tiles: programs of a head.
        exact: whether the kernel of keys reads both numbers of norm at once. Else a first launch reads one, and a
            second one computes again what is far. On an H200 the other number costs that kernel 2 to 8 % (2026-12-01:
            its registers are full), on AMD two numbers side by side keep within the scalar registers.
    """

    def __init__(self, call: BackwardCall, common: Common, facts: DeviceFacts) -> None:
        fwd = call.forward
        self.exact = facts.vendor != "nvidia" or common.element_bytes > 2 or common.natural
        self.tile = min(64, _TILE_BYTES // (common.block_v * common.element_bytes))
        self.tiles = -(-fwd.max_seqlen_q // self.tile)
        self.delta = torch.empty(call.lse.shape, dtype=torch.float32, device=fwd.q.device)
        self.norm = self.delta.new_empty((*self.delta.shape, 2) if self.exact else (2, *self.delta.shape))
        self.step, self.low_at = (2, 1) if self.exact else (1, self.delta.numel())
        self.far: torch.Tensor | None = None
        if not self.exact:
            self.far = self.delta.new_empty((fwd.sequences, common.heads, self.tiles), dtype=torch.int32)

    def arguments(self) -> dict[str, Any]:
        """Of a kernel that reads or writes the rows; STEP is a constant of it."""
        return dict(norm=self.norm, delta=self.delta, low_at=self.low_at)

    def plan(self, call: BackwardCall, common: Common, wide: bool) -> Launch:
        """The launch that writes them."""
        fwd, dlse = call.forward, strides_of(call.dlse, 3)
        arguments = dict(
            out=call.out,
            do=call.dout,
            dlse=call.dlse,
            lse=call.lse,
            lse_low=call.lse_low,
            **self.arguments(),
            far=self.far,
            cu_seqlens_q=fwd.cu_seqlens_q,
            **named_strides("o", call.out),
            **named_strides("do", call.dout),
            **common.lse_strides(call.lse),
            stride_dlse_b=0 if common.ragged else dlse[0],
            stride_dlse_h=dlse[1],
            stride_dlse_s=dlse[2],
            heads=common.heads,
            tiles=self.tiles,
            len_q=fwd.q.shape[1],
        )
        constants = dict(
            BLOCK_M=self.tile,
            BLOCK_V=common.block_v,
            width_v=common.DV,
            WIDE=wide,
            ALIGN=common.align(arguments),
            NATURAL=common.natural,
            FAR=_FAR,
            STEP=self.step,
        )
        grid = (self.tiles * common.heads * fwd.sequences,)
        return Launch(delta_kernel, grid, arguments, constants, dict(num_warps=4))
