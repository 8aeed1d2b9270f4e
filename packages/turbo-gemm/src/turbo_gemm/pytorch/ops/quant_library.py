# SPDX-License-Identifier: MIT
"""The GEMMs of quantised operands as registered ops: ``turbo_gemm::gemm_fp8``, ``gemm_fp4`` and their ``_accumulate``.

Operands are payloads and scales as `QuantGemmCall` describes them. The ops have no gradient of their own: the gradient
of a quantised product is taken with respect to the matrices before quantisation (`quant_autograd`).
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_core.library import register_op
from turbo_core.low_precision import MX_BLOCK_SIZE, ScalingGranularity
from turbo_gemm.pytorch.kernels.quant_gemm_impl import GemmFp4Dispatcher, GemmFp8Dispatcher, QuantGemmCall, run
from turbo_gemm.pytorch.ops.quant_operands import Operands, Scheme

__all__ = ["accumulate_product", "product", "product_call"]

_library = torch.library.Library("turbo_gemm", "FRAGMENT")
_OPERANDS = "Tensor a, Tensor a_scale_inv, Tensor b, Tensor b_scale_inv"
_FP8 = "bool trans_a, bool trans_b, str granularity, int block_size, bool a_tiles, bool b_tiles"

# --- FP8 ------------------------------------------------------------------------------------------------------------


def _gemm_fp8(
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    bias: torch.Tensor | None,
    trans_a: bool,
    trans_b: bool,
    granularity: str,
    block_size: int,
    a_tiles: bool,
    b_tiles: bool,
    out_dtype: torch.dtype,
    role: str,
) -> torch.Tensor:
    scales = ScalingGranularity(granularity)
    call = QuantGemmCall(
        a, a_scale_inv, b, b_scale_inv, trans_a, trans_b, bias, out_dtype, scales, block_size, a_tiles, b_tiles
    )
    return run(GemmFp8Dispatcher, call._replace(role=role))


def _gemm_fp8_fake(
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    bias: torch.Tensor | None,
    trans_a: bool,
    trans_b: bool,
    granularity: str,
    block_size: int,
    a_tiles: bool,
    b_tiles: bool,
    out_dtype: torch.dtype,
    role: str,
) -> torch.Tensor:
    return a.new_empty((a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]), dtype=out_dtype)


def _gemm_fp8_accumulate(
    out: torch.Tensor,
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    trans_a: bool,
    trans_b: bool,
    granularity: str,
    block_size: int,
    a_tiles: bool,
    b_tiles: bool,
) -> None:
    scales = ScalingGranularity(granularity)
    call = QuantGemmCall(
        a, a_scale_inv, b, b_scale_inv, trans_a, trans_b, None, out.dtype, scales, block_size, a_tiles, b_tiles
    )
    run(GemmFp8Dispatcher, call._replace(out=out, role="wgrad"))


# --- FP4 ------------------------------------------------------------------------------------------------------------


def _mxfp4(
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    bias: torch.Tensor | None,
    preshuffled: bool,
    out_dtype: torch.dtype,
) -> QuantGemmCall:
    return QuantGemmCall(
        a,
        a_scale_inv,
        b,
        b_scale_inv,
        False,
        True,
        bias,
        out_dtype,
        ScalingGranularity.MX_BLOCKWISE,
        MX_BLOCK_SIZE,
        preshuffled=preshuffled,
    )


def _gemm_fp4(
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    bias: torch.Tensor | None,
    preshuffled: bool,
    out_dtype: torch.dtype,
    role: str,
) -> torch.Tensor:
    call = _mxfp4(a, a_scale_inv, b, b_scale_inv, bias, preshuffled, out_dtype)
    return run(GemmFp4Dispatcher, call._replace(role=role))


def _gemm_fp4_fake(
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    bias: torch.Tensor | None,
    preshuffled: bool,
    out_dtype: torch.dtype,
    role: str,
) -> torch.Tensor:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=out_dtype)


def _gemm_fp4_accumulate(
    out: torch.Tensor,
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    preshuffled: bool,
) -> None:
    call = _mxfp4(a, a_scale_inv, b, b_scale_inv, None, preshuffled, out.dtype)
    run(GemmFp4Dispatcher, call._replace(out=out, role="wgrad"))


def _nothing_fake(*arguments: Any) -> None:
    return None


gemm_fp8_op = register_op(
    _library,
    f"gemm_fp8({_OPERANDS}, Tensor? bias, {_FP8}, ScalarType out_dtype, str role) -> Tensor",
    _gemm_fp8,
    _gemm_fp8_fake,
)
gemm_fp8_accumulate = register_op(
    _library,
    f"gemm_fp8_accumulate(Tensor(a!) out, {_OPERANDS}, {_FP8}) -> ()",
    _gemm_fp8_accumulate,
    _nothing_fake,
)
gemm_fp4_op = register_op(
    _library,
    f"gemm_fp4({_OPERANDS}, Tensor? bias, bool preshuffled, ScalarType out_dtype, str role) -> Tensor",
    _gemm_fp4,
    _gemm_fp4_fake,
)
gemm_fp4_accumulate = register_op(
    _library,
    f"gemm_fp4_accumulate(Tensor(a!) out, {_OPERANDS}, bool preshuffled) -> ()",
    _gemm_fp4_accumulate,
    _nothing_fake,
)

# --- from operands --------------------------------------------------------------------------------------------------


def product(
    operands: Operands, scheme: Scheme, bias: torch.Tensor | None, out_dtype: torch.dtype, role: str
) -> torch.Tensor:
    """C = x y (+ bias) through the registered op."""
    x, y, trans_x, trans_y = operands
    four = (x.data, x.scale_inv, y.data, y.scale_inv)
    if scheme.fp4:
        c: torch.Tensor = gemm_fp4_op(*four, bias, scheme.preshuffle, out_dtype, role)
        return c
    kind = (scheme.granularity.value, scheme.block_size, x.tiles, y.tiles)
    c = gemm_fp8_op(*four, bias, trans_x, trans_y, *kind, out_dtype, role)
    return c


def accumulate_product(out: torch.Tensor, operands: Operands, scheme: Scheme) -> None:
    """out += x y through the registered op."""
    x, y, trans_x, trans_y = operands
    four = (x.data, x.scale_inv, y.data, y.scale_inv)
    if scheme.fp4:
        gemm_fp4_accumulate(out, *four, scheme.preshuffle)
    else:
        kind = (scheme.granularity.value, scheme.block_size, x.tiles, y.tiles)
        gemm_fp8_accumulate(out, *four, trans_x, trans_y, *kind)


def product_call(
    operands: Operands,
    scheme: Scheme,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    role: str,
    out: torch.Tensor | None = None,
) -> QuantGemmCall:
    """What the registered op asks its dispatcher."""
    x, y, trans_x, trans_y = operands
    return QuantGemmCall(
        x.data,
        x.scale_inv,
        y.data,
        y.scale_inv,
        trans_x,
        trans_y,
        bias,
        out_dtype,
        scheme.granularity,
        scheme.block_size,
        x.tiles,
        y.tiles,
        out,
        role,
        scheme.preshuffle,
    )
