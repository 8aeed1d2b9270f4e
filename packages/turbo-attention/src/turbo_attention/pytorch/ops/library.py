# SPDX-License-Identifier: MIT
"""The registered ops ``turbo_attention::attention``, its backward and its weights; tensors are [B,S,H,D] in both forms.

Where a result has no meaning for a call (dbias, dsink), an empty tensor stands for it. lse_low is for the
backward alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from turbo_attention.calls import AttentionGradients, BackwardCall, ForwardCall
from turbo_attention.layout import empty_like_rows
from turbo_attention.pytorch.kernels import reference
from turbo_attention.pytorch.kernels.attention_impl import run_backward, run_forward
from turbo_attention.pytorch.ops.index_values import check_cu_seqlens
from turbo_core.autocast import without_autocast
from turbo_core.library import Gradient, Refused, register_op

__all__ = ["attention", "attention_probabilities", "declare", "in_order", "settle"]

_Optional = torch.Tensor | None

# Numbers are Scalars and SymInts: those of a compiled function may be symbols, which float and int would not take.
_TYPES = {
    "q": "Tensor",
    "k": "Tensor",
    "v": "Tensor",
    "softmax_scale": "Scalar",
    "left": "SymInt",
    "right": "SymInt",
    "softcap": "Scalar",
    "dropout_p": "Scalar",
    "bias": "Tensor?",
    "alibi_slopes": "Tensor?",
    "sink": "Tensor?",
    "rng": "Tensor?",
    "cu_seqlens_q": "Tensor?",
    "cu_seqlens_k": "Tensor?",
    "max_seqlen_q": "SymInt",
    "max_seqlen_k": "SymInt",
}
_NUMBERS = [field for field in ForwardCall._fields if _TYPES[field] == "Scalar"]
_ARGUMENTS = (*ForwardCall._fields, "deterministic")
_NAME = "flash_attn_func, flash_attn_varlen_func"


def declare(fields: Iterable[str]) -> str:
    """Those fields of a ForwardCall as the arguments of a schema."""
    return ", ".join(f"{_TYPES[field]} {field}" for field in fields)


def settle(call: ForwardCall) -> ForwardCall:
    """``call`` with its numbers as floats: a Scalar may come as an integer."""
    numbers: dict[str, Any] = {field: float(getattr(call, field)) for field in _NUMBERS}
    return call._replace(**numbers)


def in_order(found: Iterable[torch.Tensor], arguments: Iterable[str], needs: Iterable[bool]) -> tuple[_Optional, ...]:
    """What the backward op ``found`` (AttentionGradients), one for each of the op's ``arguments`` that needs one."""
    names = (field.removeprefix("d") for field in AttentionGradients._fields)
    gradients = dict(zip(names, found, strict=True))
    return tuple(gradients[name] if need else None for name, need in zip(arguments, needs, strict=True))


_OPERANDS = declare(ForwardCall._fields)
_library = torch.library.Library("turbo_attention", "FRAGMENT")


def _attention(*arguments: Any) -> tuple[torch.Tensor, ...]:
    call = settle(ForwardCall(*arguments[:-1]))
    check_cu_seqlens("flash_attn_varlen_func", call)
    with without_autocast(call.q.device):
        return tuple(run_forward(call))


def _attention_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
    q = q if q.stride(-1) == 1 else q.contiguous()
    lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
    return empty_like_rows(q, v.shape[3]), lse, torch.empty_like(lse)


def _attention_backward(
    out: torch.Tensor,
    lse: torch.Tensor,
    lse_low: torch.Tensor,
    dout: torch.Tensor,
    dlse: _Optional,
    deterministic: bool,
    want_dbias: bool,
    *operands: Any,
) -> tuple[torch.Tensor, ...]:
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    call = BackwardCall(settle(ForwardCall(*operands)), out, lse, lse_low, dout, dlse, deterministic, want_dbias)
    with without_autocast(out.device):
        return tuple(lse.new_empty(0) if gradient is None else gradient for gradient in run_backward(call))


def _attention_backward_fake(
    out: torch.Tensor,
    lse: torch.Tensor,
    lse_low: torch.Tensor,
    dout: torch.Tensor,
    dlse: _Optional,
    deterministic: bool,
    want_dbias: bool,
    *operands: Any,
) -> tuple[torch.Tensor, ...]:
    forward = ForwardCall(*operands)
    rows = [tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in operands[:3]]
    bias, sink = forward.bias, forward.sink
    return (
        *(empty_like_rows(tensor, tensor.shape[3]) for tensor in rows),
        bias.new_empty(bias.shape) if want_dbias and bias is not None else lse.new_empty(0),
        lse.new_empty(0) if sink is None else sink.new_empty(sink.shape),
    )


def _attention_probabilities(*operands: Any) -> torch.Tensor:
    call = settle(ForwardCall(*operands))
    with without_autocast(call.q.device):
        return reference.attention_probabilities(call)


def _attention_probabilities_fake(*operands: Any) -> torch.Tensor:
    call = ForwardCall(*operands)
    shape = (call.sequences, call.q.shape[2], call.max_seqlen_q, call.max_seqlen_k)
    return call.q.new_empty(shape, dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *operands, ctx.deterministic = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.tensors = [isinstance(operand, torch.Tensor) for operand in operands]
    ctx.others = [None if is_tensor else operand for operand, is_tensor in zip(operands, ctx.tensors, strict=True)]
    saved = [operand for operand, is_tensor in zip(operands, ctx.tensors, strict=True) if is_tensor]
    ctx.save_for_backward(*output, *saved)


def _backward(ctx: Any, dout: _Optional, dlse: _Optional, _: _Optional) -> tuple[_Optional, ...]:
    out, lse, lse_low, *saved = ctx.saved_tensors
    tensors = iter(saved)
    operands = [next(tensors) if is_tensor else other for is_tensor, other in zip(ctx.tensors, ctx.others, strict=True)]
    if dout is None and dlse is None:
        return (None,) * len(_ARGUMENTS)
    needs = ctx.needs_input_grad
    if dout is None:
        dout = torch.zeros_like(out)
    found = attention_backward_op(
        out, lse, lse_low, dout, dlse, ctx.deterministic, needs[_ARGUMENTS.index("bias")], *operands
    )
    return in_order(found, _ARGUMENTS, needs)


attention_op = register_op(
    _library,
    f"attention({_OPERANDS}, bool deterministic) -> (Tensor out, Tensor lse, Tensor lse_low)",
    _attention,
    _attention_fake,
    Gradient(_backward, _setup_context, _NAME),
)
attention_backward_op = register_op(
    _library,
    "attention_backward(Tensor out, Tensor lse, Tensor lse_low, Tensor dout, Tensor? dlse, bool deterministic, "
    f"bool want_dbias, {_OPERANDS}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsink)",
    _attention_backward,
    _attention_backward_fake,
    Refused(_NAME),
)
attention_probabilities_op = register_op(
    _library,
    f"attention_probabilities({_OPERANDS}) -> Tensor",
    _attention_probabilities,
    _attention_probabilities_fake,
)


def attention(call: ForwardCall, deterministic: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of ``call``, differentiable in q, k, v, bias and sink."""
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    out, lse, _ = attention_op(*call, deterministic)
    return out, lse


def attention_probabilities(call: ForwardCall) -> torch.Tensor:
    """The weights of ``call`` [sequences,Hq,max_seqlen_q,max_seqlen_k], float32, without gradient."""
    weights: torch.Tensor = attention_probabilities_op(*call)
    return weights
