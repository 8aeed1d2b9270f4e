# SPDX-License-Identifier: MIT
"""What gemm_fp8 and gemm_fp4 have in common: checks, quantising, and the calls that `explain` shows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from turbo_core import UnsupportedError
from turbo_core.autocast import autocast_dtype
from turbo_core.library import under_transforms
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig
from turbo_gemm.calls import GemmFp8Call
from turbo_gemm.pytorch.ops.gemm import gemm
from turbo_gemm.pytorch.ops.gemm_checks import check_gemm, check_main_grad
from turbo_gemm.pytorch.ops.gemm_fp8_autograd import quantised_product
from turbo_gemm.pytorch.ops.gemm_fp8_inputs import as_pair, dequantized, quantized
from turbo_gemm.pytorch.ops.gemm_fp8_quantize import Divided, Scheme, dgrad_call, forward_call, quantize, wgrad_call
from turbo_gemm.pytorch.ops.main_grad import into_main_grad
from turbo_quant import QuantizedTensor, QuantizedTensorPair

__all__ = ["quantised_calls", "quantised_gemm", "quantised_gemm_of_shards"]

Config = Float8QuantConfig | Float4QuantConfig

_PRESHUFFLE_ALIGNMENT = 16  # rows of a tile of AITER's payload order


def _checked(
    op: str,
    a: Any,
    b: Any,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    config: Config,
    pattern: str | None,
    bias: torch.Tensor | None,
) -> tuple[QuantizedTensorPair, QuantizedTensorPair]:
    a, b = as_pair(op, "a", a), as_pair(op, "b", b)
    check_gemm(a.data, b.data, trans_a, trans_b, out_dtype, bias, op)
    if isinstance(config, Float4QuantConfig) and config.use_preshuffle:
        sizes = [*a.data.shape, *b.data.shape]
        if any(size % _PRESHUFFLE_ALIGNMENT for size in sizes):
            raise UnsupportedError(
                f"{op}: config.use_preshuffle with a of shape {sizes[:2]} and b of shape {sizes[2:]}; multiples of "
                f"{_PRESHUFFLE_ALIGNMENT} are accepted"
            )
    if pattern is not None:
        check_main_grad(b.data, pattern, op)
    return a, b


def _wanted(scheme: Scheme, name: str, need_other: bool) -> tuple[bool, bool]:
    """Along which dimensions a or b is quantised: K for C, and the other one for the other operand's gradient."""
    along_k = scheme.contraction(name)
    return along_k == 0 or need_other, along_k == 1 or need_other


def quantised_gemm(
    op: str,
    a: Any,
    b: Any,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    config: Config,
    pattern: str | None,
    bias: torch.Tensor | None,
    divided: Divided = ((), (), ()),
) -> torch.Tensor:
    """op(a) op(b) + bias after quantising a and b by ``config``, differentiable; the public functions say the rest.

    divided: where a, b and C are shards, see `Scheme`.
    """
    trans_a, trans_b = bool(trans_a), bool(trans_b)
    a, b = _checked(op, a, b, trans_a, trans_b, out_dtype, config, pattern, bias)
    x, weight = a.data, b.data
    cast_to = autocast_dtype(x.device)
    if out_dtype is None:
        out_dtype = cast_to or torch.promote_types(x.dtype, weight.dtype)
    accumulate = into_main_grad(op, weight, pattern)
    y = weight.detach() if accumulate else weight  # its gradient does not pass through a cast
    if cast_to is not None:  # what is quantised already stays
        x, y = (t if isinstance(t, QuantizedTensor) else t.to(cast_to) for t in (x, y))
    if 0 in x.shape or 0 in y.shape:  # nothing to quantise
        if accumulate:  # zeros, which autograd gets either way
            y = weight
            weight.grad_added_to_main_grad = True
        return gemm(dequantized(x), dequantized(y), trans_a, trans_b, out_dtype, bias=bias)
    needed = torch.is_grad_enabled()
    need_a, need_b = (needed and (t.requires_grad or under_transforms()) for t in (x, weight))
    scheme = Scheme.of(config, x.device, trans_a, trans_b, divided)
    if a.data_t is not None:  # both sides of dB are rotated alike
        scheme = scheme._replace(sign_mask=a.data_t.sign_mask)
    quantised_a = quantized(op, "a", QuantizedTensorPair(x, a.data_t), config, scheme, _wanted(scheme, "a", need_b))
    quantised_b = quantized(op, "b", QuantizedTensorPair(y, b.data_t), config, scheme, _wanted(scheme, "b", need_a))
    if not accumulate:
        return quantised_product(op, x, y, bias, quantised_a, quantised_b, scheme, out_dtype, None)
    view = weight.view_as(weight)
    c = quantised_product(op, x, view, bias, quantised_a, quantised_b, scheme, out_dtype, weight)
    # said here, not in the backward, which a compiler traces as a function without side effects on attributes
    weight.grad_added_to_main_grad = True
    return c


def quantised_gemm_of_shards(op: str) -> Callable[..., torch.Tensor]:
    """The public function ``op`` of shards, for `turbo_core.sharding.shardable`."""

    def function(
        a: Any,
        b: Any,
        trans_a: bool,
        trans_b: bool,
        out_dtype: torch.dtype | None,
        config: Config | None,
        fuse_bgrad_accum_pattern: str | None,
        bias: torch.Tensor | None,
        divided: Mapping[str, tuple[str, ...]],
    ) -> torch.Tensor:
        groups = (divided.get("a", ()), divided.get("b", ()), divided["output"])
        config = (Float4QuantConfig() if op == "gemm_fp4" else Float8QuantConfig()) if config is None else config
        return quantised_gemm(op, a, b, trans_a, trans_b, out_dtype, config, fuse_bgrad_accum_pattern, bias, groups)

    return function


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def quantised_calls(
    op: str,
    a: Any,
    b: Any,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    config: Config,
    pattern: str | None,
    bias: torch.Tensor | None,
) -> dict[str, GemmFp8Call]:
    """The three GEMMs of a call and its backward; nothing is computed, the payloads are fake tensors."""
    trans_a, trans_b = bool(trans_a), bool(trans_b)
    pair_a, pair_b = _checked(op, a, b, trans_a, trans_b, out_dtype, config, pattern, bias)
    a, b = pair_a.data, pair_b.data
    main_grad = b.main_grad if pattern is not None else None
    cast_to = autocast_dtype(a.device)
    dtype_a, dtype_b = (cast_to or t.dtype for t in (a, b))
    out_dtype = torch.promote_types(dtype_a, dtype_b) if out_dtype is None else out_dtype
    scheme = Scheme.of(config, a.device, trans_a, trans_b)
    with contextlib.nullcontext() if isinstance(a, FakeTensor) else FakeTensorMode():
        fake_a, fake_b = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in (a, b))
        m, n = a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]
        grad_out = torch.empty((m, n), dtype=out_dtype, device=a.device)
        both = (True, True)
        quantised_a = quantize(fake_a.to(dtype_a), scheme, "a", both)
        quantised_b = quantize(fake_b.to(dtype_b), scheme, "b", both)
        gradient = quantize(grad_out, scheme, "gradient", both)
    wgrad_dtype = dtype_b if main_grad is None else main_grad.dtype
    return {
        "forward": forward_call(quantised_a, quantised_b, scheme, bias, out_dtype),
        "dgrad": dgrad_call(gradient, quantised_b, scheme, dtype_a),
        "wgrad": wgrad_call(gradient, quantised_a, scheme, wgrad_dtype, main_grad),
    }
