# SPDX-License-Identifier: MIT
"""What the attention functions accept. Every refusal names the argument, what it was and what is accepted."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from turbo_core import UnsupportedError
from turbo_core.autocast import autocast_dtype

__all__ = [
    "ACCEPTED",
    "DTYPES",
    "as_count",
    "as_number",
    "cast_operands",
    "check_alibi_slopes",
    "check_bias",
    "check_dense",
    "check_ragged",
    "check_sink",
    "ensure",
    "refuse",
    "window_bounds",
]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ACCEPTED = ", ".join(map(str, DTYPES))


def _what(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    gradient = ", that requires grad" if value.requires_grad and value.dim() == 0 else ""
    return f"a tensor of shape {list(value.shape)}, {value.dtype}, on {value.device}{gradient}"


def refuse(op: str, name: str, value: Any, accepted: str) -> NoReturn:
    """Raise: the argument ``name`` of ``op`` was ``value``."""
    raise UnsupportedError(f"{op}: {name} is {_what(value)}; {accepted}")


def ensure(condition: Any, op: str, name: str, value: Any, accepted: str) -> None:
    """Refuse ``value`` unless ``condition`` holds; what torch.compile cannot know is checked at run time."""
    if condition is True:
        return
    if torch.compiler.is_compiling():
        torch._check(condition)  # torch 2.11 takes no message made of variables
    elif not condition:
        refuse(op, name, value, accepted)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _item(op: str, name: str, value: Any, accepted: str) -> Any:
    """The number in a tensor, where it can be read without waiting for a device or cutting a gradient."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() != 1 or value.device.type != "cpu" or (value.requires_grad and torch.is_grad_enabled()):
        refuse(op, name, value, f"{accepted}; a tensor has one element, on the CPU, without gradient")
    return value.item()


def as_number(op: str, name: str, value: Any, accepted: str) -> float:
    """``value`` as `float` takes it: a number of Python or numpy, a CPU tensor of one element. Symbols stay symbols."""
    if type(value) is float:
        return value
    number = _item(op, name, value, accepted)
    if isinstance(number, (bool, str)):
        refuse(op, name, value, accepted)
    if not isinstance(number, (int, float, torch.SymInt, torch.SymFloat)):
        try:
            number = float(number)
        except (TypeError, ValueError):
            refuse(op, name, value, accepted)
    result: float = torch.sym_float(number)
    return result


def as_count(op: str, name: str, value: Any, accepted: str) -> int:
    """Likewise as `operator.index` takes it: an integer."""
    if type(value) is int:
        return value
    number = _item(op, name, value, accepted)
    if isinstance(number, bool):
        refuse(op, name, value, accepted)
    if not isinstance(number, (int, torch.SymInt)):
        try:
            number = operator.index(number)
        except TypeError:
            refuse(op, name, value, accepted)
    return number


# --- q, k, v ----------------------------------------------------------------------------------------------------------


