# SPDX-License-Identifier: MIT
"""`gemm_fp4`: matrix product of operands quantised to MXFP4, with both gradients."""

from __future__ import annotations

import torch

from turbo_core import OpInfo
from turbo_core.low_precision import Float4QuantConfig, config_or_default
from turbo_core.sharding import shardable
from turbo_gemm.calls import GemmFp8Call
from turbo_gemm.pytorch.kernels.gemm_fp8_impl import GemmFp4Dispatcher
from turbo_gemm.pytorch.ops.gemm_fp8 import quantised_gemm, quantised_gemm_of_shards
from turbo_gemm.pytorch.ops.gemm_fp8_explain import quantised_calls
from turbo_gemm.pytorch.ops.sharding import gemm_fp8_rules

__all__ = ["GEMM_FP4", "gemm_fp4"]

_OP = "gemm_fp4"


@shardable(gemm_fp8_rules, quantised_gemm_of_shards(_OP))
def gemm_fp4(
    a: torch.Tensor,
    b: torch.Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    out_dtype: torch.dtype | None = None,
    config: Float4QuantConfig | None = None,
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """C = op(a) op(b) + bias on FP4 matrix units, differentiable in a, b and bias.

    Each matrix is quantised in blocks of 32 along the contraction of the product that reads it: a and the gradient of
    C in 1 x 32 blocks, b in 32 x 32 tiles. For the gradient of b, a and the gradient of C are first rotated alike by a
    random Hadamard transform along M, which cancels in their product. Every payload is made from the original, in one
    reading of it. Sums are in float32 and rounded once. All strides, sizes and layouts are accepted; padding that the
    format needs is added here.

    Args:
        a: [M,K], or [K,M] with ``trans_a``; bfloat16, float16 or float32.
        b: [K,N], or [N,K] with ``trans_b``; likewise, and not necessarily the dtype of a.
        trans_a: a is stored transposed.
        trans_b: b is stored transposed (the layout of ``torch.nn.Linear.weight``).
        out_dtype: dtype of C; default ``torch.promote_types(a.dtype, b.dtype)``, under autocast its dtype.
        config: ``use_gradient_sr`` rounds the gradient of C stochastically, from torch's generator of the device.
            ``use_preshuffle`` lays operands out for AITER's kernels; M, N and K must then be multiples of 16.
        fuse_bgrad_accum_pattern: ``"megatron"`` adds the gradient of b to ``b.main_grad`` inside its GEMM; autograd
            gets zeros for b. b needs ``main_grad`` and ``grad_added_to_main_grad``, which is set in the forward.
        bias: [N], added before rounding.

    Returns:
        C [M,N], contiguous. Gradients have the dtypes of their inputs.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
        BackendUnavailableError: the backend named in code or by PRIMUS_TURBO_GEMM_BACKEND cannot take the call.

    Bit-equal from run to run on one backend and device (and seed, with ``use_gradient_sr``).
    ``turbo_core.explain("gemm_fp4", ...)`` tells which one runs.
    """
    config = config_or_default(_OP, config, Float4QuantConfig)
    return quantised_gemm(_OP, a, b, trans_a, trans_b, out_dtype, config, fuse_bgrad_accum_pattern, bias)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(
    a: torch.Tensor,
    b: torch.Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    out_dtype: torch.dtype | None = None,
    config: Float4QuantConfig | None = None,
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
) -> dict[str, GemmFp8Call]:
    """The three GEMMs that `gemm_fp4` with these arguments and its backward come to."""
    config = config_or_default(_OP, config, Float4QuantConfig)
    return quantised_calls(_OP, a, b, trans_a, trans_b, out_dtype, config, fuse_bgrad_accum_pattern, bias)


def _example(device: torch.device) -> dict[str, GemmFp8Call]:
    x = torch.empty((1, 1), dtype=torch.bfloat16, device=device)
    return _calls(x.expand(4096, 4096), x.expand(4096, 4096), trans_b=True)


GEMM_FP4 = OpInfo(_OP, GemmFp4Dispatcher, _calls, _example)
