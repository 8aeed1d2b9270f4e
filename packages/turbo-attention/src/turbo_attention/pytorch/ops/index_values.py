# SPDX-License-Identifier: MIT
"""The check of index values that PRIMUS_TURBO_CHECK_INDICES=1 asks for.

The functions look at the values of cu_seqlens and of sparse indices only on request, since reading them stops the host
until the device is done. Under graph capture, where nothing can be read, there is no check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from turbo_core import UnsupportedError
from turbo_core.environment import CHECK_INDICES_VARIABLE, check_indices_from_environment

if TYPE_CHECKING:
    from turbo_attention.calls import ForwardCall

__all__ = ["check_cu_seqlens", "check_sparse_indices"]


def _wanted(device: torch.device) -> bool:
    if not check_indices_from_environment():
        return False
    return device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def _refuse(op: str, what: str, accepted: str) -> None:
    raise UnsupportedError(f"{op}: {what}; {accepted} ({CHECK_INDICES_VARIABLE}=1)")


def check_cu_seqlens(op: str, call: ForwardCall) -> None:
    """Refuse a ragged call whose sequences overlap, leave the tensors, or are longer than max_seqlen says."""
    if call.cu_seqlens_q is None or call.cu_seqlens_k is None or not _wanted(call.q.device):
        return
    for side, cu, rows, longest in (
        ("q", call.cu_seqlens_q, call.q.shape[1], call.max_seqlen_q),
        ("k", call.cu_seqlens_k, call.k.shape[1], call.max_seqlen_k),
    ):
        starts, name = cu.tolist(), f"cu_seqlens_{side}"
        before = 0
        for place, start in enumerate(starts):
            if not before <= start <= rows:
                _refuse(op, f"{name}[{place}] is {start}", f"{before} to {rows}, the tokens of {side}, is accepted")
            if place and start - before > longest:
                lengths = f"sequence {place - 1} of {side} has {start - before} tokens"
                _refuse(op, f"max_seqlen_{side} is {longest}, but {lengths}", "at least the longest is accepted")
            before = start


def check_sparse_indices(op: str, indices: torch.Tensor, rows: int) -> None:
    """Refuse [T,topk] indices that name a row past the last of the cache."""
    if not indices.numel() or not _wanted(indices.device):
        return
    beyond = indices >= rows
    if bool(beyond.any()):
        token, slot = beyond.nonzero()[0].tolist()
        value = int(indices[token, slot])
        accepted = f"below {rows}, the rows of kv, is accepted; negative is an empty slot"
        _refuse(op, f"topk_indices[{token}, {slot}] is {value}", accepted)
