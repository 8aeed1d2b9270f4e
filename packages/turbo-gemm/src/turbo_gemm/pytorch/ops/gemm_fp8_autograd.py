# SPDX-License-Identifier: MIT
"""The product of quantised matrices as registered ops, and differentiable in the matrices as they were before."""

from __future__ import annotations

import torch

from turbo_core.library import OpLibrary
from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.calls import GemmFp8Call, Operand, specs
from turbo_gemm.pytorch.kernels.gemm_fp8_impl import GemmFp4Dispatcher, GemmFp8Dispatcher
from turbo_gemm.pytorch.ops.gemm_fp8_quantize import (
    Quantised,
    Scheme,
    dgrad_call,
    forward_call,
    quantize,
    wgrad_call,
)
from turbo_gemm.pytorch.ops.gemm_gradients import bias_gradient
from turbo_gemm.pytorch.ops.quantised_product import Gradients, Product, Rules, differentiable_product

__all__ = ["multiply", "quantised_product"]

# The registered ops have no gradient of their own: it is taken with respect to the matrices before quantisation.
_library = OpLibrary("turbo_gemm")
_fp8 = _library.op("gemm_fp8", GemmFp8Call, GemmFp8Dispatcher.run, specs, omits=("out", "preshuffled"))
_fp4 = _library.op("gemm_fp4", GemmFp8Call, GemmFp4Dispatcher.run, specs, omits=("out",))
_fp8_into = _library.op("gemm_fp8_accumulate", GemmFp8Call, GemmFp8Dispatcher.run, None, writes="out")
_fp4_into = _library.op("gemm_fp4_accumulate", GemmFp8Call, GemmFp4Dispatcher.run, None, writes="out")


def multiply(call: GemmFp8Call, fp4: bool) -> torch.Tensor:
    """C of the call, through the registered op; nothing where it is added to ``out``."""
    if call.out is not None:
        c: torch.Tensor = (_fp4_into if fp4 else _fp8_into)(call)
        return c
    c = (_fp4 if fp4 else _fp8)(call)
    return c


def quantised_product(
    op: str,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    quantised_a: Quantised,
    quantised_b: Quantised,
    scheme: Scheme,
    out_dtype: torch.dtype,
    weight: torch.Tensor | None,
) -> torch.Tensor:
    """op(a) op(b) + bias from the quantised matrices; a and b are not read, they are what gradients belong to.

    Where ``weight`` is given, b is a view of it, whose gradient is added to ``weight.main_grad``. ``op`` is the public
    function, for messages.
    """
    forward = forward_call(quantised_a, quantised_b, scheme, None, out_dtype)
    kept_a, kept_b = quantised_a[1 - scheme.contraction("a")], quantised_b[1 - scheme.contraction("b")]
    kept = tuple(tensor for x in (kept_a, kept_b) for tensor in ((None, None) if x is None else x[:2]))
    return differentiable_product(a, b, bias, Product(op, forward, kept, scheme, _RULES, weight))


def _multiply(forward: GemmFp8Call, bias: torch.Tensor | None, scheme: Scheme) -> torch.Tensor:
    return multiply(forward._replace(bias=bias), scheme.fp4)


def _gradients(
    kept: tuple[torch.Tensor | None, ...],
    scheme: Scheme,
    grad_out: torch.Tensor,
    needs: tuple[bool, bool],
    dtypes: tuple[torch.dtype, torch.dtype],
    out: torch.Tensor | None,
) -> Gradients:
    need_a, need_b = needs
    gradient = quantize(grad_out, scheme, "gradient", (need_b, need_a))
    grad_a = grad_b = None
    a, a_scale, b, b_scale = kept
    if need_a and b is not None and b_scale is not None:
        along_n = Operand(b, b_scale, tiles=scheme.granularity is ScalingGranularity.BLOCKWISE)
        grad_a = multiply(dgrad_call(gradient, (along_n, along_n), scheme, dtypes[0]), scheme.fp4)
    if need_b and a is not None and a_scale is not None:
        along_m, dtype = Operand(a, a_scale), dtypes[1] if out is None else out.dtype
        grad_b = multiply(wgrad_call(gradient, (along_m, along_m), scheme, dtype, out), scheme.fp4)
    return grad_a, grad_b


def _bias_gradient(
    kept: tuple[torch.Tensor | None, ...], scheme: Scheme, grad_out: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    return bias_gradient(grad_out, dtype)


_RULES = Rules(_multiply, _gradients, _bias_gradient)
