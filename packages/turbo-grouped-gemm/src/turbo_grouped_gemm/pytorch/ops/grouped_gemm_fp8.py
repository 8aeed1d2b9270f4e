# SPDX-License-Identifier: MIT
"""`grouped_gemm_fp8`: rows times the matrix of their group in FP8 or MXFP8, with all gradients.

`grouped_gemm_fp4` is made of it.
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import OpInfo
from turbo_core.autocast import autocast_dtype
from turbo_core.library import under_transforms
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig, config_or_default
from turbo_core.sharding import refuse_sharded
from turbo_gemm.developer import Scheme, as_pair, check_main_grad, dequantized, into_main_grad
from turbo_grouped_gemm.calls import GroupedGemmCall
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_fp8_impl import GroupedGemmFp8Dispatcher
from turbo_grouped_gemm.pytorch.ops.grouped_arguments import checked_rows
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_autograd import Settings, quantised_grouped_product
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_explain import quantised_grouped_calls
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_inputs import (
    Operands,
    check_config,
    quantized_rows,
    quantized_weight,
)
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_quantize import How, Layout
from turbo_grouped_gemm.pytorch.ops.grouped_library import grouped_gemm_op
from turbo_quant import QuantizedTensor

__all__ = ["GROUPED_GEMM_FP8", "KeptWeight", "grouped_gemm_fp8", "quantised_grouped_gemm"]


class KeptWeight:
    """Payloads of a weight for several calls between which it does not change; filled by the first of them."""

    def __init__(self) -> None:
        self.operands: Operands | None = None


# --- any config -------------------------------------------------------------------------------------------------------


def quantised_grouped_gemm(
    op: str,
    a: Any,
    b: Any,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    config: Float8QuantConfig | Float4QuantConfig,
    num_cu: int | None,
    pattern: str | None,
    bias: torch.Tensor | None,
    schedule: str,
    a_idx: torch.Tensor | None,
    out_idx: torch.Tensor | None,
    out_rows: int | None,
    kept: KeptWeight | None = None,
) -> torch.Tensor:
    """The grouped product after quantising a and b by ``config``; the public functions say the rest.

    kept: the payloads of b are taken from there, or left there where it is empty.
    """
    trans_b = bool(trans_b)
    pair_a, pair_b = as_pair(op, "a", a), as_pair(op, "b", b)
    rows = checked_rows(
        op, pair_a.data, pair_b.data, group_lens, group_offs, trans_b, out_dtype, num_cu, bias, schedule, a_idx,
        out_idx, out_rows,
    )  # fmt: skip
    check_config(op, config)
    x, weight = rows.a, pair_b.data
    if pattern is not None:
        check_main_grad(weight, pattern, op)
    cast_to = autocast_dtype(x.device)
    if out_dtype is None:
        out_dtype = cast_to or torch.promote_types(x.dtype, weight.dtype)
    accumulate = into_main_grad(op, weight, pattern)
    y = weight.detach() if accumulate else weight  # its gradient does not pass through a cast
    if cast_to is not None:  # what is quantised already stays
        x, y = (t if isinstance(t, QuantizedTensor) else t.to(cast_to) for t in (x, y))
    if 0 in x.shape or 0 in y.shape or rows.size == 0:  # nothing to quantise
        if accumulate:  # zeros, which autograd gets either way
            y = weight
            weight.grad_added_to_main_grad = True
        plain = GroupedGemmCall(
            dequantized(x), dequantized(y), bias, rows.groups, trans_b, out_dtype, a_idx, out_idx, rows.out_rows,
            num_cu, schedule,
        )  # fmt: skip
        return rows.shaped(grouped_gemm_op(plain))
    needed = torch.is_grad_enabled()
    need_a, need_b = (needed and (t.requires_grad or under_transforms()) for t in (x, weight))
    scheme = Scheme.of(config, x.device, False, trans_b)
    if pair_a.data_t is not None:  # both sides of dB are rotated alike
        scheme = scheme._replace(sign_mask=pair_a.data_t.sign_mask)
    layout = Layout.of(rows.groups, rows.size, a_idx, out_idx)
    operands_a = quantized_rows(op, pair_a._replace(data=x), config, scheme, layout, (need_b, True))
    if kept is None or kept.operands is None:
        wanted = (need_a or kept is not None, True)
        operands_b = quantized_weight(op, pair_b._replace(data=y), config, scheme, wanted)
        if kept is not None:
            kept.operands = operands_b
    else:
        operands_b = kept.operands
    settings = Settings(scheme, How(num_cu, schedule))
    owner = weight if accumulate else None
    c = quantised_grouped_product(
        op, x, weight.view_as(weight) if accumulate else y, bias, operands_a, operands_b, layout, settings, out_dtype,
        rows.out_rows, owner,
    )  # fmt: skip
    if accumulate:
        # said here, not in the backward, which a compiler traces as a function without side effects on attributes
        weight.grad_added_to_main_grad = True
    return rows.shaped(c)


# --- FP8 --------------------------------------------------------------------------------------------------------------

_OP = "grouped_gemm_fp8"


def grouped_gemm_fp8(
    a: torch.Tensor,
    b: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None = None,
    trans_b: bool = True,
    out_dtype: torch.dtype | None = None,
    config: Float8QuantConfig | None = None,
    num_cu: int | None = None,
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
    schedule: str = "static",
    a_idx: torch.Tensor | None = None,
    out_idx: torch.Tensor | None = None,
    out_rows: int | None = None,
) -> torch.Tensor:
    """C[r] = a[r] op(b[g]) + bias[g] for each row r of group g, on FP8 matrix units; differentiable in a, b and bias.

    a and b are quantised by ``config``, each along the contraction; so is the gradient of C, once for each of the two
    gradients. Every payload is made from the original, in one reading of it. TENSORWISE has one scale for the rows of
    all groups and one for all matrices; where scales lie along rows, for the gradient of b, no two groups share one.
    What is saved for the backward is quantised. Rows of no group may hold anything: they count in no scale, and are
    zeros in C and in the gradient of a. All strides and sizes are accepted; padding that a format needs is added here.

    Args:
        a: [R,K]; bfloat16, float16 or float32. Or [G,M,K], of which group g has the first group_lens[g] rows of a[g].
            Or a `QuantizedTensor` [R,K] along K, or a `QuantizedTensorPair` of it and, for MX_BLOCKWISE, the grouped
            one along the rows.
        b: [G,N,K] with ``trans_b``, or [G,K,N]; likewise, and not necessarily the dtype of a. Or a `QuantizedTensor`
            along K, or a `QuantizedTensorPair` of it and the one along N.
        out_dtype: dtype of C; default ``torch.promote_types(a.dtype, b.dtype)``, under autocast its dtype.
        config: format (E4M3, E5M2, HYBRID) and granularity (TENSORWISE, ROWWISE, BLOCKWISE with blocks of 128,
            MX_BLOCKWISE); default E4M3, TENSORWISE.
        fuse_bgrad_accum_pattern: ``"megatron"`` adds the gradient of b to ``b.main_grad`` inside its product; autograd
            gets zeros for b. b (``data`` of a pair) needs ``main_grad`` and ``grad_added_to_main_grad``, which is set
            in the forward.
        group_lens, group_offs, num_cu, bias, schedule, a_idx, out_idx, out_rows: as for `grouped_gemm`.

    Returns:
        C [R,N], or [G,M,N], contiguous. Gradients have the dtypes of their inputs.

    Raises:
        UnsupportedError: an argument is outside the above, or a DTensor; nothing has been computed.
        BackendUnavailableError: the backend named in code or by PRIMUS_TURBO_GROUPED_GEMM_BACKEND cannot take the
            call.

    Bit-equal from run to run on one backend and device. ``turbo_core.explain("grouped_gemm_fp8", ...)`` tells which
    one runs.
    """
    refuse_sharded(_OP, "local tensors are accepted", a=a, b=b, bias=bias, group_lens=group_lens)
    config = config_or_default(_OP, config, Float8QuantConfig)
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
    config: Float8QuantConfig | None = None,
    num_cu: int | None = None,
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
    schedule: str = "static",
    a_idx: torch.Tensor | None = None,
    out_idx: torch.Tensor | None = None,
    out_rows: int | None = None,
) -> dict[str, Any]:
    """The three products that `grouped_gemm_fp8` with these arguments and its backward come to."""
    config = config_or_default(_OP, config, Float8QuantConfig)
    return quantised_grouped_calls(
        _OP, a, b, group_lens, group_offs, trans_b, out_dtype, config, num_cu, fuse_bgrad_accum_pattern, bias,
        schedule, a_idx, out_idx, out_rows,
    )  # fmt: skip


def _example(device: torch.device) -> dict[str, Any]:
    x = torch.empty((1, 1, 1), dtype=torch.bfloat16, device=device)
    lens = torch.full((32,), 512, dtype=torch.int64, device=device)
    return _calls(x[0].expand(32 * 512, 2048), x.expand(32, 4096, 2048), lens)


GROUPED_GEMM_FP8 = OpInfo(_OP, GroupedGemmFp8Dispatcher, _calls, _example)
