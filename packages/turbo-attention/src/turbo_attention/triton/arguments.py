# SPDX-License-Identifier: MIT
"""What the attention kernels of a call share: arguments, constants, and q, k and v as descriptors or pointers."""

from __future__ import annotations

from math import gcd
from typing import Any

import torch

from turbo_attention.calls import ForwardCall, dropout_terms
from turbo_attention.triton.descriptors import flattened
from turbo_attention.triton.tiles import Tile, choose_tile, split_width
from turbo_core.device import DeviceFacts
from turbo_core.launch import power_of_two

__all__ = ["WIDE_STRIDE", "Common", "named_strides", "sources_of", "strides_of"]

WIDE_STRIDE = 2**31 // 256  # elements between rows from which 32-bit offsets inside a tile of 128 rows may not do


class Common:
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
        self.features = "any" if extras else "plain" if self.ragged or call.left >= 0 else "whole"
        self.natural = call.bias is not None or call.alibi_slopes is not None or call.softcap > 0
        self.flags = dict(
            EVEN_D=self.even_d,
            EVEN_V=self.even_v,
            HAS_LEFT=call.left >= 0,
            HAS_RIGHT=call.right >= 0,
            HAS_CAP=call.softcap > 0,
            WIDE=max(q.stride(1), k.stride(1), v.stride(1)) >= WIDE_STRIDE,
        )

    def even(self, length: int, block: int) -> bool:
        return not self.ragged and length % block == 0

    def tile(self, kernel: str, facts: DeviceFacts) -> Tile:
        features = self.features
        if facts.vendor == "amd" and not (self.tail_d == 0 and self.even_d and self.even_v):
            features = {"whole": "plain"}.get(features, "any")  # masks of columns need scalar registers as well
        return choose_tile(kernel, self.widest, self.element_bytes, self.window, features, facts)

    def blocks(self, tile: Tile) -> dict[str, int]:
        widths = dict(BLOCK_D=self.block_d, TAIL_D=self.tail_d, BLOCK_V=self.block_v, width_qk=self.D, width_v=self.DV)
        return dict(BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, **widths)

    def align(self, arguments: dict[str, Any]) -> int:
        """The power of two that widths and strides of rows share; 1 from 16 on, which Triton sees by itself."""
        strides = [value for name, value in arguments.items() if name in _ROW_STRIDES]
        shared = gcd(self.D, self.DV, *strides)
        return 1 if shared % 16 == 0 else shared & -shared

    def lengths(self, call: ForwardCall) -> dict[str, int]:
        """Of the sequences; ragged: of all of them, which bound what cu_seqlens may say."""
        return dict(len_q=call.q.shape[1], len_k=call.k.shape[1])

    def ends(self, tile: Tile) -> dict[str, int | None]:
        """D and DV at run time, for tiles with a `Tile.block_k`."""
        return dict(end_qk=self.D if tile.block_k else None, end_v=self.DV if tile.block_k else None)

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
            **named_strides("q", call.q),
            **named_strides("k", call.k),
            **named_strides("v", call.v),
            **dict(zip((f"stride_bias_{axis}" for axis in "bhmn"), strides_of(bias, 4), strict=True)),
            stride_alibi_b=strides_of(alibi, 2)[0],
            stride_alibi_h=strides_of(alibi, 2)[1],
        )

    def scalars(self, call: ForwardCall, tiles: int) -> dict[str, Any]:
        return dict(
            heads=self.heads,
            group=self.heads // call.k.shape[2],
            tiles=tiles,
            **self.lengths(call),
            scale=float(call.softmax_scale),
            softcap=float(call.softcap),
            left=call.left,
            right=call.right,
            threshold=self.threshold,
            keep_scale=self.keep_scale,
        )


def strides_of(tensor: torch.Tensor | None, rank: int) -> tuple[int, ...]:
    return (0,) * rank if tensor is None else tensor.stride()


def named_strides(name: str, tensor: torch.Tensor) -> dict[str, int]:
    """Strides of batch, sequence and head."""
    return {f"stride_{name}{axis}": tensor.stride(at) for at, axis in enumerate("bsh")}


_ROW_STRIDES = {f"stride_{name}{axis}" for name in ("q", "k", "v", "o", "do", "dq", "dk", "dv") for axis in "bsh"}


def sources_of(
    common: Common, tile: Tile, facts: DeviceFacts, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
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
