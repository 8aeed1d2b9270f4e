# SPDX-License-Identifier: MIT
"""`sparse_mla_gradients`: the backward of `sparse_mla_func` for callers that keep its results themselves."""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.pytorch.ops.checks import refuse
from turbo_attention.pytorch.ops.sparse_mla import check_call, sparse_mla_backward
from turbo_attention.sparse_calls import SparseBackward

__all__ = ["sparse_mla_gradients"]

_OP = "sparse_mla_gradients"


def _check(name: str, value: Any, shape: list[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    valid = isinstance(value, torch.Tensor) and list(value.shape) == shape and value.dtype == dtype
    if not valid or value.device != device:
        refuse(_OP, name, value, f"{dtype} {shape} on {device} is accepted")
    tensor: torch.Tensor = value.detach()
    return tensor if tensor.stride(-1) == 1 or not shape[-1] else tensor.contiguous()


def sparse_mla_gradients(
    q: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    dout: torch.Tensor,
    topk_indices: torch.Tensor,
    lse: torch.Tensor,
    attn_sink: torch.Tensor | None = None,
    kv_lora_rank: int = 512,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The gradients of `sparse_mla_func` (q, kv, topk_indices, attn_sink, kv_lora_rank, scale) from its results.

    Args:
        out, lse: what it gave with ``return_lse``: [T,H,kv_lora_rank] in q's dtype, float32 [T,H].
        dout: the gradient of out, of its shape and dtype.
        the others: those of the forward.

    Returns:
        (dq, dkv, dsink) of the shapes and dtypes of q, kv and attn_sink; dsink is None without a sink.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
    """
    call = check_call(_OP, q, kv, topk_indices, attn_sink, kv_lora_rank, scale)
    shape = [*call.q.shape[:2], call.rank]
    out = _check("out", out, shape, call.q.dtype, call.q.device)
    dout = _check("dout", dout, shape, call.q.dtype, call.q.device)
    lse = _check("lse", lse, shape[:2], torch.float32, call.q.device).contiguous()
    with torch.no_grad():
        dq, dkv, dsink = sparse_mla_backward(SparseBackward(call, out, lse, torch.zeros_like(lse), dout, None))
    return dq, dkv.reshape(kv.shape), None if attn_sink is None else dsink.to(attn_sink.dtype)
