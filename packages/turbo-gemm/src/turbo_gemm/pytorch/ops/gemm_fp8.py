# SPDX-License-Identifier: MIT
"""`gemm_fp8`: matrix product of operands quantised to FP8 or MXFP8, with both gradients; `gemm_fp4` is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from turbo_core import OpInfo
from turbo_core.autocast import autocast_dtype
from turbo_core.library import under_transforms
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig, config_or_default
from turbo_core.sharding import shardable
from turbo_gemm.calls import GemmFp8Call
from turbo_gemm.pytorch.kernels.gemm_fp8_impl import GemmFp8Dispatcher
from turbo_gemm.pytorch.ops.gemm import gemm
from turbo_gemm.pytorch.ops.gemm_fp8_autograd import quantised_product
from turbo_gemm.pytorch.ops.gemm_fp8_explain import quantised_calls
from turbo_gemm.pytorch.ops.gemm_fp8_inputs import checked, dequantized, quantized
from turbo_gemm.pytorch.ops.gemm_fp8_quantize import Divided, Scheme
from turbo_gemm.pytorch.ops.main_grad import into_main_grad
from turbo_gemm.pytorch.ops.sharding import gemm_fp8_rules
from turbo_quant import QuantizedTensor, QuantizedTensorPair

__all__ = ["GEMM_FP8", "gemm_fp8", "quantised_gemm", "quantised_gemm_of_shards"]

# --- any config -------------------------------------------------------------------------------------------------------


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
    config: Float8QuantConfig | Float4QuantConfig,
    pattern: str | None,
    bias: torch.Tensor | None,
    divided: Divided = ((), (), ()),
) -> torch.Tensor:
    """op(a) op(b) + bias after quantising a and b by ``config``, differentiable; the public functions say the rest.

    divided: where a, b and C are shards, see `Scheme`.
    """
    trans_a, trans_b = bool(trans_a), bool(trans_b)
    a, b = checked(op, a, b, trans_a, trans_b, out_dtype, config, pattern, bias)
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
        config: Float8QuantConfig | Float4QuantConfig | None,
        fuse_bgrad_accum_pattern: str | None,
        bias: torch.Tensor | None,
        divided: Mapping[str, tuple[str, ...]],
    ) -> torch.Tensor:
        groups = (divided.get("a", ()), divided.get("b", ()), divided["output"])
        config = (Float4QuantConfig() if op == "gemm_fp4" else Float8QuantConfig()) if config is None else config
        return quantised_gemm(op, a, b, trans_a, trans_b, out_dtype, config, fuse_bgrad_accum_pattern, bias, groups)

    return function


# --- FP8 --------------------------------------------------------------------------------------------------------------

_OP = "gemm_fp8"


@shardable(gemm_fp8_rules, quantised_gemm_of_shards(_OP))
def gemm_fp8(
    a: torch.Tensor,
    b: torch.Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    out_dtype: torch.dtype | None = None,
    config: Float8QuantConfig | None = None,
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """C = op(a) op(b) + bias on FP8 matrix units, differentiable in a, b and bias.

    a and b are quantised by ``config``, each along the contraction; so is the gradient of C, once for each of the two
    gradients. Every payload is made from the original, in one reading of it. Sums are in float32 and rounded once. All
    strides, sizes and layouts are accepted; padding that a format needs is added here.

    Args:
        a: [M,K], or [K,M] with ``trans_a``; bfloat16, float16 or float32.
        b: [K,N], or [N,K] with ``trans_b``; likewise, and not necessarily the dtype of a.
        trans_a: a is stored transposed.
        trans_b: b is stored transposed (the layout of ``torch.nn.Linear.weight``).
        out_dtype: dtype of C; default ``torch.promote_types(a.dtype, b.dtype)``, under autocast its dtype.
        config: format (E4M3, E5M2, HYBRID) and granularity (TENSORWISE, ROWWISE, BLOCKWISE, MX_BLOCKWISE); default
            E4M3, TENSORWISE.
        fuse_bgrad_accum_pattern: ``"megatron"`` adds the gradient of b to ``b.main_grad`` inside its GEMM; autograd
            gets zeros for b. b needs ``main_grad`` and ``grad_added_to_main_grad``, which is set in the forward.
        bias: [N], added before rounding.

    Returns:
        C [M,N], contiguous. Gradients have the dtypes of their inputs.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
        BackendUnavailableError: the backend named in code or by PRIMUS_TURBO_GEMM_BACKEND cannot take the call.

    Bit-equal from run to run on one backend and device. ``turbo_core.explain("gemm_fp8", ...)`` tells which one runs.
    """
    config = config_or_default(_OP, config, Float8QuantConfig)
    return quantised_gemm(_OP, a, b, trans_a, trans_b, out_dtype, config, fuse_bgrad_accum_pattern, bias)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(
    a: torch.Tensor,
    b: torch.Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    out_dtype: torch.dtype | None = None,
    config: Float8QuantConfig | None = None,
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
) -> dict[str, GemmFp8Call]:
    """The three GEMMs that `gemm_fp8` with these arguments and its backward come to."""
    config = config_or_default(_OP, config, Float8QuantConfig)
    return quantised_calls(_OP, a, b, trans_a, trans_b, out_dtype, config, fuse_bgrad_accum_pattern, bias)


def _example(device: torch.device) -> dict[str, GemmFp8Call]:
    x = torch.empty((1, 1), dtype=torch.bfloat16, device=device)
    return _calls(x.expand(4096, 4096), x.expand(4096, 4096), trans_b=True)


GEMM_FP8 = OpInfo(_OP, GemmFp8Dispatcher, _calls, _example)
