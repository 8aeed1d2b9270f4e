# SPDX-License-Identifier: MIT
"""`flash_attn_fp8_func`: attention whose forward multiplies FP8 numbers, one scale for 64 rows of a head.

The gradients are those of the attention of the dequantised q, k, v, with products in the dtype of q: quantisation is
passed straight through.
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.calls import AttentionGradients, ForwardCall
from turbo_attention.fp8_calls import (
    FP8_ROWS,
    Fp8Backward,
    Fp8Payloads,
    Fp8Result,
    fp8_backward_specs,
    fp8_forward_specs,
    fp8_weights_spec,
)
from turbo_attention.pytorch.kernels.fp8_impl import (
    Fp8AttentionDispatcher,
    run_fp8_backward,
    run_fp8_forward,
    run_fp8_weights,
)
from turbo_attention.pytorch.ops.arguments import call_arguments, dense_call
from turbo_attention.pytorch.ops.sharding import fp8_rules
from turbo_core import OpInfo, UnsupportedError
from turbo_core.autocast import without_autocast
from turbo_core.library import Differentiable, OpLibrary, Refused
from turbo_core.low_precision import Float8QuantConfig, Format, ScalingGranularity
from turbo_core.sharding import shardable

__all__ = ["FLASH_ATTN_FP8", "check_config", "flash_attn_fp8_func"]

_OP = "flash_attn_fp8_func"
_library = OpLibrary("turbo_attention")


def _run_weights(call: Fp8Payloads) -> torch.Tensor:
    with without_autocast(call.forward.q.device):
        return run_fp8_weights(call)


_attention_fp8_backward = _library.op(
    "attention_fp8_backward", Fp8Backward, run_fp8_backward, fp8_backward_specs, Refused(_OP), result=AttentionGradients
)


def _saves(call: ForwardCall, result: Fp8Result, needs: Any) -> tuple[Any, ...]:
    return (*result.payloads(call), result.out, result.lse, result.lse_low)


def _gradients(saved: Any, grads: Fp8Result, needs: Any) -> dict[str, torch.Tensor | None]:
    payloads, scales, out, lse, lse_low = saved
    dout = torch.zeros_like(out) if grads.out is None else grads.out
    call = Fp8Backward(payloads, scales, out, lse, lse_low, dout, grads.lse, needs.bias)
    return _attention_fp8_backward(call).by_field()


_attention_fp8 = _library.op(
    "attention_fp8",
    ForwardCall,
    run_fp8_forward,
    fp8_forward_specs,
    Differentiable(_gradients, _saves, _OP, constants=Fp8Result._fields[2:]),
    result=Fp8Result,
)
_attention_fp8_weights = _library.op("attention_fp8_weights", Fp8Payloads, _run_weights, fp8_weights_spec)


def check_config(op: str, config: Float8QuantConfig | None) -> None:
    """``fp8_config`` of ``op``."""
    if config is None:
        return
    blockwise = isinstance(config, Float8QuantConfig) and config.granularity is ScalingGranularity.BLOCKWISE
    if not blockwise or config.block_size != FP8_ROWS or config.format is not Format.E4M3:
        raise UnsupportedError(f"{op}: fp8_config={config!r}; E4M3, BLOCKWISE with block_size={FP8_ROWS} is accepted")


@shardable(fp8_rules)
def flash_attn_fp8_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    bias: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    return_attn_probs: bool = False,
    fp8_config: Float8QuantConfig | None = None,
    *,
    sink: torch.Tensor | None = None,
    softcap: float = 0.0,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """`flash_attn_func` in FP8 (E4M3): q, k and v share a scale per 64 rows of a head, of any sequence length.

    The forward multiplies FP8 numbers; the weights p are FP8 too, times a fixed factor. What is saved for the backward
    is a byte an element; its products are in q's dtype, of the dequantised tensors. A block that holds NaN or an
    infinity is NaN as a whole.

    Args:
        fp8_config: None, or `Float8QuantConfig` with E4M3, BLOCKWISE, block_size 64.
        the others: as for `flash_attn_func`, whose layouts, windows, sinks, bias and dropout all hold.

    Returns:
        as `flash_attn_func`.

    Raises:
        as `flash_attn_func`; the choice of backend is that of precision FP8 in the forward.
    """
    check_config(_OP, fp8_config)
    call = dense_call(
        _OP, q, k, v, dropout_p, softmax_scale, causal, window_size, bias, alibi_slopes, deterministic, sink, softcap
    )
    result = _attention_fp8(call)
    if not (return_lse or return_attn_probs):
        out: torch.Tensor = result.out
        return out
    results = [result.out, result.lse] if return_lse else [result.out]
    if return_attn_probs:
        results.append(_attention_fp8_weights(result.payloads(call)))
    return tuple(results)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(*args: Any, **kwargs: Any) -> dict[str, Any]:
    arguments = call_arguments(flash_attn_fp8_func, *args, **kwargs)
    check_config(_OP, arguments.pop("fp8_config"))
    return {"forward": dense_call(_OP, **arguments)}


def _example(device: torch.device) -> dict[str, Any]:
    one = torch.empty((1, 1, 1, 1), dtype=torch.bfloat16, device=device)
    k = one.expand(2, 4096, 8, 128)
    return _calls(one.expand(2, 4096, 32, 128), k, k, causal=True)


FLASH_ATTN_FP8 = OpInfo("flash_attn_fp8_func", Fp8AttentionDispatcher, _calls, _example)
