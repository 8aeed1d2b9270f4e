# SPDX-License-Identifier: MIT
"""`grouped_mlp_fp4`: the MLP of each expert on its rows, in MXFP4, with all gradients."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import OpInfo
from turbo_core.low_precision import Float4QuantConfig, config_or_default
from turbo_core.sharding import refuse_sharded
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_fp8_impl import GroupedGemmFp4Dispatcher
from turbo_grouped_gemm.pytorch.ops.grouped_mlp_quantised import MlpArguments, quantised_mlp, quantised_mlp_calls

__all__ = ["GROUPED_MLP_FP4", "grouped_mlp_fp4"]

_OP = "grouped_mlp_fp4"


def grouped_mlp_fp4(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None = None,
    probs: torch.Tensor | None = None,
    trans_w1: bool = False,
    trans_w2: bool = False,
    out_dtype: torch.dtype | None = None,
    config: Float4QuantConfig | None = None,
    num_cu: int | None = None,
    fuse_wgrad_accum_pattern: str | None = None,
    activation: str | None = None,
    *,
    schedule: str = "static",
    a_idx: torch.Tensor | None = None,
    out_idx: torch.Tensor | None = None,
    out_rows: int | None = None,
    clamp_limit: float | None = None,
    limit: float | None = None,
    alpha: float | None = None,
) -> torch.Tensor:
    """y[r] = (act(gate) up probs[r]) op(w2[g]), [gate, up] = x[r] op(w1[g]), for each row r of group g, on FP4 units.

    Differentiable in x, w1, w2 and probs; second derivatives are refused. Each operand is quantised by ``config`` along
    the contraction of the product that reads it, as for `grouped_gemm_fp4`; x and the weights once for both passes.
    Between the products the gate is computed in float32 by a kernel of its own. Saved for the backward are quantised x
    and weights and the first projection before the gate, [S,2F]; the activation is computed and quantised again.

    Args:
        x: [R,K]; bfloat16, float16 or float32. Or [G,M,K], of which group g has the first group_lens[g] rows of x[g].
            Or what `grouped_gemm_fp4` takes quantised as a.
        w1: [G,K,2F], or [G,2F,K] with ``trans_w1``: the columns of the gate, then those of up. Or a `QuantizedTensor`
            along K, or a `QuantizedTensorPair` of it and the one along 2F.
        w2: [G,F,N], or [G,N,F] with ``trans_w2``; likewise along F, and along N.
        config: ``use_gradient_sr`` rounds gradients stochastically; ``use_preshuffle`` is refused.
        others: as for `grouped_mlp`.

    Returns:
        y [R,N], or [G,M,N], contiguous. Gradients have the dtypes of their inputs.

    Raises:
        UnsupportedError: an argument is outside the above, or a DTensor; nothing has been computed.
        BackendUnavailableError: the backend named in code or by PRIMUS_TURBO_GROUPED_GEMM_BACKEND cannot take the
            call.

    Bit-equal from run to run on one backend and device (and seed, with ``use_gradient_sr``).
    ``turbo_core.explain("grouped_mlp_fp4", ...)`` tells which one runs.
    """
    refuse_sharded(_OP, "local tensors are accepted", x=x, w1=w1, w2=w2, probs=probs, group_lens=group_lens)
    given = MlpArguments(
        x, w1, w2, group_lens, group_offs, probs, trans_w1, trans_w2, out_dtype, num_cu, fuse_wgrad_accum_pattern,
        activation, schedule, a_idx, out_idx, out_rows, clamp_limit, limit, alpha,
    )  # fmt: skip
    return quantised_mlp(_OP, given, config_or_default(_OP, config, Float4QuantConfig))


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None = None,
    probs: torch.Tensor | None = None,
    trans_w1: bool = False,
    trans_w2: bool = False,
    out_dtype: torch.dtype | None = None,
    config: Float4QuantConfig | None = None,
    num_cu: int | None = None,
    fuse_wgrad_accum_pattern: str | None = None,
    activation: str | None = None,
    *,
    schedule: str = "static",
    a_idx: torch.Tensor | None = None,
    out_idx: torch.Tensor | None = None,
    out_rows: int | None = None,
    clamp_limit: float | None = None,
    limit: float | None = None,
    alpha: float | None = None,
) -> dict[str, Any]:
    """The products that `grouped_mlp_fp4` with these arguments and its backward come to."""
    given = MlpArguments(
        x, w1, w2, group_lens, group_offs, probs, trans_w1, trans_w2, out_dtype, num_cu, fuse_wgrad_accum_pattern,
        activation, schedule, a_idx, out_idx, out_rows, clamp_limit, limit, alpha,
    )  # fmt: skip
    return quantised_mlp_calls(_OP, given, config_or_default(_OP, config, Float4QuantConfig))


def _example(device: torch.device) -> dict[str, Any]:
    one = torch.empty((1, 1, 1), dtype=torch.bfloat16, device=device)
    lens = torch.full((8,), 512, dtype=torch.int64, device=device)
    x, w1, w2 = one[0].expand(8 * 512, 1024), one.expand(8, 2048, 1024), one.expand(8, 1024, 1024)
    return _calls(x, w1, w2, lens, trans_w1=True, trans_w2=True)


GROUPED_MLP_FP4 = OpInfo(_OP, GroupedGemmFp4Dispatcher, _calls, _example)
