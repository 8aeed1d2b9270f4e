# SPDX-License-Identifier: MIT
"""The registered ops ``turbo_attention::attention`` and its backward; tensors are [B,S,H,D] in both forms.

Where a result has no meaning for a call (dbias, dsink), an empty tensor stands for it.
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.calls import BackwardCall, ForwardCall
from turbo_attention.layout import empty_like_rows
from turbo_attention.pytorch.kernels.attention_impl import run_backward, run_forward

__all__ = ["attention"]

_Optional = torch.Tensor | None

_OPERANDS = (
    "Tensor q, Tensor k, Tensor v, float softmax_scale, int left, int right, float softcap, float dropout_p, "
    "Tensor? bias, Tensor? alibi_slopes, Tensor? sink, Tensor? rng, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k"
)
_library = torch.library.Library("turbo_attention", "FRAGMENT")
_library.define(
    f"attention({_OPERANDS}, bool deterministic) -> (Tensor out, Tensor lse)", tags=torch.Tag.pt2_compliant_tag
)
_library.define(
    f"attention_backward(Tensor out, Tensor lse, Tensor dout, Tensor? dlse, bool deterministic, bool want_dbias, "
    f"{_OPERANDS}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsink)",
    tags=torch.Tag.pt2_compliant_tag,
)


def _attention(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(run_forward(ForwardCall(*arguments[:-1])))  # type: ignore[return-value]


def _attention_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q = q if q.stride(-1) == 1 else q.contiguous()
    lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
    return empty_like_rows(q, v.shape[3]), lse


def _attention_backward(
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    dlse: _Optional,
    deterministic: bool,
    want_dbias: bool,
    *operands: Any,
) -> tuple[torch.Tensor, ...]:
    call = BackwardCall(ForwardCall(*operands), out, lse, dout, dlse, deterministic, want_dbias)
    return tuple(lse.new_empty(0) if gradient is None else gradient for gradient in run_backward(call))


def _attention_backward_fake(
    out: torch.Tensor,
    lse: torch.Tensor,
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


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *operands, ctx.deterministic = inputs
    ctx.set_materialize_grads(False)
    ctx.tensors = [isinstance(operand, torch.Tensor) for operand in operands]
    ctx.others = [None if is_tensor else operand for operand, is_tensor in zip(operands, ctx.tensors, strict=True)]
    saved = [operand for operand, is_tensor in zip(operands, ctx.tensors, strict=True) if is_tensor]
    ctx.save_for_backward(*output, *saved)


def _backward(ctx: Any, dout: _Optional, dlse: _Optional) -> tuple[_Optional, ...]:
    out, lse, *saved = ctx.saved_tensors
    tensors = iter(saved)
    operands = [next(tensors) if is_tensor else other for is_tensor, other in zip(ctx.tensors, ctx.others, strict=True)]
    nothing: tuple[None, ...] = (None,) * (len(operands) + 1)
    if dout is None and dlse is None:
        return nothing
    needs = ctx.needs_input_grad
    if dout is None:
        dout = torch.zeros_like(out)
    dq, dk, dv, dbias, dsink = torch.ops.turbo_attention.attention_backward(
        out, lse, dout, dlse, ctx.deterministic, needs[8], *operands
    )
    gradients: list[_Optional] = list(nothing)
    wanted = {0: dq, 1: dk, 2: dv, 8: dbias, 10: dsink}
    for position, gradient in wanted.items():
        gradients[position] = gradient if needs[position] else None
    return tuple(gradients)


_library.impl("attention", _attention, "CompositeExplicitAutograd")
_library.impl("attention_backward", _attention_backward, "CompositeExplicitAutograd")
torch.library.register_fake("turbo_attention::attention", _attention_fake, lib=_library)
torch.library.register_fake("turbo_attention::attention_backward", _attention_backward_fake, lib=_library)
torch.library.register_autograd("turbo_attention::attention", _backward, setup_context=_setup_context, lib=_library)


def attention(call: ForwardCall, deterministic: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of ``call``, differentiable in q, k, v, bias and sink."""
    out, lse = torch.ops.turbo_attention.attention(*call, deterministic)
    return out, lse
