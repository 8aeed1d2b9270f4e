# SPDX-License-Identifier: MIT
"""The TURBO backend: a `ForwardCall` by the HIP kernels of the native library, its gradients by Triton's.

Results are allocated here, tensors become addresses; the rest is `turbo_core.native.NativeLibrary`. The kernels read 16
bytes at a time: a q, k or v that begins or strides otherwise is copied first. lse is that of Triton's kernels, whose
backward goes with them.
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.calls import AttentionGradients, AttentionResult, BackwardCall, ForwardCall, forward_specs
from turbo_core import DeviceFacts, why_no_triton
from turbo_core.calls import outputs
from turbo_core.launch import Launch
from turbo_core.native import NativeLibrary, float_code

__all__ = ["HEAD_DIMS", "plan", "reset", "run", "why_not"]

HEAD_DIMS = (64, 128)
MAX_LENGTH = 2**30 - 1024  # of a sequence; kMaxRows in csrc/kernels/attention.cpp
MAX_ROW_STRIDE = 2**23  # elements from row to row; kMaxRowStride there
MAX_WORK = 2**22  # work-groups; kMaxWork there
TILE_ROWS = 256  # queries of a work-group; kTileRows in csrc/kernels/attention_args.h

_DTYPES = (torch.bfloat16, torch.float16)
_ROW_UNIT = 8  # elements in 16 bytes

_library = NativeLibrary("turbo_attention")
reset = _library.reset


# --- can it run -------------------------------------------------------------------------------------------------------


def why_not(call: ForwardCall | BackwardCall) -> str | None:
    """Why the HIP kernels, or Triton's behind them, cannot compute ``call``; None when they can."""
    forward = call if isinstance(call, ForwardCall) else call.forward
    device = forward.q.device
    reason = _library.why_not(device) or _why_not_operation(forward) or _why_not_size(forward)
    if reason is not None or isinstance(call, ForwardCall):
        return reason
    reason = why_no_triton(device)
    if reason is not None:
        return reason
    from turbo_attention.triton import attention

    return attention.why_not(call)


def _why_not_operation(call: ForwardCall) -> str | None:
    D, DV = call.q.shape[3], call.v.shape[3]
    if call.q.dtype not in _DTYPES:
        return f"q is {call.q.dtype}; {' and '.join(map(str, _DTYPES))} are accepted"
    if D not in HEAD_DIMS or DV != D:
        return f"head dims are {D} and {DV}; {' and '.join(map(str, HEAD_DIMS))} are accepted, the same for v"
    if call.cu_seqlens_q is not None:
        return "the sequences are ragged (cu_seqlens); dense batches are accepted"
    if call.left >= 0 or call.right > 0:
        return f"window=({call.left}, {call.right}); (-1, -1) and causal, (-1, 0), are accepted"
    extras = dict(
        softcap=call.softcap > 0,
        dropout_p=call.dropout_p > 0,
        bias=call.bias is not None,
        alibi_slopes=call.alibi_slopes is not None,
        sink=call.sink is not None,
    )
    given = [name for name, is_given in extras.items() if is_given]
    return f"{' and '.join(given)} given; the HIP kernels have none of it" if given else None


def _why_not_size(call: ForwardCall) -> str | None:
    q, k = call.q, call.k
    B, sq, heads, D = q.shape
    if max(sq, k.shape[1]) > MAX_LENGTH:
        return f"sequences of {sq} and {k.shape[1]}; up to {MAX_LENGTH} are accepted"
    if B * heads * -(-sq // TILE_ROWS) > MAX_WORK:
        return f"{B} x {heads} heads of {sq} queries; {MAX_WORK} tiles of {TILE_ROWS} are accepted"
    inner = B if q.stride(1) > q.stride(0) else 1  # rows outermost: all batches lie in a row
    if inner * heads * D > MAX_ROW_STRIDE:
        return f"a row of out has {inner * heads * D} elements; up to {MAX_ROW_STRIDE} are accepted"
    return None


# --- run --------------------------------------------------------------------------------------------------------------


def plan(call: ForwardCall | BackwardCall, facts: DeviceFacts) -> tuple[AttentionGradients, list[Launch]] | None:
    """Triton's of a backward."""
    if isinstance(call, ForwardCall):
        return None
    from turbo_attention.triton.attention import plan_backward

    return plan_backward(call, facts)


def run(call: ForwardCall) -> AttentionResult:
    """The attention of a call that `why_not` accepts."""
    result = outputs(forward_specs(call), call.q.device)
    q, k, v = (_readable(tensor) for tensor in (call.q, call.k, call.v))
    B, sq, heads, D = q.shape
    index, stream = _library.where(q)
    status = _library.extension.attention_forward(
        index,
        stream,
        q=_argument(q),
        k=_argument(k),
        v=_argument(v),
        out=_argument(result.out),
        lse=result.lse.data_ptr(),
        lse_low=result.lse_low.data_ptr(),
        lse_strides=result.lse.stride()[:2],
        batches=B,
        sq=sq,
        sk=k.shape[1],
        heads=heads,
        key_heads=k.shape[2],
        head_dim=D,
        dtype=float_code("q.dtype", q.dtype),
        softmax_scale=call.softmax_scale,
        causal=call.right == 0,
    )
    _library.check(status)
    return result


def _strides(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Of batch, row and head. That of a single one is never used and may be anything: 0 then."""
    batch, row, head = (0 if tensor.shape[axis] == 1 else tensor.stride(axis) for axis in range(3))
    return batch, row, head


def _argument(tensor: torch.Tensor) -> dict[str, Any]:
    """The fields of turbo_attention_tensor."""
    return {"data": tensor.data_ptr(), "strides": _strides(tensor)}


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` if rows begin on 16 bytes and are not too far apart, else a dense copy."""
    strides = _strides(tensor)
    fits = all(stride % _ROW_UNIT == 0 for stride in strides) and strides[1] <= MAX_ROW_STRIDE
    if fits and tensor.data_ptr() % 16 == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)
