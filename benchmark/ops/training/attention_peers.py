# SPDX-License-Identifier: MIT
"""What attention is compared with: torch's FlashAttention and cuDNN backends, each where it can take the shape.

Dense causal and full attention goes through `scaled_dot_product_attention` with one backend allowed. That function has
no windows and no ragged sequences; torch's FlashAttention has both, by the operator underneath, which is called then.
None of them has a sink: a peer of a shape with a sink computes the same without it, one term a row less.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmark.ops.training.config import AttentionShape

__all__ = ["PEERS", "peer_function"]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
PEERS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def _dense(shape: AttentionShape, backend: SDPBackend) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        grouped = q.shape[2] != k.shape[2]
        with sdpa_kernel(backend):
            heads_first = (x.transpose(1, 2) for x in (q, k, v))
            out = F.scaled_dot_product_attention(*heads_first, is_causal=shape.causal, enable_gqa=grouped)
        return out.transpose(1, 2)

    return attend


def _flash_operator(shape: AttentionShape, starts: Tensor | None) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.ops.aten._flash_attention_forward(
            q,
            k,
            v,
            starts,
            starts,
            shape.seqlen,
            shape.seqlen,
            0.0,
            shape.causal,
            False,
            window_size_left=shape.window,
            window_size_right=None if shape.window is None else 0,
        )[0]

    return attend


def peer_function(
    name: str, shape: AttentionShape, inputs: tuple[Tensor, Tensor, Tensor], starts: Tensor | None
) -> Attend | None:
    """The peer as a function of q, k, v [B,S,H,D] (ragged: [total,H,D]); None, with a line that says why, where it
    cannot take them forward and backward."""
    dense = shape.window is None and starts is None
    if not dense and name != "flash":
        print(f"{name} has no windows and no ragged sequences: left out of {shape.case}", file=sys.stderr)
        return None
    attend = _dense(shape, PEERS[name]) if dense else _flash_operator(shape, starts)
    try:
        out = attend(*inputs)
        torch.autograd.grad(out, inputs, torch.ones_like(out))
    except Exception as error:  # whatever a peer lacks must not end the run
        reason = str(error).strip().split("\n")[0].split(". ")[0]
        print(f"{name} cannot take {shape.case}: {reason}", file=sys.stderr)
        return None
    return attend
