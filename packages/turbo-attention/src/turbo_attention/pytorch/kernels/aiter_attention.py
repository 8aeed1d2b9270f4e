# SPDX-License-Identifier: MIT
"""The AITER backend of attention: an adapter to the forward and backward of ``aiter.ops.mha``.

AITER is imported by the first attention it computes, never before: its import needs a ROCm device. The functions are
those below its autograd, which choose between its assembly and composable kernel, take and give [B,S,H,D] or
[total,H,D], and give lse as [B,H,S] or [H,total], the natural logarithm, in float32 alone. Rows that no sequence has
are cleared here; offsets outside of the tensors are AITER's to read. Signatures change between releases, so arguments
go by keyword, through a table by version.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from typing import Any

import torch

from turbo_attention.calls import AttentionGradients, AttentionResult, BackwardCall, ForwardCall
from turbo_attention.layout import empty_like_rows
from turbo_core import device_facts

__all__ = ["AITER_ARGUMENTS", "aiter_arguments", "known_releases", "run", "why_not"]

_Version = tuple[int, ...]
_Arguments = Mapping[str, tuple[str, ...]]

_OPTIONS = ("dropout_p", "softmax_scale", "causal", "window_size_left", "window_size_right")
_RAGGED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_PADDED = ("cu_seqlens_q_padded", "cu_seqlens_k_padded")  # None: our sequences have no gaps
_GIVEN = ("dout", "q", "k", "v", "out", "softmax_lse", "dq", "dk", "dv")
_LSE = ("bias", "alibi_slopes", "return_lse", "return_softmax")
_SINK_AND_FP8 = ("sink_size", "q_descale", "k_descale", "v_descale")  # no default there; ours have neither
_ALIKE = {
    "_flash_attn_backward": (*_GIVEN, "dbias", *_OPTIONS, "bias", "alibi_slopes", "deterministic", "rng_state"),
    "_flash_attn_varlen_forward": ("q", "k", "v", *_RAGGED, *_PADDED, "min_seqlen_q", *_OPTIONS, *_LSE),
    "_flash_attn_varlen_backward": (*_GIVEN, *_RAGGED, *_OPTIONS, "alibi_slopes", "deterministic", "rng_state"),
}

# Keywords of the functions of aiter.ops.mha by release: from the first number on, up to but without the second. Between
# the two rows sinks arrived, as arguments without a default; in which release, none of the packages at hand says.
AITER_ARGUMENTS: tuple[tuple[_Version, _Version, _Arguments], ...] = (
    ((0, 1, 7), (0, 1, 8), {"_flash_attn_forward": ("q", "k", "v", *_OPTIONS, *_LSE), **_ALIKE}),
    ((0, 1, 13), (0, 2), {"_flash_attn_forward": ("q", "k", "v", *_OPTIONS, *_SINK_AND_FP8, *_LSE), **_ALIKE}),
)
_MAX_HEAD_DIM = 256
_ALIGNMENT = 8  # elements that a lane loads at once
_MAX_ELEMENTS = 2**31  # strides are 32-bit numbers
_MAX_ALIBI_LENGTH = 2**16  # distances are 16-bit numbers
_UNEQUAL = (192, 128)  # head dims for which there are kernels of their own


def aiter_arguments(version: str) -> _Arguments | None:
    """The keywords of that release by function, None if it is not in the table."""
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    return next((names for first, end, names in AITER_ARGUMENTS if first <= numbers < end), None)


def known_releases() -> str:
    """The releases in the table, in words: ``0.1.7.* and >= 0.1.13, < 0.2``."""
    first, later = (tuple(".".join(map(str, numbers)) for numbers in row[:2]) for row in AITER_ARGUMENTS)
    return f"{first[0]}.* and >= {later[0]}, < {later[1]}"


@functools.cache
def _installed() -> str | None:
    try:
        version = importlib.metadata.version("amd-aiter")
    except importlib.metadata.PackageNotFoundError:
        return None
    return version if importlib.util.find_spec("aiter") else None


def why_not(call: ForwardCall | BackwardCall) -> str | None:
    """What AITER has against ``call``: it must compute what turbo_attention/calls.py says."""
    forward = call if isinstance(call, ForwardCall) else call.forward
    reason = _why_not_here(forward) or _why_not_options(forward)
    if reason is not None or isinstance(call, ForwardCall):
        return reason
    if call.dlse is not None:
        return "lse has a gradient (dlse); AITER's backward takes none"
    if call.want_dbias:
        return "the gradient of bias is wanted; AITER's is summed over batch and heads"
    return None


def run(call: ForwardCall | BackwardCall) -> AttentionResult | AttentionGradients:
    """The attention of a call that `why_not` accepts, or its gradients."""
    return _forward(call) if isinstance(call, ForwardCall) else _backward(call)


# --- what it refuses ------------------------------------------------------------------------------------------------


def _why_not_here(call: ForwardCall) -> str | None:
    """The objection of the installation, the device and the tensors."""
    version = _installed()
    if version is None:
        return "amd-aiter is not installed: pip install amd-aiter, on a machine with ROCm"
    if aiter_arguments(version) is None:
        return f"amd-aiter {version}; this turbo-attention knows how to call the attention of {known_releases()}"
    q, k, v = call.q, call.k, call.v
    if q.device.type != "cuda":
        return f"q is on {q.device.type}; AITER needs tensors on a GPU"
    arch = device_facts(q.device).arch
    if arch not in ("gfx942", "gfx950"):
        return f"this is {arch}; AITER's attention needs gfx942 or gfx950"
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"q is {q.dtype}; AITER takes torch.bfloat16 and torch.float16"
    widest = max(q.shape[3], v.shape[3])
    if widest > _MAX_HEAD_DIM:
        return f"the head dim is {widest}; AITER takes up to {_MAX_HEAD_DIM}"
    if max(q.numel(), k.numel(), v.numel()) >= _MAX_ELEMENTS:
        return "q, k or v has 2**31 elements or more; AITER's strides are 32-bit numbers"
    return None


def _why_not_options(call: ForwardCall) -> str | None:
    """The objection of what the call asks for."""
    if call.dropout_p > 0:
        return "dropout_p is not 0; AITER's mask is another"
    if call.softcap > 0:
        return "softcap is not 0; AITER's backward has none"
    if call.sink is not None:
        return "there is a sink; AITER has no gradient of one"
    left, right = _left(call), call.right
    if left == 0:
        return "the window's left bound is 0; AITER counts that as none where it chooses a kernel"
    if call.cu_seqlens_q is not None and call.cu_seqlens_k is not None:
        if not _same(call.cu_seqlens_q, call.cu_seqlens_k):
            return (
                "cu_seqlens_q and cu_seqlens_k are two tensors; AITER is asked only where one serves both, since "
                "queries that see no key are not defined there"
            )
    elif right >= 0 and call.q.shape[1] > call.k.shape[1]:
        return "there are more queries than keys and a right bound; AITER does not define queries that see no key"
    return _why_not_bias(call, left, right)


def _why_not_bias(call: ForwardCall, left: int, right: int) -> str | None:
    bias, slopes = call.bias, call.alibi_slopes
    if bias is not None and slopes is not None:
        return "there are bias and alibi_slopes; AITER takes one of them"
    if bias is not None:
        broadcast = all(bias.shape[axis] == 1 or bias.stride(axis) == 0 for axis in (0, 1))
        if not broadcast or bias.dtype != call.q.dtype:
            return "AITER takes a bias of [Sq,Sk] alone, in q's dtype"
    if slopes is not None:
        if left < 0 and right == 0:
            return "alibi_slopes with causal; AITER adds slope * j there, and its lse is another"
        if max(call.max_seqlen_q, call.max_seqlen_k) >= _MAX_ALIBI_LENGTH:
            return f"alibi_slopes; AITER counts distances below {_MAX_ALIBI_LENGTH} only"
    return None


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the two are the same memory, told without an address (a fake tensor has none)."""
    if one is other:
        return True
    storages = one.untyped_storage()._cdata, other.untyped_storage()._cdata
    return storages[0] == storages[1] and (one.storage_offset(), one.shape, one.stride()) == (
        other.storage_offset(),
        other.shape,
        other.stride(),
    )