def cast_operands(op: str, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The tensors in autocast's dtype, where it is on, as torch's own attention casts them; else they share one."""
    for name, tensor in zip(names, tensors):
        if tensor.dtype not in DTYPES:
            refuse(op, name, tensor, f"one of {ACCEPTED} is accepted")
    dtype = autocast_dtype(tensors[0].device)
    if dtype is not None:
        return [tensor.to(dtype) for tensor in tensors]
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype != dtype:
            given = ", ".join(f"{name} is {tensor.dtype}" for name, tensor in zip(names, tensors))
            accepted = f"one dtype for all is accepted, or any of {ACCEPTED} under torch.autocast"
            raise UnsupportedError(f"{op}: {given}; {accepted}")
    return tensors


def _check_qkv(op: str, q: Any, k: Any, v: Any, rank: int, shapes: str) -> Sequence[torch.Tensor]:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != rank:
            refuse(op, name, tensor, f"{shapes} is accepted")
    device = q.device
    for name, tensor in (("k", k), ("v", v)):
        if tensor.device != device:
            refuse(op, name, tensor, f"the device of q, {device}, is needed")
    of_q, of_k, of_v = q.shape, k.shape, v.shape
    if rank == 4 and of_q[0] != of_k[0]:
        refuse(op, "k", k, f"q has batch {of_q[0]}; it must be equal")
    heads, heads_k = of_q[-2], of_k[-2]
    if of_v[-2] != heads_k or of_v[-3] != of_k[-3] or of_v[0] != of_k[0]:
        refuse(op, "v", v, f"all but the last size must be those of k, {list(of_k)}")
    if of_k[-1] != of_q[-1] or of_q[-1] == 0 or of_v[-1] == 0:
        refuse(op, "k", k, f"q has head dim {of_q[-1]}; it must be equal, and the head dims of k and v positive")
    if (heads_k == 0 and heads > 0) or (heads_k > 0 and heads % heads_k):
        refuse(op, "k", k, f"q has {heads} heads; they must be a multiple of those of k and v")
    return cast_operands(op, "qkv", (q, k, v))


def check_dense(op: str, q: Any, k: Any, v: Any) -> Sequence[torch.Tensor]:
    """q [B,Sq,Hq,D], k [B,Sk,Hkv,D], v [B,Sk,Hkv,Dv], in the dtype to compute in."""
    return _check_qkv(op, q, k, v, 4, "[batch, seqlen, heads, head_dim]")


def check_ragged(op: str, q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Sequence[torch.Tensor]:
    """q [total_q,Hq,D], k [total_k,Hkv,D], v [total_k,Hkv,Dv], in the dtype to compute in; cu_seqlens int32 [B+1].

    The values of cu_seqlens are not read.
    """
    tensors = _check_qkv(op, q, k, v, 3, "[total, heads, head_dim]")
    for name, cu in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        good = isinstance(cu, torch.Tensor) and cu.dim() == 1 and cu.shape[0] > 0 and cu.dtype == torch.int32
        if not good or cu.device != q.device or not cu.is_contiguous():
            refuse(op, name, cu, f"a contiguous int32 tensor [sequences + 1] on {q.device} is accepted")
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        refuse(op, "cu_seqlens_k", cu_seqlens_k, f"cu_seqlens_q has shape {list(cu_seqlens_q.shape)}; be it the same")
    return tensors


# --- what joins the scores --------------------------------------------------------------------------------------------


def check_alibi_slopes(op: str, alibi_slopes: Any, q: torch.Tensor, sequences: int) -> None:
    """alibi_slopes [Hq] or [sequences,Hq]."""
    heads = q.shape[-2]
    shapes = ((heads,), (sequences, heads))
    good = isinstance(alibi_slopes, torch.Tensor) and tuple(alibi_slopes.shape) in shapes
    if not good or alibi_slopes.device != q.device or not alibi_slopes.dtype.is_floating_point:
        refuse(op, "alibi_slopes", alibi_slopes, f"float [{heads}] or [{sequences}, {heads}] is accepted")


def check_sink(op: str, sink: Any, q: torch.Tensor, name: str = "sink") -> None:
    """sink [Hq]."""
    heads = q.shape[-2]
    good = isinstance(sink, torch.Tensor) and tuple(sink.shape) == (heads,) and sink.dtype in DTYPES
    if not good or sink.device != q.device:
        refuse(op, name, sink, f"[{heads}] in one of {ACCEPTED} on {q.device} is accepted")


def check_bias(op: str, bias: Any, q: torch.Tensor, k: torch.Tensor) -> None:
    """bias broadcasts to [B,Hq,Sq,Sk]."""
    full = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if not isinstance(bias, torch.Tensor) or bias.dtype not in DTYPES or bias.device != q.device or bias.dim() > 4:
        refuse(op, "bias", bias, f"a tensor that broadcasts to {list(full)} in one of {ACCEPTED} is accepted")
    padded = (1,) * (4 - bias.dim()) + tuple(bias.shape)
    if any(size not in (1, wanted) for size, wanted in zip(padded, full, strict=True)):
        refuse(op, "bias", bias, f"a shape that broadcasts to {list(full)} is accepted")


def window_bounds(op: str, window_size: Any, causal: bool) -> tuple[int, int]:
    """Left and right bound, -1 for none; causal is a right bound of 0."""
    accepted = "(left, right) with -1 for unbounded is accepted"
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        refuse(op, "window_size", window_size, accepted)
    left, right = (as_count(op, "window_size", bound, accepted) for bound in window_size)
    ensure(left >= -1, op, "window_size", window_size, accepted)
    ensure(right >= -1, op, "window_size", window_size, accepted)
    return left, 0 if causal else right
