# SPDX-License-Identifier: MIT
"""`sparse_mla_bwd_flydsl`: the backward of `turbo_attention.sparse_mla_func` from its results."""

from __future__ import annotations

import torch

from turbo_attention.developer import sparse_mla_gradients

__all__ = ["sparse_mla_bwd_flydsl"]


def sparse_mla_bwd_flydsl(
    q: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    grad_out: torch.Tensor,
    topk_indices: torch.Tensor,
    lse: torch.Tensor,
    attn_sink: torch.Tensor | None = None,
    kv_lora_rank: int = 512,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(dq, dkv, dsink), None without a sink; ``out`` and ``lse`` are what `sparse_mla_fwd_flydsl` gave."""
    return sparse_mla_gradients(q, kv, out, grad_out, topk_indices, lse, attn_sink, kv_lora_rank, scale)
