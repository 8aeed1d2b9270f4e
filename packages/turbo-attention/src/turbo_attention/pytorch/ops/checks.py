# SPDX-License-Identifier: MIT
"""What the attention functions accept. Every refusal names the argument, what it was and what is accepted."""

from __future__ import annotations

import math
from typing import Any

import torch

from turbo_core import UnsupportedError

__all__ = ["DTYPES", "check_bias", "check_dense", "check_options", "check_ragged", "refuse", "window_bounds"]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_ACCEPTED = ", ".join(map(str, DTYPES))


def _what(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"a tensor of shape {list(value.shape)}, {value.dtype}, on {value.device}"


def refuse(op: str, name: str, value: Any, accepted: str) -> None:
    """Raise: the argument ``name`` of ``op`` was ``value``."""
    raise UnsupportedError(f"{op}: {name} is {_what(value)}; {accepted}")


def _check_qkv(op: str, q: Any, k: Any, v: Any, rank: int, shapes: str) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != rank:
            refuse(op, name, tensor, f"{shapes} is accepted")
        if tensor.dtype not in DTYPES or tensor.dtype != q.dtype:
            refuse(op, name, tensor, f"one of {_ACCEPTED} is accepted, the same for q, k and v")
        if tensor.device != q.device:
            refuse(op, name, tensor, f"the device of q, {q.device}, is needed")
    heads, heads_k = q.shape[-2], k.shape[-2]
    if v.shape[:-1] != k.shape[:-1]:
        refuse(op, "v", v, f"all but the last size must be those of k, {list(k.shape)}")
    if k.shape[-1] != q.shape[-1] or q.shape[-1] == 0 or v.shape[-1] == 0:
        refuse(op, "k", k, f"q has head dim {q.shape[-1]}; it must be equal, and the head dims of k and v positive")
    if (heads_k == 0 and heads > 0) or (heads_k > 0 and heads % heads_k):
        refuse(op, "k", k, f"q has {heads} heads; they must be a multiple of those of k and v")


def check_dense(op: str, q: Any, k: Any, v: Any) -> None:
    """q [B,Sq,Hq,D], k [B,Sk,Hkv,D], v [B,Sk,Hkv,Dv]."""
    _check_qkv(op, q, k, v, 4, "[batch, seqlen, heads, head_dim]")
    if k.shape[0] != q.shape[0]:
        refuse(op, "k", k, f"q has batch {q.shape[0]}; it must be equal")


def check_ragged(
    op: str, q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Any, max_seqlen_k: Any
) -> None:
    """q [total_q,Hq,D], k [total_k,Hkv,D], v [total_k,Hkv,Dv]; cu_seqlens int32 [B+1]. Values are not read."""
    _check_qkv(op, q, k, v, 3, "[total, heads, head_dim]")
    for name, cu in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        good = isinstance(cu, torch.Tensor) and cu.dim() == 1 and cu.shape[0] > 0 and cu.dtype == torch.int32
        if not good or cu.device != q.device or not cu.is_contiguous():
            refuse(op, name, cu, f"a contiguous int32 tensor [sequences + 1] on {q.device} is accepted")
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        refuse(op, "cu_seqlens_k", cu_seqlens_k, f"cu_seqlens_q has shape {list(cu_seqlens_q.shape)}; be it the same")
    for name, longest in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if isinstance(longest, bool) or not isinstance(longest, (int, torch.SymInt)) or longest < 0:
            refuse(op, name, longest, "a number that is not negative is accepted")


def check_options(
    op: str,
    q: torch.Tensor,
    dropout_p: Any,
    softmax_scale: Any,
    window_size: Any,
    alibi_slopes: Any,
    sink: Any,
    softcap: Any,
    sequences: int,
) -> None:
    """What dense and ragged attention share."""
    heads = q.shape[-2]
    if not _is_number(dropout_p) or not 0 <= dropout_p < 1:
        refuse(op, "dropout_p", dropout_p, "0 <= dropout_p < 1 is accepted")
    if softmax_scale is not None and (not _is_number(softmax_scale) or softmax_scale <= 0):
        refuse(op, "softmax_scale", softmax_scale, "a positive number or None (head_dim ** -0.5) is accepted")
    if not _is_number(softcap) or softcap < 0:
        refuse(op, "softcap", softcap, "a positive number, or 0 for none, is accepted")
    bounds = tuple(window_size) if isinstance(window_size, (tuple, list)) else ()
    if len(bounds) != 2 or not all(isinstance(bound, int) and bound >= -1 for bound in bounds):
        refuse(op, "window_size", window_size, "(left, right) with -1 for unbounded is accepted")
    if alibi_slopes is not None:
        shapes = ((heads,), (sequences, heads))
        good = isinstance(alibi_slopes, torch.Tensor) and tuple(alibi_slopes.shape) in shapes
        if not good or alibi_slopes.device != q.device or not alibi_slopes.dtype.is_floating_point:
            refuse(op, "alibi_slopes", alibi_slopes, f"float [{heads}] or [{sequences}, {heads}] is accepted")
    if sink is not None:
        good = isinstance(sink, torch.Tensor) and tuple(sink.shape) == (heads,) and sink.dtype in DTYPES
        if not good or sink.device != q.device:
            refuse(op, "sink", sink, f"float32 [{heads}] on {q.device} is accepted")


def check_bias(op: str, bias: Any, q: torch.Tensor, k: torch.Tensor) -> None:
    """bias broadcasts to [B,Hq,Sq,Sk]."""
    full = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if not isinstance(bias, torch.Tensor) or bias.dtype not in DTYPES or bias.device != q.device or bias.dim() > 4:
        refuse(op, "bias", bias, f"a tensor that broadcasts to {list(full)} in one of {_ACCEPTED} is accepted")
    padded = (1,) * (4 - bias.dim()) + tuple(bias.shape)
    if any(size not in (1, wanted) for size, wanted in zip(padded, full, strict=True)):
        refuse(op, "bias", bias, f"a shape that broadcasts to {list(full)} is accepted")


def window_bounds(window_size: tuple[int, int], causal: bool) -> tuple[int, int]:
    """Left and right bound, -1 for none; causal is a right bound of 0."""
    left, right = window_size
    if causal:
        right = 0 if right < 0 else min(right, 0)
    return left, right


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
