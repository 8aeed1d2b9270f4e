# SPDX-License-Identifier: MIT
"""How the operands of grouped_gemm_fp8 and grouped_gemm_fp4 are quantised, and which payloads meet in which product.

With A the rows of a group, B its matrix op(b[g]) [K,N] and G the gradient of its rows of C:

    C  = A B       contraction K:  a and b with scales along K
    dA = G B^T     contraction N:  G and b with scales along N
    dB = A^T G     contraction over the rows of the group:  a and G with scales along the rows

Recipes are those of `turbo_gemm.developer.Scheme`, for every group alike. TENSORWISE has one scale for all groups;
where scales lie along the rows, none is shared by two groups. Both payloads of an operand come from one reading of it.
Those along the rows are stored transposed, each group filled up with zeros to a multiple of 128.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_core.low_precision import ScalingGranularity, fp8_max
from turbo_gemm.developer import RowGroups, Scheme, quantize_batch
from turbo_grouped_gemm.calls import GroupedGemmFp8Call, GroupedOperand, GroupedWgradFp8Call, Groups
from turbo_quant.developer import QuantizeFloatCall, padded_groups, run_quantize_float

__all__ = [
    "How",
    "Layout",
    "columns_of_codes",
    "dgrad_call",
    "forward_call",
    "quantize_rows",
    "weight_operand",
    "wgrad_call",
]


class Layout(NamedTuple):
    """The rows of a call.

    Attributes:
        groups: of the S rows.
        offs: [G+1] int64, where each group begins.
        offs_padded: [G+1] int64, where each begins with its rows rounded up to 128.
        a_idx, out_idx: [S] or None; see `GroupedGemmCall`.
    """

    groups: Groups
    offs: torch.Tensor
    offs_padded: torch.Tensor
    a_idx: torch.Tensor | None
    out_idx: torch.Tensor | None

    @classmethod
    def of(cls, groups: Groups, rows: int, a_idx: torch.Tensor | None, out_idx: torch.Tensor | None) -> Layout:
        """That of ``rows`` rows, S."""
        offs, offs_padded = padded_groups(groups.lens, groups.offs, rows)
        return cls(groups, offs, offs_padded, a_idx, out_idx)

    def of_rows(self, row_idx: torch.Tensor | None) -> RowGroups:
        """For the quantisation of a (with ``a_idx``) or of the gradient (with ``out_idx``)."""
        lens = None if self.groups.offs is None else self.groups.lens
        return RowGroups(self.offs, self.offs_padded, lens, row_idx)


# --- quantising -----------------------------------------------------------------------------------------------------


def quantize_rows(
    x: torch.Tensor, scheme: Scheme, which: str, layout: Layout, wanted: tuple[bool, bool]
) -> tuple[GroupedOperand | None, GroupedOperand | None]:
    """``a`` or the ``gradient`` [R,C] with scales along the rows of each group, and along C; None where not wanted."""
    row_idx = layout.a_idx if which == "a" else layout.out_idx
    alone = not wanted[0] and scheme.granularity is not ScalingGranularity.TENSORWISE  # no group matters
    groups = None if alone else layout.of_rows(row_idx)
    outputs: Any = quantize_batch(x.unsqueeze(0), scheme, which, wanted, groups)
    row, row_scale, column, column_scale = outputs
    return (
        _column_operand(scheme, column, column_scale) if wanted[0] else None,
        GroupedOperand(row.squeeze(0), _squeezed(row_scale)) if wanted[1] else None,
    )


def _squeezed(scale: Any) -> torch.Tensor:
    squeezed: torch.Tensor = scale.squeeze(0) if scale.dim() else scale
    return squeezed


def _column_operand(scheme: Scheme, payload: Any, scale: Any) -> GroupedOperand:
    payload, scale = payload.squeeze(0), _squeezed(scale)
    if scheme.granularity is not ScalingGranularity.MX_BLOCKWISE:
        payload = payload.t()
        scale = scale.t() if scheme.granularity is ScalingGranularity.BLOCKWISE else scale
    return GroupedOperand(payload, scale)


def columns_of_codes(codes: torch.Tensor, groups: RowGroups) -> torch.Tensor:
    """FP8 codes [R,C] as they are along the rows of groups, [C,P]: as numbers with an amax whose scale is one."""
    amax = torch.full((), fp8_max(codes.dtype), device=codes.device)
    call = QuantizeFloatCall(
        codes.to(torch.bfloat16).unsqueeze(0), codes.dtype, ScalingGranularity.TENSORWISE, 0, False, True, amax=amax,
        k_major=True, group_offs=groups.offs, group_offs_padded=groups.offs_padded, group_lens=groups.lens,
        row_idx=groups.row_idx,
    )  # fmt: skip
    outputs: Any = run_quantize_float(call)
    column: torch.Tensor = outputs.column.squeeze(0).t()
    return column


def weight_operand(scheme: Scheme, x: Any, dim: int) -> GroupedOperand:
    """A quantised b in its own shape, with scales along ``dim`` of its matrices, that dimension last; MX has it so."""
    data, scale = x.data, x.scale_inv
    if dim == 0 and scheme.granularity is not ScalingGranularity.MX_BLOCKWISE:
        return GroupedOperand(data.mT, scale.mT if scale.dim() else scale)
    return GroupedOperand(data, scale)


# --- the three products ---------------------------------------------------------------------------------------------


class How(NamedTuple):
    """How programs share the work; see `GroupedGemmCall`."""

    num_cu: int | None
    schedule: str


def _present(x: GroupedOperand | None) -> GroupedOperand:
    if x is None:
        raise RuntimeError("a product was asked for whose operands were not quantised")
    return x


def forward_call(
    a: GroupedOperand | None, b: GroupedOperand | None, scheme: Scheme, layout: Layout, out_dtype: torch.dtype,
    out_rows: int, how: How,
) -> GroupedGemmFp8Call:  # fmt: skip
    """C = A B, without bias."""
    scales = scheme.granularity, scheme.block_size
    return GroupedGemmFp8Call(
        _present(a), _present(b), None, layout.groups, *scales, out_dtype, layout.a_idx, layout.out_idx, out_rows, *how
    )


def dgrad_call(
    gradient: GroupedOperand | None, b: GroupedOperand | None, scheme: Scheme, layout: Layout, out_dtype: torch.dtype,
    rows: int, how: How,
) -> GroupedGemmFp8Call:  # fmt: skip
    """G B^T for the ``rows`` of groups, S: dA, or with ``a_idx`` its terms in float32."""
    scales = scheme.granularity, scheme.block_size
    out_dtype = out_dtype if layout.a_idx is None else torch.float32
    return GroupedGemmFp8Call(
        _present(gradient), _present(b), None, layout.groups, *scales, out_dtype, layout.out_idx, None, rows, *how,
        "dgrad",
    )  # fmt: skip


def wgrad_call(
    gradient: GroupedOperand | None, a: GroupedOperand | None, scheme: Scheme, layout: Layout, out_dtype: torch.dtype,
    out: torch.Tensor | None, how: How,
) -> GroupedWgradFp8Call:  # fmt: skip
    """dB of each group in the storage of b: A^T G [K,N], or G^T A [N,K]; added to ``out`` where given."""
    x, y = _present(a), _present(gradient)
    if scheme.trans_b:
        x, y = y, x
    return GroupedWgradFp8Call(x, y, layout.offs_padded, scheme.granularity, scheme.block_size, out_dtype, out, *how)
