# SPDX-License-Identifier: MIT
"""Shapes of attention. Neither torch nor triton is needed to read them; those of models are in benchmark/."""

from __future__ import annotations

from typing import Any, NamedTuple


class Shape(NamedTuple):
    """One attention: batch, lengths, heads, head dims."""

    B: int
    Sq: int
    Sk: int
    Hq: int
    Hkv: int
    D: int
    Dv: int


# Every head count meets every ratio, every head dim and every odd length at least once. Small enough for a CPU.
SHAPES = (
    Shape(1, 1, 1, 1, 1, 8, 8),
    Shape(2, 2, 63, 1, 1, 40, 40),
    Shape(1, 63, 2, 3, 1, 64, 64),
    Shape(2, 64, 64, 4, 4, 64, 64),
    Shape(1, 65, 127, 8, 1, 80, 80),
    Shape(1, 127, 65, 8, 4, 96, 96),
    Shape(1, 129, 129, 8, 8, 128, 128),
    Shape(1, 200, 129, 28, 4, 32, 32),
    Shape(1, 129, 200, 3, 3, 192, 128),
    Shape(1, 64, 65, 2, 1, 256, 256),
    Shape(1, 33, 40, 4, 1, 16, 24),
)

# What the Triton interpreter does in seconds.
SMALL = (
    Shape(1, 1, 1, 1, 1, 8, 8),
    Shape(2, 33, 65, 2, 1, 16, 16),
    Shape(1, 65, 33, 3, 1, 40, 24),
    Shape(1, 130, 70, 2, 1, 64, 64),
    Shape(1, 34, 34, 1, 1, 192, 128),
)

# name -> options of the function; bias, alibi and sink say that there is one.
OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (20, 5)},
    "left": {"window_size": (7, -1)},
    "right": {"window_size": (-1, 3)},
    "causal window sink": {"causal": True, "window_size": (30, -1), "sink": True},
    "sink": {"sink": True},
    "softcap": {"softcap": 2.0, "causal": True},
    "bias": {"bias": True},
    "bias alibi sink causal": {"bias": True, "alibi": True, "sink": True, "causal": True},
    "alibi": {"alibi": True, "softmax_scale": 0.3},
    "dropout": {"dropout_p": 0.3},
    "dropout causal sink bias": {"dropout_p": 0.2, "causal": True, "sink": True, "bias": True},
}

LAYOUTS = ("bshd", "sbhd", "bhsd")

# (cu_seqlens_q, cu_seqlens_k): empty sequences on either side, one token, blind rows
RAGGED = (
    ((0, 5, 5, 70, 71), (0, 7, 12, 70, 135)),
    ((0, 64, 64, 100), (0, 0, 33, 65)),
    ((0, 76, 110, 256), (0, 1, 2, 3)),
)

# The whole matrix, for a GPU: (shape, options)
GPU_SHAPES = (
    Shape(1, 1024, 1024, 32, 32, 128, 128),
    Shape(2, 1024, 1024, 64, 8, 128, 128),
    Shape(1, 1024, 1024, 28, 4, 128, 128),
    Shape(3, 1024, 1024, 48, 8, 128, 128),
    Shape(1, 1024, 1024, 16, 16, 192, 128),
    Shape(2, 512, 512, 40, 40, 192, 128),
    Shape(4, 1024, 1024, 64, 8, 64, 64),
    Shape(1, 2048, 2048, 64, 8, 128, 128),
    Shape(2, 512, 2048, 64, 8, 128, 128),
    Shape(1, 777, 333, 8, 2, 96, 96),
    Shape(1, 257, 1000, 4, 4, 256, 256),
    Shape(1, 300, 300, 8, 1, 576, 512),
)


class Sparse(NamedTuple):
    """One sparse MLA: tokens, rows of the cache, heads, slots, head dim, rank."""

    T: int
    N: int
    H: int
    topk: int
    D: int
    rank: int


SPARSE = (
    Sparse(1, 1, 1, 1, 16, 16),
    Sparse(7, 20, 20, 33, 40, 24),
    Sparse(3, 300, 33, 70, 80, 64),
    Sparse(5, 2, 4, 9, 32, 32),
    Sparse(2, 12, 5, 19, 150, 130),
)
