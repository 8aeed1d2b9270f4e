# SPDX-License-Identifier: MIT
"""Shapes of grouped products for the tests and the benchmark of this wheel, and the formula for any dtype.

A case is (lens, tail, N, K): the rows of each group, rows behind the last group, columns of C, contraction.
"""

from __future__ import annotations

import math
from itertools import product

LAYOUTS = (False, True)  # trans_b
DTYPES = ("float32", "float16", "bfloat16")

# nothing divides anything, groups of one row and of none, tiles' edges, and more groups than rows in most of them
CPU = (
    ((4, 0, 14), 2, 24, 16),
    ((1,), 0, 1, 1),
    ((33,), 0, 33, 100),
    ((0, 0, 0), 5, 8, 8),
    ((5, 0, 0, 7, 1), 3, 100, 33),
    ((130, 127, 0, 3), 1, 130, 65),
    ((1, 0, 2, 0, 0, 3, 1, 1, 0, 17, 1, 0, 0, 2, 1, 0, 31, 1), 0, 16, 40),
)

# What a kernel with its tiles meets in the interpreter: edges and empty groups, in a few programs.
INTERPRETED = (CPU[0], CPU[1], CPU[3], CPU[4])

# Zero sizes: R, N, K or G.
EMPTY = (((0, 0), 0, 8, 8), ((3, 2), 1, 0, 8), ((3, 2), 1, 8, 0), ((), 0, 8, 8), ((), 3, 8, 8))

# On a GPU: (groups, rows of an average group, N, K), each with lens of several kinds.
FULL = tuple(product((1, 2, 8, 32), (16, 127, 512), ((2880, 2880), (1408, 2048), (100, 33), (2112, 576))))


def group_rows(group_lens, group_offs, rows):
    """(first, last) of each group's rows, on the host."""
    lens = [int(count) for count in group_lens]
    starts = [sum(lens[:g]) for g in range(len(lens))] if group_offs is None else [int(start) for start in group_offs]
    return [(start, min(start + count, rows)) for start, count in zip(starts, lens)]


def grouped_gemm(a, b, group_lens, group_offs=None, trans_b=False, bias=None, a_idx=None, out_idx=None, out_rows=None):
    """The formula of `grouped_gemm`, in the dtype of its arguments; a [R,K] or [G,M,K]."""
    if a.dim() == 3:
        groups, room, width = a.shape
        offs = [g * room for g in range(groups + 1)]
        flat = grouped_gemm(a.reshape(groups * room, width), b, group_lens, offs, trans_b, bias)
        return flat.view(groups, room, flat.shape[1])
    rows = a.shape[0] if a_idx is None else a_idx.shape[0]
    n = b.shape[1 if trans_b else 2]
    c = a.new_zeros(rows if out_rows is None else out_rows, n)
    for g, (first, last) in enumerate(group_rows(group_lens, group_offs, rows)):
        if last <= first:
            continue
        taken = a[first:last] if a_idx is None else a[a_idx[first:last].long()]
        part = taken @ (b[g].mT if trans_b else b[g])
        part = part if bias is None else part + bias[g]
        places = slice(first, last) if out_idx is None else out_idx[first:last].long()
        c[places] = part
    return c


def gate(pre, activation="swiglu", clamp_limit=None, limit=None, alpha=1.702):
    """act(gate) up of pre [.,2F], in its dtype."""
    g, up = pre.chunk(2, -1)
    bound = clamp_limit if limit is None else limit
    if bound is not None:
        g, up = g.clamp(max=bound), up.clamp(-bound, bound)
    if limit is not None:
        return g * (alpha * g).sigmoid() * (1 + up)
    cubic = (2 / math.pi) ** 0.5 * (g + 0.044715 * g**3)
    return up * (g * g.sigmoid() if activation == "swiglu" else g * (1 + cubic.tanh()) / 2)


def grouped_mlp(
    x, w1, w2, group_lens, group_offs=None, probs=None, trans_w1=False, trans_w2=False, a_idx=None, out_idx=None,
    out_rows=None, **formula
):  # fmt: skip
    """The formula of `grouped_mlp`, in the dtype of its arguments; probs [S] are not read in rows of no group."""
    masked = x.shape[:2] if x.dim() == 3 else None
    if masked is not None:
        groups, room = masked
        group_offs = [g * room for g in range(groups + 1)]
        x = x.reshape(groups * room, -1)
    pre = grouped_gemm(x, w1, group_lens, group_offs, trans_w1, a_idx=a_idx)
    out = gate(pre, **formula)
    if probs is not None:
        owned = out.new_zeros(out.shape[0], dtype=bool)
        for first, last in group_rows(group_lens, group_offs, out.shape[0]):
            owned[first : max(first, last)] = True
        out = out * probs.reshape(-1).to(out.dtype).where(owned, out.new_zeros(()))[:, None]
    y = grouped_gemm(out, w2, group_lens, group_offs, trans_w2, out_idx=out_idx, out_rows=out_rows)
    return y if masked is None else y.view(*masked, -1)
