# SPDX-License-Identifier: MIT
"""`sparse_mla_fwd_flydsl`: the forward of `turbo_attention.sparse_mla_func`."""

from __future__ import annotations

import torch

from turbo_attention import sparse_mla_func

__all__ = ["sparse_mla_fwd_flydsl"]


def sparse_mla_fwd_flydsl(
    q: torch.Tensor,
    kv: torch.Tensor,
    topk_indices: torch.Tensor,
    attn_sink: torch.Tensor | None = None,
    kv_lora_rank: int = 512,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [T,H,kv_lora_rank], lse float32 [T,H]), without a graph; arguments as for `sparse_mla_func`."""
    with torch.no_grad():
        return sparse_mla_func(q, kv, topk_indices, attn_sink, kv_lora_rank, scale, return_lse=True)
