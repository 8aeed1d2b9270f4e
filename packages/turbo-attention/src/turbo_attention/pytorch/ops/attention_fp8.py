# SPDX-License-Identifier: MIT
"""`flash_attn_fp8_func`: attention whose forward multiplies FP8 numbers, one scale for 64 rows of a head.

The gradients are those of the attention of the dequantised q, k, v, with products in the dtype of q: quantisation is
passed straight through.
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.calls import FP8_ROWS, BackwardCall, ForwardCall, Fp8Call, Fp8Scales
from turbo_attention.layout import empty_like_rows
from turbo_attention.pytorch.kernels.attention_impl import run_backward, run_forward
from turbo_attention.pytorch.kernels.fp8_impl import Fp8AttentionDispatcher, quantize, run_fp8_forward
from turbo_attention.pytorch.kernels.fp8_reference import dequantize_rows
from turbo_attention.pytorch.kernels.reference import attention_probabilities
from turbo_attention.pytorch.ops.arguments import call_arguments, dense_call
from turbo_attention.pytorch.ops.library import declare, in_order, settle
from turbo_attention.pytorch.ops.sharding import fp8_rules
from turbo_core import OpInfo, UnsupportedError
from turbo_core.autocast import without_autocast
from turbo_core.library import Gradient, Refused, register_op
from turbo_core.low_precision import Float8QuantConfig, Format, ScalingGranularity, fp8_dtype
from turbo_core.sharding import shardable

__all__ = ["FLASH_ATTN_FP8", "check_config", "flash_attn_fp8_func"]

_Optional = torch.Tensor | None

_OPERANDS = ("q", "k", "v")
# what a dense call has beside them, and what its shapes say
_OPTIONS = tuple(
    field
    for field in ForwardCall._fields
    if field not in (*_OPERANDS, "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
)
_ARGUMENTS = (*_OPERANDS, *_OPTIONS, "deterministic")
_library = torch.library.Library("turbo_attention", "FRAGMENT")


def _payload_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: tuple[Any, ...]) -> ForwardCall:
    given: dict[str, Any] = dict(zip(_OPTIONS, options, strict=True))
    given.update(cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=q.shape[1], max_seqlen_k=k.shape[1])
    return settle(ForwardCall(q=q, k=k, v=v, **given))


def _attention_fp8(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, ...]:
    options = arguments[:-1]
    with without_autocast(q.device):
        payloads, scales = zip(*(quantize(tensor) for tensor in (q, k, v)), strict=True)
        if q.numel() and k.numel() and v.numel():
            result = run_fp8_forward(_payload_call(*payloads, options), Fp8Scales(*scales, q.dtype))
        else:
            result = run_forward(_payload_call(q, k, v, options))
    return *result, *payloads, *scales


def _attention_fp8_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
    rows = [tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v)]
    # tensors on meta, and fake ones of a device that is not here, stand for this machine
    here = q.device.type == "cpu" or (q.device.type == "cuda" and torch.cuda.is_available())
    dtype = fp8_dtype(Format.E4M3, q.device if here else None)
    return (
        empty_like_rows(rows[0], v.shape[3]),
        *(q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32) for _ in range(2)),
        *(empty_like_rows(tensor, tensor.shape[3], dtype) for tensor in rows),
        *(
            tensor.new_empty((tensor.shape[0], tensor.shape[2], -(-tensor.shape[1] // FP8_ROWS)), dtype=torch.float32)
            for tensor in rows
        ),
    )


def _attention_fp8_backward(
    q8: torch.Tensor,
    k8: torch.Tensor,
    v8: torch.Tensor,
    scale_q: torch.Tensor,
    scale_k: torch.Tensor,
    scale_v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    lse_low: torch.Tensor,
    dout: torch.Tensor,
    dlse: _Optional,
    deterministic: bool,
    want_dbias: bool,
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    payloads = ((q8, scale_q), (k8, scale_k), (v8, scale_v))
    with without_autocast(out.device):
        q, k, v = (dequantize_rows(payload, scale_inv, out.dtype) for payload, scale_inv in payloads)
        forward = _payload_call(q, k, v, options)
        call = BackwardCall(forward, out, lse, lse_low, dout, dlse, deterministic, want_dbias)
        return tuple(lse.new_empty(0) if gradient is None else gradient for gradient in run_backward(call))


def _attention_fp8_backward_fake(
    q8: torch.Tensor,
    k8: torch.Tensor,
    v8: torch.Tensor,
    scale_q: torch.Tensor,
    scale_k: torch.Tensor,
    scale_v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    lse_low: torch.Tensor,
    dout: torch.Tensor,
    dlse: _Optional,
    deterministic: bool,
    want_dbias: bool,
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    bias, sink = (options[_OPTIONS.index(name)] for name in ("bias", "sink"))
    return (
        *(empty_like_rows(tensor, tensor.shape[3], out.dtype) for tensor in (q8, k8, v8)),
        bias.new_empty(bias.shape) if want_dbias and bias is not None else lse.new_empty(0),
        lse.new_empty(0) if sink is None else sink.new_empty(sink.shape),
    )


def _attention_fp8_probabilities(
    q8: torch.Tensor, k8: torch.Tensor, scale_q: torch.Tensor, scale_k: torch.Tensor, *options: Any
) -> torch.Tensor:
    with without_autocast(q8.device):
        q, k = (dequantize_rows(rows, scale, torch.float32) for rows, scale in ((q8, scale_q), (k8, scale_k)))
        return attention_probabilities(_payload_call(q, k, k, options))  # of v they know nothing


def _attention_fp8_probabilities_fake(q8: torch.Tensor, k8: torch.Tensor, *_: Any) -> torch.Tensor:
    return q8.new_empty((q8.shape[0], q8.shape[2], q8.shape[1], k8.shape[1]), dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    options, ctx.deterministic = inputs[len(_OPERANDS) : -1], inputs[-1]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:])
    ctx.others = [None if isinstance(option, torch.Tensor) else option for option in options]
    ctx.save_for_backward(*output, *(option if isinstance(option, torch.Tensor) else None for option in options))


def _backward(ctx: Any, dout: _Optional, dlse: _Optional, *_: Any) -> tuple[_Optional, ...]:
    out, lse, lse_low, q8, k8, v8, scale_q, scale_k, scale_v, *tensors = ctx.saved_tensors
    if dout is None and dlse is None:
        return (None,) * len(_ARGUMENTS)
    needs = ctx.needs_input_grad
    found = attention_fp8_backward_op(
        q8,
        k8,
        v8,
        scale_q,
        scale_k,
        scale_v,
        out,
        lse,
        lse_low,
        torch.zeros_like(out) if dout is None else dout,
        dlse,
        ctx.deterministic,
        needs[_ARGUMENTS.index("bias")],
        *(other if tensor is None else tensor for tensor, other in zip(tensors, ctx.others, strict=True)),
    )
    return in_order(found, _ARGUMENTS, needs)


attention_fp8_op = register_op(
    _library,
    f"attention_fp8({declare(_OPERANDS + _OPTIONS)}, bool deterministic) -> (Tensor out, Tensor lse, "
    "Tensor lse_low, Tensor q8, Tensor k8, Tensor v8, Tensor scale_q, Tensor scale_k, Tensor scale_v)",
    _attention_fp8,
    _attention_fp8_fake,
    Gradient(_backward, _setup_context, "flash_attn_fp8_func"),
)
attention_fp8_backward_op = register_op(
    _library,
    "attention_fp8_backward(Tensor q8, Tensor k8, Tensor v8, Tensor scale_q, Tensor scale_k, Tensor scale_v, "
    "Tensor out, Tensor lse, Tensor lse_low, Tensor dout, Tensor? dlse, bool deterministic, bool want_dbias, "
    f"{declare(_OPTIONS)}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsink)",
    _attention_fp8_backward,
    _attention_fp8_backward_fake,
    Refused("flash_attn_fp8_func"),
)
attention_fp8_probabilities_op = register_op(
    _library,
    f"attention_fp8_probabilities(Tensor q8, Tensor k8, Tensor scale_q, Tensor scale_k, {declare(_OPTIONS)}) -> Tensor",
    _attention_fp8_probabilities,
    _attention_fp8_probabilities_fake,
)


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
    check_config("flash_attn_fp8_func", fp8_config)
    call = dense_call(
        "flash_attn_fp8_func",
        q,
        k,
        v,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        bias=bias,
        alibi_slopes=alibi_slopes,
        sink=sink,
        softcap=softcap,
    )
    out, lse, _, *payloads_and_scales = attention_fp8_op(
        *(getattr(call, name) for name in _ARGUMENTS[:-1]),
        deterministic or torch.are_deterministic_algorithms_enabled(),
    )
    results = [out]
    if return_lse:
        results.append(lse)
    if return_attn_probs:
        q8, k8, _, scale_q, scale_k, _ = payloads_and_scales
        options = (getattr(call, name) for name in _OPTIONS)
        with torch.no_grad():
            results.append(attention_fp8_probabilities_op(q8, k8, scale_q, scale_k, *options))
    return results[0] if len(results) == 1 else tuple(results)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(*args: Any, **kwargs: Any) -> dict[str, Any]:
    arguments = call_arguments(flash_attn_fp8_func, *args, **kwargs)
    check_config("flash_attn_fp8_func", arguments.pop("fp8_config"))
    call = dense_call("flash_attn_fp8_func", **arguments)
    dtype = fp8_dtype(Format.E4M3, call.q.device)
    q, k, v = (empty_like_rows(tensor, tensor.shape[3], dtype) for tensor in (call.q, call.k, call.v))
    scale = call.q.new_empty((1, 1, 1), dtype=torch.float32)  # only metadata are read, of the payloads too
    return {"forward": Fp8Call(call._replace(q=q, k=k, v=v), Fp8Scales(scale, scale, scale, call.q.dtype))}


def _example(device: torch.device) -> dict[str, Any]:
    one = torch.empty((1, 1, 1, 1), dtype=torch.bfloat16, device=device)
    k = one.expand(2, 4096, 8, 128)
    return _calls(one.expand(2, 4096, 32, 128), k, k, causal=True)


FLASH_ATTN_FP8 = OpInfo("flash_attn_fp8_func", Fp8AttentionDispatcher, _calls, _example)
