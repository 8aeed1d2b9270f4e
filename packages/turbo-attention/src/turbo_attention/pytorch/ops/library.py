# SPDX-License-Identifier: MIT
"""The registered op ``turbo_attention::attention``, its backward and its weights; ragged tensors are [1,S,H,D]."""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.calls import (
    AttentionGradients,
    AttentionResult,
    BackwardCall,
    ForwardCall,
    backward_specs,
    forward_specs,
    weights_spec,
)
from turbo_attention.pytorch.kernels import reference
from turbo_attention.pytorch.kernels.attention_impl import run_backward, run_forward
from turbo_attention.pytorch.ops.index_values import check_cu_seqlens
from turbo_core.autocast import without_autocast
from turbo_core.library import Differentiable, OpLibrary, Refused

__all__ = ["attention", "attention_weights", "by_name", "deterministic_if_asked", "library"]

_NAME = "flash_attn_func, flash_attn_varlen_func"
library = OpLibrary("turbo_attention")


def deterministic_if_asked(call: ForwardCall) -> ForwardCall:
    """``call`` as its backward sees it: torch may have been told to be deterministic after the forward."""
    if call.deterministic or not torch.are_deterministic_algorithms_enabled():
        return call
    return call._replace(deterministic=True)


def by_name(gradients: AttentionGradients) -> dict[str, torch.Tensor | None]:
    """The gradients by the fields of a `ForwardCall`."""
    dq, dk, dv, dbias, dsink = gradients
    return {"q": dq, "k": dk, "v": dv, "bias": dbias, "sink": dsink}


def _run(call: ForwardCall) -> AttentionResult:
    check_cu_seqlens("flash_attn_varlen_func", call)
    return run_forward(call)


def _run_backward(call: BackwardCall) -> AttentionGradients:
    return run_backward(call._replace(forward=deterministic_if_asked(call.forward)))


def _run_weights(call: ForwardCall) -> torch.Tensor:
    with without_autocast(call.q.device):
        return reference.attention_probabilities(call)


_attention_backward = library.op(
    "attention_backward", BackwardCall, _run_backward, backward_specs, Refused(_NAME), result=AttentionGradients
)


def _saves(call: ForwardCall, result: AttentionResult, needs: Any) -> tuple[Any, ...]:
    return call, result


def _gradients(saved: Any, grads: AttentionResult, needs: Any) -> dict[str, torch.Tensor | None]:
    call, result = saved
    dout = torch.zeros_like(result.out) if grads.out is None else grads.out
    return by_name(_attention_backward(BackwardCall(call, *result, dout, grads.lse, needs.bias)))


attention = library.op(
    "attention",
    ForwardCall,
    _run,
    forward_specs,
    Differentiable(_gradients, _saves, _NAME, constants=("lse_low",)),
    result=AttentionResult,
)
attention_weights = library.op("attention_weights", ForwardCall, _run_weights, weights_spec)
