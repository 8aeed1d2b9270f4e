# SPDX-License-Identifier: MIT
"""`grouped_gemm_fp4`: rows times the matrix of their group in MXFP4, with all gradients."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import OpInfo
from turbo_core.low_precision import Float4QuantConfig, config_or_default
from turbo_core.sharding import refuse_sharded
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_fp8_impl import GroupedGemmFp4Dispatcher
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8 import quantised_grouped_gemm
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_explain import quantised_grouped_calls

__all__ = ["GROUPED_GEMM_FP4", "grouped_gemm_fp4"]

_OP = "grouped_gemm_fp4"


def grouped_gemm_fp4(
    a: torch.Tensor,
    b: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None = None,
    trans_b: bool = True,
    out_dtype: torch.dtype | None = None,
    config: Float4QuantConfig | None = None,
    num_cu: int | None = None,
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
    schedule: str = "static",
    a_idx: torch.Tensor | None = None,
    out_idx: torch.Tensor | None = None,
    out_rows: int | None = None,
) -> torch.Tensor:
    """C[r] = a[r] op(b[g]) + bias[g] for each row r of group g, on FP4 matrix units; differentiable in a, b and bias.

    Each operand is quantised in blocks of 32 along the contraction of the product that reads it: a and the gradient of
    C in 1 x 32 blocks, b in 32 x 32 tiles. For the gradient of b, a and the gradient of C are first rotated alike,
    group by group, by a random Hadamard transform along the rows, which cancels in their product. Otherwise as
    `grouped_gemm_fp8`, whose arguments these are.

    Args:
        config: ``use_gradient_sr`` rounds the gradient of C stochastically, from torch's generator of the device.
            ``use_preshuffle`` is refused.
        others: as for `grouped_gemm_fp8`.

    Returns:
        C [R,N], or [G,M,N], contiguous. Gradients have the dtypes of their inputs.

    Raises:
        UnsupportedError: an argument is outside the above, or a DTensor; nothing has been computed.
        BackendUnavailableError: the backend named in code or by PRIMUS_TURBO_GROUPED_GEMM_BACKEND cannot take the
            call.

    Bit-equal from run to run on one backend and device (and seed, with ``use_gradient_sr``).
    ``turbo_core.explain("grouped_gemm_fp4", ...)`` tells which one runs.
    """
    refuse_sharded(_OP, "local tensors are accepted", a=a, b=b, bias=bias, group_lens=group_lens)
    config = config_or_default(_OP, config, Float4QuantConfig)
    return quantised_grouped_gemm(
        _OP, a, b, group_lens, group_offs, trans_b, out_dtype, config, num_cu, fuse_bgrad_accum_pattern, bias,
        schedule, a_idx, out_idx, out_rows,
    )  # fmt: skip


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(
    a: torch.Tensor,
    b: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None = None,
    trans_b: bool = True,
    out_dtype: torch.dtype | None = None,
    config: Float4QuantConfig | None = None,
    num_cu: int | None = None,
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
    schedule: str = "static",
    a_idx: torch.Tensor | None = None,
    out_idx: torch.Tensor | None = None,
    out_rows: int | None = None,
) -> dict[str, Any]:
    """The three products that `grouped_gemm_fp4` with these arguments and its backward come to."""
    config = config_or_default(_OP, config, Float4QuantConfig)
    return quantised_grouped_calls(
        _OP, a, b, group_lens, group_offs, trans_b, out_dtype, config, num_cu, fuse_bgrad_accum_pattern, bias,
        schedule, a_idx, out_idx, out_rows,
    )  # fmt: skip


def _example(device: torch.device) -> dict[str, Any]:
    x = torch.empty((1, 1, 1), dtype=torch.bfloat16, device=device)
    lens = torch.full((32,), 512, dtype=torch.int64, device=device)
    return _calls(x[0].expand(32 * 512, 2048), x.expand(32, 4096, 2048), lens)


GROUPED_GEMM_FP4 = OpInfo(_OP, GroupedGemmFp4Dispatcher, _calls, _example)
