# SPDX-License-Identifier: MIT
"""Tile tables of the attention kernels. Neither torch nor triton is needed to read them.

A row serves heads whose wider side (D as `split_width` pads it, DV rounded up to a power of two) is at most ``up_to``.
The first such row of the target's list is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turbo_core import tiles

if TYPE_CHECKING:
    from turbo_core.device import DeviceFacts

__all__ = ["TABLE", "Tile", "choose_tile", "split_width"]


@dataclass(frozen=True, kw_only=True)
class Tile(tiles.Tile):
    """One row.

    Attributes:
        up_to: widest head.
        block_m, block_n: queries and keys of a score tile.
        window: widest window, in keys, that the row is for; 0: any, and none.
        features: which calls it serves: ``whole``, dense batches without a left bound and all of the next; ``plain``,
            those without bias, ALiBi, soft-cap and dropout; ``any``.
        block_k: columns that a product over D or DV reads at a time, from memory for each score tile; 0: all of them,
            and the side that stays is held in registers.
    """

    up_to: int
    block_m: int
    block_n: int
    window: int = 0
    features: str = "any"
    block_k: int = 0


_FEATURES = ("whole", "plain", "any")


def _row(up_to: int, block_m: int, block_n: int, num_warps: int, num_stages: int, why: str, **more: Any) -> Tile:
    return Tile(
        up_to=up_to, block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages, why=why, **more
    )


def _amd(up_to: int, block_m: int, block_n: int, num_warps: int, num_stages: int, why: str, **more: Any) -> Tile:
    """A row with the matrix instructions of 16 x 16."""
    options = (("matrix_instr_nonkdim", 16),)
    return _row(up_to, block_m, block_n, num_warps, num_stages, why, options=options, **more)


_LARGEST = "the largest without a spill on gfx942 and gfx950 (audit, triton 3.9)"

# (kernel, architecture or vendor, bytes of an element) -> rows
TABLE: dict[tuple[str, str, int], tuple[Tile, ...]] = {
    # TFLOP/s on an H200, bf16, 2026-11-30 (torch 2.11, triton 3.6), where cuDNN's forward did 597 (D=128, B4 S4096
    # H32/8, causal), 656 (not causal) and 409 (D=64, B8 S2048 H64/8, causal). Two programs a unit, so that one's
    # softmax meets the other's products, beat one large one.
    ("forward", "sm_90", 2): (
        _row(64, 64, 64, 4, 3, "windows of 128 at D=64: 1.06 of 64x128, 1.15 of 128x64x4x3", window=512),
        _row(64, 64, 128, 4, 2, "382; 64x64x4x3 359, 128x64x4x3 348, 128x128x4x2 331"),
        _row(128, 128, 64, 4, 2, "497 causal, 581 not; 64x64x4x3 501, 512; 128x128x8x3 455, 512"),
        _row(256, 128, 64, 8, 2, "fits 227 KiB"),
        _row(576, 64, 32, 8, 2, "fits 227 KiB"),
    ),
    # milliseconds at the shapes above
    ("kv", "sm_90", 2): (
        _row(64, 64, 64, 4, 3, "1.60; two stages 1.61, 128x64x4x2 1.92, 64x128x8x3 2.15"),
        _row(128, 64, 64, 4, 2, "2.12 causal, 3.83 not; 64x128x8x2 2.53, 4.91; 32x64x4x3 2.44, 4.11"),
        _row(256, 64, 64, 8, 1, "fits 227 KiB"),
        _row(576, 32, 32, 8, 1, "fits 227 KiB"),
    ),
    ("q", "sm_90", 2): (
        _row(64, 64, 32, 4, 3, "0.82; 64x64x4x3 0.83, 128x64x4x2 0.97"),
        _row(128, 64, 64, 4, 2, "1.39 causal, 2.55 not; 128x64x8x3 1.51, 2.75"),
        _row(256, 64, 64, 8, 1, "fits 227 KiB"),
        _row(576, 32, 32, 8, 1, "fits 227 KiB"),
    ),
    # FP8: a tile of keys lies within the FP8_ROWS rows that share a scale
    ("forward", "nvidia", 1): (
        _row(128, 64, 64, 4, 2, "fits 100 KiB"),
        _row(576, 32, 32, 4, 1, "likewise"),
    ),
    ("forward", "amd", 1): (
        _amd(128, 64, 32, 4, 1, "64 keys: 6 scalar registers spilled", features="plain"),
        _amd(256, 32, 32, 4, 1, _LARGEST, features="plain"),
        _amd(576, 32, 32, 4, 1, "whole rows: 1 to 12 scalar registers spilled", block_k=64),
    ),
    ("forward", "nvidia", 2): (_row(128, 64, 32, 4, 2, "fits 100 KiB"), _row(576, 32, 16, 4, 1, "likewise")),
    ("kv", "nvidia", 2): (_row(128, 32, 32, 4, 1, "fits 100 KiB"), _row(576, 16, 16, 4, 1, "likewise")),
    ("q", "nvidia", 2): (_row(128, 32, 32, 4, 1, "fits 100 KiB"), _row(576, 16, 16, 4, 1, "likewise")),
    ("forward", "nvidia", 4): (_row(128, 32, 32, 4, 1, "float32 on FMA units"), _row(576, 16, 16, 4, 1, "likewise")),
    ("kv", "nvidia", 4): (_row(128, 16, 32, 4, 1, "float32 on FMA units"), _row(576, 16, 16, 4, 1, "likewise")),
    ("q", "nvidia", 4): (_row(128, 32, 16, 4, 1, "float32 on FMA units"), _row(576, 16, 16, 4, 1, "likewise")),
    # AMD: no such device here. Rows are the largest that the audit (triton 3.9) passes on gfx942 and gfx950 for what
    # ``features`` says: each mask of a score tile, each feature and each of the three walks takes scalar registers, and
    # heads over 256 columns spill with 8 warps, whose registers are half as many.
    ("forward", "amd", 2): (
        _amd(64, 128, 64, 8, 2, "with left bounds 30 scalar registers spilled", features="whole"),
        _amd(64, 128, 32, 8, 1, "64 keys: 36 scalar registers spilled", features="plain"),
        _amd(64, 128, 16, 8, 1, "32 keys: 9 to 55 scalar registers spilled"),
        _amd(128, 128, 64, 8, 1, "two stages: 3 scalar registers spilled on gfx950", features="whole"),
        _amd(128, 128, 32, 8, 1, "64 keys: 36 scalar registers spilled", features="plain"),
        _amd(128, 128, 16, 8, 1, "32 keys: 9 to 55 scalar registers spilled"),
        _amd(192, 128, 32, 8, 1, _LARGEST, features="whole"),
        _amd(192, 64, 32, 4, 1, _LARGEST, features="plain"),
        _amd(192, 64, 16, 4, 1, _LARGEST),
        _amd(256, 64, 32, 8, 1, _LARGEST, features="plain"),
        _amd(256, 32, 16, 4, 1, _LARGEST),
        _amd(576, 32, 16, 8, 1, _LARGEST, features="plain"),
        _amd(576, 16, 16, 4, 1, _LARGEST),
    ),
    ("kv", "amd", 2): (
        _amd(64, 32, 128, 8, 1, _LARGEST, features="plain"),
        _amd(64, 16, 16, 4, 1, "16x32: 5 scalar registers spilled"),
        _amd(128, 32, 64, 4, 1, "64x64 spilled 7 vector registers on gfx942", features="plain"),
        _amd(128, 16, 16, 4, 1, "16x32: 5 scalar registers spilled"),
        _amd(192, 32, 32, 4, 1, _LARGEST, features="plain"),
        _amd(256, 16, 32, 8, 1, "32 queries: 6 vector registers spilled in fp16 on gfx942", features="whole"),
        _amd(256, 32, 32, 8, 1, _LARGEST, features="plain"),
        _amd(256, 16, 16, 4, 1, _LARGEST),
        _amd(512, 16, 16, 8, 1, "whole rows, 4 warps: 6 scalar registers spilled", features="plain", block_k=64),
        _amd(512, 16, 16, 4, 1, "8 warps: 71 vector registers spilled; with block_k 2 scalar ones"),
        _amd(576, 16, 16, 8, 1, "whole rows: 71 vector registers spilled; 4 warps: 6 scalar ones", block_k=64),
    ),
    ("q", "amd", 2): (
        _amd(64, 64, 64, 4, 1, "with left bounds 30 scalar registers spilled", features="whole"),
        _amd(64, 64, 32, 4, 1, _LARGEST, features="plain"),
        _amd(64, 32, 16, 4, 1, _LARGEST),
        _amd(128, 64, 32, 4, 1, _LARGEST, features="plain"),
        _amd(128, 32, 16, 4, 1, "32 keys: 2 scalar registers spilled"),
        _amd(256, 32, 32, 4, 1, "8 warps: 11 vector registers spilled", features="plain"),
        _amd(256, 16, 16, 4, 1, _LARGEST),
        _amd(576, 32, 32, 4, 1, "whole rows: 16x16, and 4 vector registers spilled on gfx942", block_k=64),
    ),
    # float32: the registers of a wave hold neither both rows of a product over 512 columns nor, in the kernel of keys,
    # those over 256: block_k columns of them are read again for each tile
    ("forward", "amd", 4): (
        _amd(128, 64, 32, 4, 1, _LARGEST, features="plain"),
        _amd(128, 64, 16, 4, 1, "32 keys: 3 to 9 scalar registers spilled"),
        _amd(576, 16, 16, 4, 1, "whole rows: 4 to 55 vector registers spilled", block_k=64),
    ),
    ("kv", "amd", 4): (
        _amd(128, 16, 32, 4, 1, _LARGEST, features="plain"),
        _amd(128, 16, 16, 8, 1, "4 warps: 5 scalar registers spilled; with block_k 11"),
        _amd(192, 16, 16, 4, 1, "with block_k 1 scalar register spilled on gfx942"),
        _amd(576, 16, 16, 8, 1, "whole rows of 576: 212 to 439 vector registers spilled", block_k=64),
    ),
    ("q", "amd", 4): (
        _amd(128, 32, 16, 4, 1, _LARGEST),
        _amd(256, 16, 16, 4, 1, _LARGEST),
        _amd(576, 16, 16, 4, 1, "whole rows: 169 to 426 vector registers spilled", block_k=64),
    ),
}


def choose_tile(
    kernel: str, widest: int, element_bytes: int, window: int | None, features: str, facts: DeviceFacts
) -> Tile:
    """The row of ``kernel`` (forward, kv, q) for heads of ``widest`` columns.

    ``window`` in keys, None for none; ``features`` is the least that the call needs of `Tile.features`.
    """
    vendor = "nvidia" if facts.vendor == "nvidia" else "amd"  # a CPU, which interprets, as if it were AMD's
    rows = TABLE.get((kernel, facts.arch, element_bytes)) or TABLE[kernel, vendor, element_bytes]
    for row in rows:
        narrow = not row.window or (window is not None and window <= row.window)
        if widest <= row.up_to and narrow and _FEATURES.index(features) <= _FEATURES.index(row.features):
            return row
    raise ValueError(f"{kernel}: no tile for heads of {widest} columns")  # `why_not` has refused them


def split_width(width: int, element_bytes: int) -> tuple[int, int]:
    """D as a power of two and a smaller power of two (or none) that together hold it: 192 is 128 + 64, 80 is 64 + 16.

    The matrix units want at least 16 columns of each, 32 of FP8.
    """
    least = 32 if element_bytes == 1 else 16
    whole = max(least, 1 << max(0, (width - 1).bit_length()))
    if whole == least:
        return whole, 0
    half = whole // 2
    tail = max(least, 1 << max(0, (width - half - 1).bit_length()))
    return (half, tail) if tail < half else (whole, 0)