def _left(call: ForwardCall) -> int:
    """The window's left bound, -1 where it is none or excludes nothing."""
    return -1 if call.left >= call.max_seqlen_k else call.left


# --- what it passes on ----------------------------------------------------------------------------------------------


def _forward(call: ForwardCall) -> AttentionResult:
    width, width_v = _widths(call)
    values = _operands(call, width, width_v)
    values |= {"return_lse": True, "return_softmax": False, "min_seqlen_q": 0} | dict.fromkeys(_PADDED)
    values |= dict.fromkeys(_SINK_AND_FP8) | {"sink_size": 0}
    ragged = call.cu_seqlens_q is not None
    out, lse, *_ = _call("_flash_attn_varlen_forward" if ragged else "_flash_attn_forward", values)
    if ragged:
        out, lse = out[None], lse[None]
    out, lse_low = _like_rows(out, call.q, call.v.shape[3]), torch.zeros_like(lse)
    if call.cu_seqlens_q is not None:
        _clear_rows(call.cu_seqlens_q, out, None, lse, lse_low)
    return AttentionResult(out, lse, lse_low)


def _backward(call: BackwardCall) -> AttentionGradients:
    forward = call.forward
    q, k, v = forward.q, forward.k, forward.v
    width, width_v = _widths(forward)
    values = _operands(forward, width, width_v)
    ragged = forward.cu_seqlens_q is not None
    results = [
        like.new_empty((*like.shape[:3], wide)) for like, wide in zip((q, k, v), (width, width, width_v), strict=True)
    ]
    tensors = {
        "dout": _fit(call.dout, width_v),
        "out": _fit(call.out, width_v),
        "softmax_lse": call.lse.contiguous(),
        **dict(zip(("dq", "dk", "dv"), results, strict=True)),
    }
    values |= {name: tensor[0] if ragged else tensor for name, tensor in tensors.items()}
    values |= {
        "dbias": None,
        "deterministic": forward.deterministic,
        "rng_state": q.new_empty(2, dtype=torch.int64),  # read by dropout alone, but its address is always taken
    }
    _call("_flash_attn_varlen_backward" if ragged else "_flash_attn_backward", values)
    dq, dk, dv = (_like_rows(result, like, like.shape[3]) for result, like in zip(results, (q, k, v), strict=True))
    if forward.cu_seqlens_q is not None and forward.cu_seqlens_k is not None:
        _clear_rows(forward.cu_seqlens_q, dq)
        _clear_rows(forward.cu_seqlens_k, dk, dv)
    return AttentionGradients(dq, dk, dv, None, None)


