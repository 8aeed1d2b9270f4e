# SPDX-License-Identifier: MIT
"""Every op and module of this wheel with small inputs, for the matrix of what training loops do to them."""

from __future__ import annotations

from functools import partial

import torch

import turbo_attention as ta
from turbo_core.low_precision import Float8QuantConfig, ScalingGranularity
from turbo_testing.attention_references import attention, sparse_mla
from turbo_testing.training import ModuleCase, OpCase, floats

BATCH, HEADS, HEADS_K, DIM, DIM_V = 1, 4, 2, 16, 8  # each sample takes Triton's interpreter a second
RANK, ROWS_KV, TOPK = 8, 7, 3


def _dense(rows, dtype, device, *, extras=(), dim_v=DIM_V, keys=None):
    keys = rows if keys is None else keys
    tensors = {
        "q": floats(BATCH, rows, HEADS, DIM, dtype=dtype, device=device),
        "k": floats(BATCH, keys, HEADS_K, DIM, dtype=dtype, device=device),
        "v": floats(BATCH, keys, HEADS_K, dim_v, dtype=dtype, device=device),
    }
    if "bias" in extras:
        tensors["bias"] = floats(BATCH, HEADS, rows, keys, dtype=torch.float32, device=device)
    if "sink" in extras:
        tensors["sink"] = floats(HEADS, dtype=torch.float32, device=device)
    return tensors


def _reference(q, k, v, bias=None, sink=None, softmax_scale=DIM**-0.5, softcap=0.0, causal=False, lse=False, window=-1):
    out, log = attention(q, k, v, softmax_scale, window, 0 if causal else -1, softcap, bias=bias, sink=sink)
    return (out, log) if lse else out


def _starts(rows, device):
    """Three sequences, the second one empty, and rows behind the last."""
    ends = [0, rows // 2, rows // 2, rows - rows // 5]
    return torch.tensor(ends, dtype=torch.int32, device=device)


def _ragged(rows, dtype, device):
    return {
        "q": floats(rows, HEADS, DIM, dtype=dtype, device=device),
        "k": floats(rows, HEADS_K, DIM, dtype=dtype, device=device),
        "v": floats(rows, HEADS_K, DIM_V, dtype=dtype, device=device),
        "sink": floats(HEADS, dtype=torch.float32, device=device),
        "cu_seqlens_q": _starts(rows, device),
        "cu_seqlens_k": _starts(rows, device),
    }


def _run_ragged(q, k, v, sink, cu_seqlens_q, cu_seqlens_k, softmax_scale=0.3):
    longest = q.shape[0]
    return ta.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, longest, longest, softmax_scale=softmax_scale, causal=True, sink=sink
    )


def _ragged_reference(q, k, v, sink, cu_seqlens_q, cu_seqlens_k, softmax_scale=0.3):
    starts = cu_seqlens_q.tolist()
    parts = []
    for first, last in zip(starts, starts[1:]):
        one = (t[None, first:last] for t in (q, k, v))
        parts.append(_reference(*one, sink=sink, softmax_scale=softmax_scale, causal=True)[0])
    return torch.cat([*parts, q.new_zeros(q.shape[0] - starts[-1], HEADS, DIM_V)])


def _sparse(rows, dtype, device):
    generator = torch.Generator(device="cpu").manual_seed(3)
    indices = torch.randint(-1, ROWS_KV, (rows, TOPK), generator=generator, dtype=torch.int32, device="cpu")
    return {
        "q": floats(rows, HEADS, DIM, dtype=dtype, device=device),
        "kv": floats(ROWS_KV, DIM, dtype=dtype, device=device),
        "topk_indices": indices.to(device),
        "attn_sink": floats(HEADS, dtype=torch.float32, device=device),
    }


def _run_sparse(q, kv, topk_indices, attn_sink, scale=0.3):
    return ta.sparse_mla_func(q, kv, topk_indices, attn_sink, RANK, scale, return_lse=True)


def _sparse_reference(q, kv, topk_indices, attn_sink, scale=0.3):
    return sparse_mla(q, kv, topk_indices, attn_sink, RANK, scale)


_16 = (torch.float32, torch.bfloat16, torch.float16)
_QKV = ("q", "k", "v")

OPS = [
    OpCase(
        "flash_attn_func", partial(ta.flash_attn_func, causal=True), _dense, _QKV, partial(_reference, causal=True),
        "causal", _QKV, numbers={"softmax_scale": (0.3, 0.2)}, dtypes=_16,
    ),
    OpCase(
        "flash_attn_func", partial(ta.flash_attn_func, return_lse=True, window_size=(2, 0)),
        partial(_dense, extras=("bias", "sink")), (*_QKV, "bias", "sink"),
        partial(_reference, lse=True, window=2, causal=True), "bias, sink, cap, lse", _QKV,
        numbers={"softmax_scale": (0.3, 0.2), "softcap": (4.0, 9.0)},
    ),
    OpCase(
        "flash_attn_varlen_func", _run_ragged, _ragged, (*_QKV, "sink"), _ragged_reference, "sink", _QKV,
        numbers={"softmax_scale": (0.3, 0.2)}, rows=11,
    ),
    OpCase(
        "flash_attn_fp8_func", partial(ta.flash_attn_fp8_func, causal=True, return_lse=True),
        partial(_dense, extras=("sink",)), (*_QKV, "sink"), partial(_reference, causal=True, lse=True), "causal", _QKV,
        numbers={"softmax_scale": (0.3, 0.2)}, dtypes=(torch.bfloat16,), snr=20.0,
    ),
    OpCase(
        "sparse_mla_func", _run_sparse, _sparse, ("q", "kv", "attn_sink"), _sparse_reference, "sink", ("q", "kv"),
        numbers={"scale": (0.3, 0.2)},
    ),
]  # fmt: skip


def _qkv(device):
    return tuple(_dense(6, torch.float32, device).values())


FP8 = Float8QuantConfig(granularity=ScalingGranularity.BLOCKWISE, block_size=64)

MODULES = [
    ModuleCase("TurboAttention", lambda device: ta.TurboAttention(causal=True), _qkv),
    ModuleCase("TurboAttention", lambda device: ta.TurboAttention(causal=True, fp8_config=FP8), _qkv, label="fp8"),
]

NOT_OPS: dict[str, str] = {}
