# SPDX-License-Identifier: MIT
"""`flash_attn_func` and `flash_attn_varlen_func`: exact attention with linear memory, and its gradients."""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.calls import (
    AttentionGradients,
    AttentionResult,
    BackwardCall,
    ForwardCall,
    backward_specs,
    forward_specs,
    weights_spec,
)
from turbo_attention.pytorch.kernels.attention_impl import AttentionDispatcher, run_backward, run_forward
from turbo_attention.pytorch.kernels.reference import attention_probabilities
from turbo_attention.pytorch.ops.arguments import call_arguments, dense_call, ragged_call
from turbo_attention.pytorch.ops.index_values import check_cu_seqlens
from turbo_attention.pytorch.ops.sharding import dense_rules, ragged_rules
from turbo_core import OpInfo
from turbo_core.autocast import without_autocast
from turbo_core.library import Differentiable, OpLibrary, Refused
from turbo_core.sharding import shardable

__all__ = ["FLASH_ATTN", "FLASH_ATTN_VARLEN", "flash_attn_func", "flash_attn_varlen_func"]

_Optional = torch.Tensor | None
_Result = torch.Tensor | tuple[torch.Tensor, ...]

_NAME = "flash_attn_func, flash_attn_varlen_func"
_library = OpLibrary("turbo_attention")

# --- registered ops; tensors are [B,S,H,D] in both forms, ragged ones [1,S,H,D] --------------------------------------


def _run(call: ForwardCall) -> AttentionResult:
    check_cu_seqlens("flash_attn_varlen_func", call)
    return run_forward(call)


def _run_weights(call: ForwardCall) -> torch.Tensor:
    with without_autocast(call.q.device):
        return attention_probabilities(call)


_attention_backward = _library.op(
    "attention_backward", BackwardCall, run_backward, backward_specs, Refused(_NAME), result=AttentionGradients
)


def _saves(call: ForwardCall, result: AttentionResult, needs: Any) -> tuple[Any, ...]:
    return call, result


def _gradients(saved: Any, grads: AttentionResult, needs: Any) -> dict[str, torch.Tensor | None]:
    call, result = saved
    dout = torch.zeros_like(result.out) if grads.out is None else grads.out
    gradients = _attention_backward(BackwardCall(call, *result, dout, grads.lse, needs.bias))
    return gradients.by_field()


_attention = _library.op(
    "attention",
    ForwardCall,
    _run,
    forward_specs,
    Differentiable(_gradients, _saves, _NAME, constants=("lse_low",)),
    result=AttentionResult,
)
_attention_weights = _library.op("attention_weights", ForwardCall, _run_weights, weights_spec)


# --- public functions ------------------------------------------------------------------------------------------------


def _result(call: ForwardCall, ragged: bool, return_lse: bool, return_attn_probs: bool) -> _Result:
    out, lse, _ = _attention(call)
    if ragged:
        out, lse = out[0], lse[0]
    if not (return_lse or return_attn_probs):
        return out
    results = [out, lse] if return_lse else [out]
    if return_attn_probs:
        results.append(_attention_weights(call))
    return tuple(results)


@shardable(dense_rules)
def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    bias: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    return_attn_probs: bool = False,
    sink: torch.Tensor | None = None,
    *,
    softcap: float = 0.0,
) -> _Result:
    """o = softmax(softmax_scale q k^T + ...) v per head; differentiable in q, k, v, bias, sink (and by way of lse).

    Query i sees key j where i + Sk - Sq - left <= j <= i + Sk - Sq + right: windows and causality are aligned to the
    end of both sequences. A query that sees no key gives 0, with lse -inf (the sink's logit where there is a sink).
    Under torch.autocast q, k and v are cast to its dtype; else they share one. Second and forward-mode derivatives are
    refused. dropout_p, softmax_scale and softcap are what `float` takes: numbers of Python or numpy, CPU tensors of one
    element without gradient.

    Args:
        q: [B,Sq,Hq,D], bfloat16, float16 or float32; any strides, so bshd, sbhd and bhsd memory alike.
        k: [B,Sk,Hkv,D]; Hq is a multiple of Hkv, and each key head serves Hq / Hkv heads in a row.
        v: [B,Sk,Hkv,Dv]; Dv may differ from D.
        dropout_p: probability with which a weight is dropped; the others grow by 1 / (1 - dropout_p). Seeds come from
            torch's generator of the device; the mask depends on positions alone.
        softmax_scale: default D ** -0.5.
        causal: as if right were 0.
        window_size: (left, right) in keys, both inclusive; -1 is unbounded.
        bias: broadcasts to [B,Hq,Sq,Sk]; added to the scaled scores.
        alibi_slopes: [Hq] or [B,Hq], without gradient; slope * |i + Sk - Sq - j| is subtracted from the scaled scores.
        deterministic: gradients bit-equal from run to run; also on under `torch.use_deterministic_algorithms`. The
            Triton and reference backends are always.
        return_lse: also return lse, the logarithm of the softmax's denominator (sink included).
        return_attn_probs: also return the weights, [B,Hq,Sq,Sk] float32, negative where dropped; needs that memory and
            has no gradient.
        sink: [Hq], a logit per head that joins the denominator alone.
        softcap: scores become softcap * tanh(score / softcap) before bias; 0 is none.

    Returns:
        out [B,Sq,Hq,Dv] in q's dtype and order of dimensions in memory; then, as asked, lse [B,Hq,Sq] float32 and the
        weights.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
        BackendUnavailableError: the backend named in code or by PRIMUS_TURBO_ATTENTION_BACKEND cannot take the call.

    Source: Dao et al., FlashAttention-2 (2023); sinks: OpenAI gpt-oss (2025).
    """
    op = "flash_attn_func"
    call = dense_call(
        op, q, k, v, dropout_p, softmax_scale, causal, window_size, bias, alibi_slopes, deterministic, sink, softcap
    )
    return _result(call, False, return_lse, return_attn_probs)


