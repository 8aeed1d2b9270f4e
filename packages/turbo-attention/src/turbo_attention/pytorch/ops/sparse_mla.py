# SPDX-License-Identifier: MIT
"""`sparse_mla_func`: attention of each token to the rows of a latent cache that its indices name."""

from __future__ import annotations

import sys
from typing import Any

import torch

from turbo_attention.pytorch.kernels.sparse_mla_impl import SparseMlaDispatcher, run_backward, run_forward
from turbo_attention.pytorch.ops.checks import ACCEPTED, as_count, as_number, cast_operands, check_sink, ensure, refuse
from turbo_attention.pytorch.ops.index_values import check_sparse_indices
from turbo_attention.pytorch.ops.sharding import sparse_mla_rules
from turbo_attention.sparse_calls import (
    SparseBackward,
    SparseForward,
    SparseGradients,
    SparseResult,
    sparse_backward_specs,
    sparse_forward_specs,
)
from turbo_core import OpInfo
from turbo_core.library import Differentiable, OpLibrary, Refused
from turbo_core.sharding import shardable

__all__ = ["SPARSE_MLA", "check_call", "sparse_mla_backward", "sparse_mla_func"]

_OP = "sparse_mla_func"
_Optional = torch.Tensor | None
_library = OpLibrary("turbo_attention")


def _run(call: SparseForward) -> SparseResult:
    check_sparse_indices(_OP, call.indices, call.kv.shape[0])
    return run_forward(call)


sparse_mla_backward = _library.op(
    "sparse_mla_backward", SparseBackward, run_backward, sparse_backward_specs, Refused(_OP), result=SparseGradients
)


def _saves(call: SparseForward, result: SparseResult, needs: Any) -> tuple[Any, ...]:
    return call, result


def _gradients(saved: Any, grads: SparseResult, needs: Any) -> dict[str, _Optional]:
    call, result = saved
    dout = torch.zeros_like(result.out) if grads.out is None else grads.out
    dq, dkv, dsink = sparse_mla_backward(SparseBackward(call, *result, dout, grads.lse))
    return {"q": dq, "kv": dkv, "sink": dsink}


sparse_mla = _library.op(
    "sparse_mla",
    SparseForward,
    _run,
    sparse_forward_specs,
    Differentiable(_gradients, _saves, _OP, constants=("lse_low",)),
    result=SparseResult,
)


def check_call(
    op: str, q: Any, kv: Any, topk_indices: Any, attn_sink: Any, kv_lora_rank: Any, scale: Any
) -> SparseForward:
    """The arguments, checked, as the backends take them."""
    if not isinstance(q, torch.Tensor) or q.dim() != 3 or q.shape[2] == 0:
        refuse(op, "q", q, f"[tokens, heads, head_dim] in one of {ACCEPTED} is accepted")
    good = isinstance(kv, torch.Tensor) and (kv.dim() == 2 or (kv.dim() == 3 and kv.shape[1] == 1))
    if not good or kv.shape[-1] != q.shape[2] or kv.device != q.device:
        refuse(op, "kv", kv, f"[rows, {q.shape[2]}] or [rows, 1, {q.shape[2]}] on {q.device} is accepted")
    good = isinstance(topk_indices, torch.Tensor) and topk_indices.dim() == 2 and topk_indices.dtype == torch.int32
    if not good or topk_indices.shape[0] != q.shape[0] or topk_indices.device != q.device:
        refuse(op, "topk_indices", topk_indices, f"int32 [{q.shape[0]}, topk] on {q.device} is accepted")
    if attn_sink is not None:
        check_sink(op, attn_sink, q, "attn_sink")
        attn_sink = attn_sink.float().contiguous()
    accepted = f"1 to {q.shape[2]}, the head dim of q, is accepted"
    rank = as_count(op, "kv_lora_rank", kv_lora_rank, accepted)
    ensure(rank > 0, op, "kv_lora_rank", kv_lora_rank, accepted)
    ensure(rank <= q.shape[2], op, "kv_lora_rank", kv_lora_rank, accepted)
    softmax_scale = q.shape[2] ** -0.5
    if scale is not None:
        accepted = "a finite number or None (head_dim ** -0.5) is accepted"
        softmax_scale = as_number(op, "scale", scale, accepted)
        ensure(softmax_scale >= -sys.float_info.max, op, "scale", scale, accepted)
        ensure(softmax_scale <= sys.float_info.max, op, "scale", scale, accepted)
    q, kv = cast_operands(op, ("q", "kv"), (q, kv))
    return SparseForward(q, kv.reshape(kv.shape[0], kv.shape[-1]), topk_indices, attn_sink, rank, softmax_scale)


@shardable(sparse_mla_rules)
def sparse_mla_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    topk_indices: torch.Tensor,
    attn_sink: torch.Tensor | None = None,
    kv_lora_rank: int = 512,
    scale: float | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """o = softmax(scale q kv_r^T) kv_r[:kv_lora_rank] over the rows r that each token names; one latent for all heads.

    Differentiable once in q, kv, attn_sink, and by way of lse. Under torch.autocast q and kv are cast to its dtype;
    else they share one. Gradients are bit-equal from run to run: those of kv are summed in a fixed order.

    Args:
        q: [T,H,D], bfloat16, float16 or float32: latent columns first, then rotary ones, all of which count.
        kv: [N,D] or [N,1,D]; K is the whole row, V its first ``kv_lora_rank`` columns. N may be anything.
        topk_indices: int32 [T,topk], rows of kv; negative is an empty slot. N and above are too, but an error where
            PRIMUS_TURBO_CHECK_INDICES=1 has them read.
        attn_sink: [H], a logit per head that joins the softmax's denominator alone.
        kv_lora_rank: columns of V.
        scale: default D ** -0.5; what `float` takes, as for `flash_attn_func`.
        return_lse: also return the logarithm of the softmax's denominator.

    Returns:
        o [T,H,kv_lora_rank] in q's dtype, contiguous; with ``return_lse`` also lse float32 [T,H].

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
        BackendUnavailableError: the backend named in code or by PRIMUS_TURBO_SPARSE_ATTN_BACKEND cannot take the call.

    Source: DeepSeek-V3.2 (2025).
    """
    call = check_call(_OP, q, kv, topk_indices, attn_sink, kv_lora_rank, scale)
    out, lse, _ = sparse_mla(call)
    return (out, lse) if return_lse else out


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(
    q: Any,
    kv: Any,
    topk_indices: Any,
    attn_sink: _Optional = None,
    kv_lora_rank: int = 512,
    scale: float | None = None,
    return_lse: bool = False,
) -> dict[str, Any]:
    forward = check_call(_OP, q, kv, topk_indices, attn_sink, kv_lora_rank, scale)
    lse = q.new_empty((1, 1), dtype=torch.float32).expand(q.shape[:2])
    out = forward.q.narrow(2, 0, kv_lora_rank)  # only its metadata are read
    return {"forward": forward, "backward": SparseBackward(forward, out, lse, lse, out, None)}


def _example(device: torch.device) -> dict[str, Any]:
    one = torch.empty((1, 1, 1), dtype=torch.bfloat16, device=device)
    indices = torch.empty((1, 1), dtype=torch.int32, device=device).expand(4096, 2048)
    return _calls(one.expand(4096, 128, 576), one[0].expand(8192, 576), indices)


SPARSE_MLA = OpInfo("sparse_mla_func", SparseMlaDispatcher, _calls, _example)