def _clear_rows(cu_seqlens: torch.Tensor, x: torch.Tensor, *others: torch.Tensor | None) -> None:
    """What `plan_clear_rows` says."""
    from turbo_attention.triton.clear_rows import plan_clear_rows  # comes with every torch that AITER runs on

    plan_clear_rows(cu_seqlens, x, *others).run(x.device)


def _call(name: str, values: dict[str, Any]) -> Any:
    names = aiter_arguments(_installed() or "") or {}  # in the table: why_not has looked
    function = getattr(importlib.import_module("aiter.ops.mha"), name)
    return function(**{keyword: values[keyword] for keyword in names[name]})


def _operands(call: ForwardCall, width: int, width_v: int) -> dict[str, Any]:
    """The arguments that forward and backward share, by keyword."""
    rows = {"q": _fit(call.q, width), "k": _fit(call.k, width), "v": _fit(call.v, width_v)}
    causal = call.right == 0  # a flag: AITER adds the right bound itself, and some of its kernels know the flag alone
    return {
        **(rows if call.cu_seqlens_q is None else {name: tensor[0] for name, tensor in rows.items()}),
        "dropout_p": 0.0,
        "softmax_scale": call.softmax_scale,
        "causal": causal,
        "window_size_left": _left(call),
        "window_size_right": -1 if causal else call.right,
        "bias": None if call.bias is None else call.bias[0, 0].contiguous(),
        "alibi_slopes": None if call.alibi_slopes is None else call.alibi_slopes.contiguous(),
        "cu_seqlens_q": call.cu_seqlens_q,
        "cu_seqlens_k": call.cu_seqlens_k,
        "max_seqlen_q": call.max_seqlen_q,
        "max_seqlen_k": call.max_seqlen_k,
    }


def _widths(call: ForwardCall) -> tuple[int, int]:
    """Head dims that AITER has kernels for, of q and k and of v.

    A single query of grouped heads is computed as a group of queries, whose result it shapes by q's head dim.
    """
    width, width_v = (size + -size % _ALIGNMENT for size in (call.q.shape[3], call.v.shape[3]))
    if (width, width_v) == _UNEQUAL and call.q.shape[1] > 1:
        return width, width_v
    widest = max(width, width_v)
    return widest, widest


def _fit(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """[B,S,H,width] with zeros behind the head dim: ``tensor`` itself where 16-byte loads can read it."""
    *strides, last = tensor.stride()
    aligned = last == 1 and all(stride > 0 and stride % _ALIGNMENT == 0 for stride in strides)
    if tensor.shape[3] == width and aligned and tensor.data_ptr() % (_ALIGNMENT * tensor.element_size()) == 0:
        return tensor
    rows = tensor.new_zeros((*tensor.shape[:3], width))
    rows[..., : tensor.shape[3]] = tensor
    return rows


def _like_rows(result: torch.Tensor, like: torch.Tensor, width: int) -> torch.Tensor:
    """``result`` without its padding, in ``like``'s order of dimensions in memory."""
    trimmed = result[..., :width]
    rows = empty_like_rows(like, width)
    return trimmed if trimmed.stride() == rows.stride() else rows.copy_(trimmed)
