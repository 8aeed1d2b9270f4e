# SPDX-License-Identifier: MIT
"""The arguments of the attention functions, checked, as the backends take them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

from turbo_attention.calls import ForwardCall
from turbo_attention.pytorch.ops.checks import (
    as_count,
    as_number,
    check_alibi_slopes,
    check_bias,
    check_dense,
    check_ragged,
    check_sink,
    ensure,
    window_bounds,
)
from turbo_core import UnsupportedError
from turbo_quant import rng_state

__all__ = ["call_arguments", "dense_call", "ragged_call"]

_Optional = torch.Tensor | None


def dense_call(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: Any,
    softmax_scale: Any,
    causal: bool,
    window_size: Any,
    bias: _Optional,
    alibi_slopes: _Optional,
    deterministic: bool,
    sink: _Optional,
    softcap: Any,
) -> ForwardCall:
    """The arguments of a dense attention as the backends take them."""
    q, k, v = check_dense(op, q, k, v)
    batch, seqlen_q, heads, width = q.shape
    seqlen_k = k.shape[1]
    if bias is not None:
        check_bias(op, bias, q, k)
        bias = bias.expand(batch, heads, seqlen_q, seqlen_k)
    drop, scale, cap = _numbers(op, width, dropout_p, softmax_scale, softcap)
    left, right = window_bounds(op, window_size, causal)
    slopes, sink = _rows(op, q, batch, alibi_slopes, sink)
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    rng = _rng(q, dropout_p, drop)
    return ForwardCall(
        q, k, v, scale, left, right, cap, drop, bias, slopes, sink, rng, None, None, seqlen_q, seqlen_k, deterministic
    )


def ragged_call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: Any,
    softmax_scale: Any,
    causal: bool,
    window_size: Any,
    bias: _Optional,
    alibi_slopes: _Optional,
    deterministic: bool,
    sink: _Optional,
    softcap: Any,
) -> ForwardCall:
    """Likewise of sequences that lie one after another."""
    op = "flash_attn_varlen_func"
    q, k, v = check_ragged(op, q, k, v, cu_seqlens_q, cu_seqlens_k)
    longest_q = _longest(op, "max_seqlen_q", max_seqlen_q)
    longest_k = _longest(op, "max_seqlen_k", max_seqlen_k)
    if bias is not None:
        raise UnsupportedError(f"{op}: bias is a {type(bias).__name__}; None is accepted")
    drop, scale, cap = _numbers(op, q.shape[2], dropout_p, softmax_scale, softcap)
    left, right = window_bounds(op, window_size, causal)
    slopes, sink = _rows(op, q, cu_seqlens_q.shape[0] - 1, alibi_slopes, sink)
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    rng, starts = _rng(q, dropout_p, drop), (cu_seqlens_q, cu_seqlens_k)
    q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    return ForwardCall(
        q, k, v, scale, left, right, cap, drop, None, slopes, sink, rng, *starts, longest_q, longest_k, deterministic
    )


def _longest(op: str, name: str, given: Any) -> int:
    accepted = "an integer that is not negative is accepted"
    longest = as_count(op, name, given, accepted)
    ensure(longest >= 0, op, name, given, accepted)
    return longest


def _rows(
    op: str, q: torch.Tensor, sequences: int, alibi_slopes: _Optional, sink: _Optional
) -> tuple[_Optional, _Optional]:
    """alibi_slopes and sink, checked, in float32."""
    if alibi_slopes is not None:
        check_alibi_slopes(op, alibi_slopes, q, sequences)
        alibi_slopes = alibi_slopes.detach().float().expand(sequences, q.shape[-2])
    if sink is not None:
        check_sink(op, sink, q)
        sink = sink.float().contiguous()
    return alibi_slopes, sink


def _rng(q: torch.Tensor, dropout_p: Any, drop: float) -> _Optional:
    """Seed and offset where something is dropped; a probability that torch.compile does not know may be positive."""
    unknown = torch.compiler.is_compiling() and not isinstance(dropout_p, (int, float))
    return rng_state(q.device) if unknown or drop > 0 else None


def _numbers(op: str, width: int, dropout_p: Any, softmax_scale: Any, softcap: Any) -> tuple[float, float, float]:
    """dropout_p, softmax_scale and softcap, checked."""
    accepted = "0 <= dropout_p < 1 is accepted"
    drop = as_number(op, "dropout_p", dropout_p, accepted)
    ensure(drop >= 0, op, "dropout_p", dropout_p, accepted)
    ensure(drop < 1, op, "dropout_p", dropout_p, accepted)
    scale = width**-0.5
    if softmax_scale is not None:
        accepted = "a positive number or None (head_dim ** -0.5) is accepted"
        scale = as_number(op, "softmax_scale", softmax_scale, accepted)
        ensure(scale > 0, op, "softmax_scale", softmax_scale, accepted)
        ensure(scale < math.inf, op, "softmax_scale", softmax_scale, accepted)
    accepted = "a positive number, or 0 for none, is accepted"
    cap = as_number(op, "softcap", softcap, accepted)
    ensure(cap >= 0, op, "softcap", softcap, accepted)
    ensure(cap < math.inf, op, "softcap", softcap, accepted)
    return drop, scale, cap


def call_arguments(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Arguments of a public function by name, defaults filled in, without those that say what to return."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    results = ("return_lse", "return_attn_probs")
    return {name: value for name, value in bound.arguments.items() if name not in results}