@shardable(ragged_rules, replicated=("cu_seqlens_q", "cu_seqlens_k"))
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    bias: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    return_attn_probs: bool = False,
    sink: torch.Tensor | None = None,
    *,
    softcap: float = 0.0,
) -> _Result:
    """`flash_attn_func` on sequences of different lengths that lie one after another.

    Args:
        q: [total_q,Hq,D]; k: [total_k,Hkv,D]; v: [total_k,Hkv,Dv].
        cu_seqlens_q, cu_seqlens_k: int32 [B+1] on the device, where each sequence begins and the last ends. Sequences
            may be empty. Rows of no sequence, before the first and behind the last, have out 0, lse -inf and
            gradients of 0. The values are not read, since that would stop the host, unless
            PRIMUS_TURBO_CHECK_INDICES=1; wrong ones give wrong numbers, never memory of others.
        max_seqlen_q, max_seqlen_k: at least the longest lengths; integers, or CPU tensors of one.
        bias: None is accepted: a bias of ragged sequences has no shape.
        the others: as for `flash_attn_func`; alibi_slopes is [Hq] or [B,Hq].

    Returns:
        out [total_q,Hq,Dv]; then, as asked, lse [Hq,total_q] and the weights [B,Hq,max_seqlen_q,max_seqlen_k].

    Raises:
        as `flash_attn_func`.
    """
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    options = dropout_p, softmax_scale, causal, window_size, bias, alibi_slopes, deterministic, sink, softcap
    call = ragged_call(q, k, v, *lengths, *options)
    return _result(call, True, return_lse, return_attn_probs)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _with_backward(call: ForwardCall) -> dict[str, Any]:
    q = call.q
    lse = q.new_empty((1, 1, 1), dtype=torch.float32).expand(q.shape[0], q.shape[2], q.shape[1])
    out = q.new_empty((1, 1, 1, 1)).expand(*q.shape[:3], call.v.shape[3])  # only metadata are read
    return {"forward": call, "backward": BackwardCall(call, out, lse, lse, out, None, call.bias is not None)}


def _dense_calls(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return _with_backward(dense_call("flash_attn_func", **call_arguments(flash_attn_func, *args, **kwargs)))


def _ragged_calls(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return _with_backward(ragged_call(**call_arguments(flash_attn_varlen_func, *args, **kwargs)))


def _dense_example(device: torch.device) -> dict[str, Any]:
    one = torch.empty((1, 1, 1, 1), dtype=torch.bfloat16, device=device)
    q, k = one.expand(2, 4096, 32, 128), one.expand(2, 4096, 8, 128)
    return _dense_calls(q, k, k, causal=True)


def _ragged_example(device: torch.device) -> dict[str, Any]:
    one = torch.empty((1, 1, 1), dtype=torch.bfloat16, device=device)
    cu = torch.tensor([0, 1024, 4096], dtype=torch.int32, device=device)
    q, k = one.expand(4096, 32, 128), one.expand(4096, 8, 128)
    return _ragged_calls(q, k, k, cu, cu, 3072, 3072, causal=True)


FLASH_ATTN = OpInfo("flash_attn_func", AttentionDispatcher, _dense_calls, _dense_example)
FLASH_ATTN_VARLEN = OpInfo("flash_attn_varlen_func", AttentionDispatcher, _ragged_calls, _ragged_example)
