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
from turbo_attention.pytorch.ops.attention import call_arguments, dense_call
from turbo_core import OpInfo, UnsupportedError
from turbo_core.low_precision import Float8QuantConfig, Format, ScalingGranularity, fp8_dtype

__all__ = ["FLASH_ATTN_FP8", "flash_attn_fp8_func"]

_Optional = torch.Tensor | None

_OPTIONS = (
    "float softmax_scale, int left, int right, float softcap, float dropout_p, Tensor? bias, Tensor? alibi_slopes, "
    "Tensor? sink, Tensor? rng"
)
_library = torch.library.Library("turbo_attention", "FRAGMENT")
_library.define(
    f"attention_fp8(Tensor q, Tensor k, Tensor v, {_OPTIONS}, bool deterministic) -> (Tensor out, Tensor lse, "
    "Tensor q8, Tensor k8, Tensor v8, Tensor scale_q, Tensor scale_k, Tensor scale_v)",
    tags=torch.Tag.pt2_compliant_tag,
)
_library.define(
    "attention_fp8_backward(Tensor q8, Tensor k8, Tensor v8, Tensor scale_q, Tensor scale_k, Tensor scale_v, "
    f"Tensor out, Tensor lse, Tensor dout, Tensor? dlse, bool deterministic, bool want_dbias, {_OPTIONS}) "
    "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsink)",
    tags=torch.Tag.pt2_compliant_tag,
)


def _payload_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: tuple[Any, ...]) -> ForwardCall:
    return ForwardCall(q, k, v, *options, None, None, q.shape[1], k.shape[1])


def _attention_fp8(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, ...]:
    options = arguments[:-1]
    payloads, scales = zip(*(quantize(tensor) for tensor in (q, k, v)), strict=True)
    if q.numel() and k.numel() and v.numel():
        result = run_fp8_forward(_payload_call(*payloads, options), Fp8Scales(*scales, q.dtype))
    else:
        result = run_forward(_payload_call(q, k, v, options))
    return *result, *payloads, *scales


def _attention_fp8_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
    rows = [tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v)]
    dtype = fp8_dtype(Format.E4M3, q.device)
    return (
        empty_like_rows(rows[0], v.shape[3]),
        q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32),
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
    dout: torch.Tensor,
    dlse: _Optional,
    deterministic: bool,
    want_dbias: bool,
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    payloads = ((q8, scale_q), (k8, scale_k), (v8, scale_v))
    q, k, v = (dequantize_rows(payload, scale_inv, out.dtype) for payload, scale_inv in payloads)
    call = BackwardCall(_payload_call(q, k, v, options), out, lse, dout, dlse, deterministic, want_dbias)
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
    dout: torch.Tensor,
    dlse: _Optional,
    deterministic: bool,
    want_dbias: bool,
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    bias, sink = options[5], options[7]
    return (
        *(empty_like_rows(tensor, tensor.shape[3], out.dtype) for tensor in (q8, k8, v8)),
        bias.new_empty(bias.shape) if want_dbias and bias is not None else lse.new_empty(0),
        lse.new_empty(0) if sink is None else sink.new_empty(sink.shape),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    bias, alibi_slopes, sink, rng, ctx.deterministic = inputs[8:]
    ctx.numbers = inputs[3:8]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(*output, bias, alibi_slopes, sink, rng)


def _backward(ctx: Any, dout: _Optional, dlse: _Optional, *_: Any) -> tuple[_Optional, ...]:
    out, lse, *payloads_and_scales = ctx.saved_tensors[:8]
    gradients: list[_Optional] = [None] * 13
    if dout is None and dlse is None:
        return tuple(gradients)
    needs = ctx.needs_input_grad
    found = torch.ops.turbo_attention.attention_fp8_backward(
        *payloads_and_scales,
        out,
        lse,
        torch.zeros_like(out) if dout is None else dout,
        dlse,
        ctx.deterministic,
        needs[8],
        *ctx.numbers,
        *ctx.saved_tensors[8:],
    )
    for position, gradient in zip((0, 1, 2, 8, 10), found, strict=True):
        gradients[position] = gradient if needs[position] else None
    return tuple(gradients)


_library.impl("attention_fp8", _attention_fp8, "CompositeExplicitAutograd")
_library.impl("attention_fp8_backward", _attention_fp8_backward, "CompositeExplicitAutograd")
torch.library.register_fake("turbo_attention::attention_fp8", _attention_fp8_fake, lib=_library)
torch.library.register_fake("turbo_attention::attention_fp8_backward", _attention_fp8_backward_fake, lib=_library)
torch.library.register_autograd("turbo_attention::attention_fp8", _backward, setup_context=_setup_context, lib=_library)


def _check_config(config: Float8QuantConfig | None) -> None:
    if config is None:
        return
    blockwise = isinstance(config, Float8QuantConfig) and config.granularity is ScalingGranularity.BLOCKWISE
    if not blockwise or config.block_size != FP8_ROWS or config.format is not Format.E4M3:
        raise UnsupportedError(
            f"flash_attn_fp8_func: fp8_config={config!r}; E4M3, BLOCKWISE with block_size={FP8_ROWS} is accepted"
        )


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
    _check_config(fp8_config)
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
    out, lse, *payloads_and_scales = torch.ops.turbo_attention.attention_fp8(
        *call[:12], deterministic or torch.are_deterministic_algorithms_enabled()
    )
    results = [out]
    if return_lse:
        results.append(lse)
    if return_attn_probs:
        with torch.no_grad():
            pairs = zip(payloads_and_scales[:2], payloads_and_scales[3:5], strict=True)
            q, k = (dequantize_rows(payload, scale_inv, torch.float32) for payload, scale_inv in pairs)
            results.append(attention_probabilities(call._replace(q=q, k=k), lse))
    return results[0] if len(results) == 1 else tuple(results)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(*args: Any, **kwargs: Any) -> dict[str, Any]:
    arguments = call_arguments(flash_attn_fp8_func, *args, **kwargs)
    _check_config(arguments.pop("fp8_config"))
    call = dense_call("flash_attn_fp8_func", **arguments)
    scale = call.q.new_empty((1, 1, 1), dtype=torch.float32)  # only metadata are read
    return {"forward": Fp8Call(call, Fp8Scales(scale, scale, scale, call.q.dtype))}


def _example(device: torch.device) -> dict[str, Any]:
    one = torch.empty((1, 1, 1, 1), dtype=torch.bfloat16, device=device)
    k = one.expand(2, 4096, 8, 128)
    return _calls(one.expand(2, 4096, 32, 128), k, k, causal=True)


FLASH_ATTN_FP8 = OpInfo("flash_attn_fp8_func", Fp8AttentionDispatcher, _calls, _example)
