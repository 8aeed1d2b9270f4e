# SPDX-License-Identifier: MIT
"""What gemm_fp8 and gemm_fp4 have in common: checks, taking operands apart, and the calls that `explain` shows."""

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
from turbo_gemm.pytorch.kernels.quant_gemm_call import QuantGemmCall
from turbo_gemm.pytorch.ops.gemm import gemm
from turbo_gemm.pytorch.ops.gemm_checks import check_gemm, check_main_grad
from turbo_gemm.pytorch.ops.main_grad import into_main_grad
from turbo_gemm.pytorch.ops.quant_autograd import quantised_product
from turbo_gemm.pytorch.ops.quant_inputs import Input, as_input, copies_of
from turbo_gemm.pytorch.ops.quant_library import product_call
from turbo_gemm.pytorch.ops.quant_operands import (
    Divided,
    Scheme,
    dgrad_operands,
    forward_operands,
    quantize,
    wgrad_operands,
)
from turbo_quant import QuantizedTensor

__all__ = ["quant_gemm", "quant_gemm_calls", "quant_gemm_of_pieces"]

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
) -> tuple[Input, Input]:
    a, b = as_input(op, "a", a), as_input(op, "b", b)
    check_gemm(a.source, b.source, trans_a, trans_b, out_dtype, bias, op)
    if isinstance(config, Float4QuantConfig) and config.use_preshuffle:
        sizes = [*a.source.shape, *b.source.shape]
        if any(size % _PRESHUFFLE_ALIGNMENT for size in sizes):
            raise UnsupportedError(
                f"{op}: config.use_preshuffle with a of shape {sizes[:2]} and b of shape {sizes[2:]}; multiples of "
                f"{_PRESHUFFLE_ALIGNMENT} are accepted"
            )
    if pattern is not None:
        check_main_grad(b.source, pattern, op)
    return a, b


def _cast(x: Input) -> Input:
    """The operand in autocast's dtype where autocast is on; one that is quantised already stays."""
    dtype = autocast_dtype(x.source.device)
    if dtype is None or isinstance(x.source, QuantizedTensor):
        return x
    return x._replace(source=x.source.to(dtype))


def _default_dtype(a: torch.Tensor, b: torch.Tensor) -> torch.dtype:
    return autocast_dtype(a.device) or torch.promote_types(a.dtype, b.dtype)


def _wanted(scheme: Scheme, name: str, need_other: bool) -> tuple[bool, bool]:
    """Along which dimensions a or b is quantised: K for C, and the other one for the other operand's gradient."""
    along_k = scheme.contraction(name)
    return along_k == 0 or need_other, along_k == 1 or need_other


def quant_gemm(
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

    divided: where a, b and C are pieces, see `Scheme`.
    """
    trans_a, trans_b = bool(trans_a), bool(trans_b)
    a_input, b_input = _checked(op, a, b, trans_a, trans_b, out_dtype, config, pattern, bias)
    weight = b_input.source
    accumulate = into_main_grad(op, weight, pattern)
    if accumulate:  # its gradient does not pass through a cast
        b_input = b_input._replace(source=weight.detach())
    a_input, b_input = _cast(a_input), _cast(b_input)
    a, b = a_input.source, b_input.source
    out_dtype = _default_dtype(a, weight) if out_dtype is None else out_dtype
    if 0 in a.shape or 0 in b.shape:  # nothing to quantise
        if accumulate:  # zeros, which autograd gets either way
            b_input = b_input._replace(source=weight)
            weight.grad_added_to_main_grad = True  # type: ignore[attr-defined]
        return gemm(a_input.plain(), b_input.plain(), trans_a, trans_b, out_dtype, bias=bias)
    need_a, need_b = (torch.is_grad_enabled() and (t.requires_grad or under_transforms()) for t in (a, weight))
    scheme = Scheme.of(config, a.device, trans_a, trans_b, divided)
    if a_input.backward is not None:  # both sides of dB are rotated alike
        scheme = scheme._replace(sign_mask=a_input.backward.sign_mask)
    a_copies = copies_of(op, "a", a_input, config, scheme, _wanted(scheme, "a", need_b))
    b_copies = copies_of(op, "b", b_input, config, scheme, _wanted(scheme, "b", need_a))
    if not accumulate:
        return quantised_product(op, a, b, bias, a_copies, b_copies, scheme, out_dtype, None)
    view = weight.view_as(weight)
    c = quantised_product(op, a, view, bias, a_copies, b_copies, scheme, out_dtype, weight)
    # said here, not in the backward, which a compiler traces as a function without side effects on attributes
    weight.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    return c


def quant_gemm_of_pieces(op: str) -> Callable[..., torch.Tensor]:
    """The public function ``op`` of pieces, for `turbo_core.sharding.shardable`."""

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
        return quant_gemm(op, a, b, trans_a, trans_b, out_dtype, config, fuse_bgrad_accum_pattern, bias, groups)

    return function


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def quant_gemm_calls(
    op: str,
    a: Any,
    b: Any,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    config: Config,
    pattern: str | None,
    bias: torch.Tensor | None,
) -> dict[str, QuantGemmCall]:
    """The three GEMMs of a call and its backward; nothing is computed, the payloads are fake tensors."""
    trans_a, trans_b = bool(trans_a), bool(trans_b)
    a_input, b_input = _checked(op, a, b, trans_a, trans_b, out_dtype, config, pattern, bias)
    a, b = a_input.source, b_input.source
    main_grad = b.main_grad if pattern is not None else None
    out_dtype = _default_dtype(a, b) if out_dtype is None else out_dtype
    dtype_a, dtype_b = (autocast_dtype(a.device) or t.dtype for t in (a, b))
    scheme = Scheme.of(config, a.device, trans_a, trans_b)
    with contextlib.nullcontext() if isinstance(a, FakeTensor) else FakeTensorMode():
        a_fake, b_fake = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in (a, b))
        a_fake, b_fake = a_fake.to(dtype_a), b_fake.to(dtype_b)
        m, n = a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]
        grad_out = torch.empty((m, n), dtype=out_dtype, device=a.device)
        both = (True, True)
        a_copies = quantize(a_fake, scheme, "a", both)
        b_copies = quantize(b_fake, scheme, "b", both)
        gradient = quantize(grad_out, scheme, "gradient", both)
    forward = forward_operands(a_copies, b_copies, scheme)
    dgrad, wgrad = dgrad_operands(gradient, b_copies, scheme), wgrad_operands(gradient, a_copies, scheme)
    wgrad_dtype = dtype_b if main_grad is None else main_grad.dtype
    return {
        "forward": product_call(forward, scheme, bias, out_dtype, "forward"),
        "dgrad": product_call(dgrad, scheme, None, dtype_a, "dgrad"),
        "wgrad": product_call(wgrad, scheme, None, wgrad_dtype, "wgrad", main_grad),
    }
