# SPDX-License-Identifier: MIT
"""The operands that users pass to grouped_gemm_fp8 and grouped_gemm_fp4, quantised where they are not yet."""

from __future__ import annotations

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import (
    BLOCK_SIZE,
    Float4QuantConfig,
    Float8QuantConfig,
    ScalingGranularity,
)
from turbo_gemm.developer import Scheme, operand_recipe, quantized
from turbo_grouped_gemm.calls import GroupedOperand
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_quantize import (
    Layout,
    columns_of_codes,
    quantize_rows,
    weight_operand,
)
from turbo_quant import QuantizedTensor, QuantizedTensorPair, check_quantized_tensor

__all__ = ["Operands", "check_config", "quantized_rows", "quantized_weight"]

Config = Float8QuantConfig | Float4QuantConfig
Operands = tuple[GroupedOperand | None, GroupedOperand | None]


def check_config(op: str, config: Config) -> None:
    """That backends have products of what ``config`` makes."""
    if config.granularity is ScalingGranularity.BLOCKWISE and config.block_size != BLOCK_SIZE:
        raise UnsupportedError(f"{op}: config.block_size={config.block_size}; {BLOCK_SIZE} is accepted")
    if isinstance(config, Float4QuantConfig) and config.use_preshuffle:
        raise UnsupportedError(
            f"{op}: config.use_preshuffle=True; False is accepted, AITER has no grouped product of such operands"
        )


def quantized_weight(
    op: str, b: QuantizedTensorPair, config: Config, scheme: Scheme, wanted: tuple[bool, bool]
) -> Operands:
    """b with scales along N, and along K, where that is ``wanted``; see `turbo_gemm.developer.quantized`."""
    along_k = scheme.contraction("b")
    dims = (1 - along_k, along_k)
    of_dims = (wanted[dims.index(0)], wanted[dims.index(1)])
    found = quantized(op, "b", b, config, scheme, of_dims)
    along_n, along_k_operand = (None if found[dim] is None else weight_operand(scheme, found[dim], dim) for dim in dims)
    return along_n, along_k_operand


def quantized_rows(
    op: str, a: QuantizedTensorPair, config: Config, scheme: Scheme, layout: Layout, wanted: tuple[bool, bool]
) -> Operands:
    """a with scales along the rows of groups, and along K, where that is ``wanted``.

    What the user has is used. The copy along the rows, where it is missing, is made of the dequantised values, which
    rounds a second time, but for TENSORWISE, where it is the same codes in another order.
    """
    rows, columns = a
    if not isinstance(rows, QuantizedTensor) and columns is None:
        return quantize_rows(rows, scheme, "a", layout, wanted)
    along_rows = along_k = None
    if isinstance(rows, QuantizedTensor):
        _check(op, "a", rows, a, config, scheme, 1)
        along_k = GroupedOperand(rows.qdata, _scale(rows, scheme))
    else:
        along_k = quantize_rows(rows, scheme, "a", layout, (False, True))[1]
    if not wanted[0]:
        return None, along_k
    if columns is not None:
        along_rows = _given_columns(op, columns, a, config, scheme, layout)
    elif scheme.granularity is ScalingGranularity.TENSORWISE:
        codes = columns_of_codes(rows.qdata, layout.of_rows(layout.a_idx))
        along_rows = GroupedOperand(codes, _scale(rows, scheme))
    else:
        values = rows.to(torch.float32).dequantize()
        along_rows = quantize_rows(values, scheme, "a", layout, (True, False))[0]
    return along_rows, along_k


def _scale(x: QuantizedTensor, scheme: Scheme) -> torch.Tensor:
    """Others may have made a scale of one element [1]."""
    return x.scale_inv.reshape(()) if scheme.granularity is ScalingGranularity.TENSORWISE else x.scale_inv


def _given_columns(
    op: str, columns: QuantizedTensor, a: QuantizedTensorPair, config: Config, scheme: Scheme, layout: Layout
) -> GroupedOperand:
    """The copy of a along the rows that the user has: MX alone has it as products read it."""
    if scheme.granularity is not ScalingGranularity.MX_BLOCKWISE:
        raise UnsupportedError(
            f"{op}: a.data_t is given with {scheme.granularity.name}; None is accepted, or MX_BLOCKWISE"
        )
    if layout.a_idx is not None or layout.groups.offs is not None:
        raise UnsupportedError(f"{op}: a.data_t is given with a_idx or group_offs; None is accepted with these")
    if not columns.is_grouped_tensor:
        raise UnsupportedError(f"{op}: a.data_t has no groups; a grouped tensor is accepted")
    _check(op, "a.data_t", columns, a, config, scheme, 0)
    return GroupedOperand(columns.qdata, columns.scale_inv)


def _check(
    op: str, name: str, given: QuantizedTensor, a: QuantizedTensorPair, config: Config, scheme: Scheme, dim: int
) -> None:
    shape, device = a.data.shape, a.data.device
    if given.shape != shape or given.device != device:
        raise UnsupportedError(
            f"{op}: {name} has shape {list(given.shape)} on {given.device}; {list(shape)} on {device} is accepted"
        )
    try:
        check_quantized_tensor(given, config, dim - 2, operand_recipe("a", scheme, dim))
    except UnsupportedError as refusal:
        raise UnsupportedError(f"{op}: {name} is not as config asks: {refusal}") from None
