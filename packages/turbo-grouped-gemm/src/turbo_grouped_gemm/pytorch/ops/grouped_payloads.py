# SPDX-License-Identifier: MIT
"""Grouped products of operands that are quantised already, as payloads and scales; constants to autograd."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import BLOCK_SIZE, MX_BLOCK_SIZE, MX_PADDING, ScalingGranularity, is_fp8_dtype
from turbo_gemm.developer import DTYPES, RowGroups, mx_format
from turbo_grouped_gemm.calls import GroupedGemmFp8Call, GroupedOperand, GroupedWgradFp8Call, Groups
from turbo_grouped_gemm.pytorch.ops.grouped_checks import check_groups, check_schedule, what_is
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_autograd import multiply, multiply_rows
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_quantize import columns_of_codes
from turbo_quant.developer import fp4_dtype, padded_groups, scale_dtype

__all__ = ["contract_grouped_payloads", "multiply_grouped_payloads"]

TENSORWISE, ROWWISE = ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE
BLOCKWISE, MX_BLOCKWISE = ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE
_MX_PAYLOADS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, fp4_dtype())
_BLOCK_SIZES = {BLOCKWISE: BLOCK_SIZE, MX_BLOCKWISE: MX_BLOCK_SIZE}


def _check(op: str, out_dtype: Any, granularity: Any) -> None:
    if not isinstance(granularity, ScalingGranularity):
        raise UnsupportedError(f"{op}: granularity={granularity!r}; a ScalingGranularity is accepted")
    if out_dtype not in DTYPES:
        raise UnsupportedError(f"{op}: out_dtype={out_dtype}; accepted are {', '.join(map(str, DTYPES))}")


def _check_payload(op: str, name: str, x: Any, dims: int, granularity: ScalingGranularity) -> None:
    mx = granularity is MX_BLOCKWISE
    fits = isinstance(x, torch.Tensor) and x.dim() == dims
    if not fits or not (x.dtype in _MX_PAYLOADS if mx else is_fp8_dtype(x.dtype)):
        types = ", ".join(dict.fromkeys(map(str, _MX_PAYLOADS))) if mx else "an FP8 type"
        raise UnsupportedError(f"{op}: {name} is {what_is(x)}; a tensor of {dims} dimensions of {types} is accepted")


def _scale(op: str, name: str, scale: Any, shape: list[int], granularity: ScalingGranularity, like: Any) -> Any:
    """The scales of payload ``name``, where they have its ``shape``; TENSORWISE: one."""
    mx = granularity is MX_BLOCKWISE
    dtypes = (scale_dtype(), torch.uint8) if mx else (torch.float32,)
    shapes = [[], [1]] if granularity is TENSORWISE else [shape]
    fits = isinstance(scale, torch.Tensor) and list(scale.shape) in shapes and scale.device == like.device
    if not fits or scale.dtype not in dtypes:
        accepted = f"{' or '.join(map(str, shapes))} in {' or '.join(map(str, dict.fromkeys(dtypes)))}"
        raise UnsupportedError(f"{op}: {name} is {what_is(scale)}; {accepted} on {like.device} is accepted")
    if granularity is TENSORWISE:
        return scale.detach().reshape(())
    return scale.detach().view(scale_dtype()) if mx else scale.detach()


def _blocks(size: int) -> int:
    return -(-size // BLOCK_SIZE)


def _packed(x: torch.Tensor, granularity: ScalingGranularity) -> int:
    """Values an element of a payload."""
    return 2 if granularity is MX_BLOCKWISE and mx_format(x) == "e2m1" else 1


def multiply_grouped_payloads(
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None,
    trans_b: bool,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    *,
    num_cu: int | None = None,
    schedule: str = "static",
) -> torch.Tensor:
    """C[r] = a[r] op(b[g]) for each row r of group g, of values times their scales; sums in float32.

    Args:
        a: FP8 [R,K]; MX: [R,Kp], of e2m1 [R,Kp/2], K padded to 128.
        b: FP8 [G,N,K] with ``trans_b``, or [G,K,N]; MX: [G,N,Kp], of e2m1 [G,N,Kp/2], with ``trans_b``.
        a_scale_inv, b_scale_inv: what values are multiplied by. TENSORWISE: of one element. ROWWISE: [R,1], and the
            shape of b with 1 in the place of K. BLOCKWISE: [R,ceil(K/128)], and of tiles: G and both sizes so divided.
            MX: E8M0 or uint8 [R,Kp/32], [G,N,Kp/32].
        group_lens, group_offs, num_cu, schedule: as for `turbo_grouped_gemm.grouped_gemm`.
        out_dtype: bfloat16, float16 or float32.

    Returns:
        C [R,N], contiguous; rows of no group are zeros.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
    """
    op, trans_b = "multiply_grouped_payloads", bool(trans_b)
    _check(op, out_dtype, granularity)
    _check_payload(op, "a", a, 2, granularity)
    _check_payload(op, "b", b, 3, granularity)
    mx, k_last = granularity is MX_BLOCKWISE, trans_b
    if mx and not trans_b:
        raise UnsupportedError(f"{op}: trans_b={trans_b} with MX_BLOCKWISE; True is accepted")
    (rows, k), (groups, n, k_b) = a.shape, (b if k_last else b.mT).shape
    fp4 = _packed(a, granularity) == 2
    if k != k_b or fp4 is not (_packed(b, granularity) == 2) or a.device != b.device:
        raise UnsupportedError(f"{op}: a is {what_is(a)} and b {what_is(b)}, trans_b={trans_b}; one K, on one device")
    check_groups(op, group_lens, group_offs, groups, a.device, False)
    check_schedule(op, num_cu, schedule)
    values = k * _packed(a, granularity)
    if mx and values % MX_PADDING:
        raise UnsupportedError(f"{op}: a has {values} values a row; a multiple of {MX_PADDING} is accepted")
    along = {ROWWISE: 1, BLOCKWISE: _blocks(k), MX_BLOCKWISE: values // MX_BLOCK_SIZE}.get(granularity, 1)
    of_b = [groups, _blocks(n) if granularity is BLOCKWISE else n, along]
    a_scale = _scale(op, "a_scale_inv", a_scale_inv, [rows, along], granularity, a)
    b_scale = _scale(op, "b_scale_inv", b_scale_inv, of_b if k_last else [of_b[0], of_b[2], of_b[1]], granularity, b)
    if not k_last:
        b, b_scale = b.mT, b_scale.mT if b_scale.dim() else b_scale
    call = GroupedGemmFp8Call(
        GroupedOperand(a.detach(), a_scale), GroupedOperand(b.detach(), b_scale), None, Groups(group_lens, group_offs),
        granularity, _BLOCK_SIZES.get(granularity, 0), out_dtype, None, None, rows, num_cu, schedule,
    )  # fmt: skip
    return multiply_rows(call, fp4)


def contract_grouped_payloads(
    x: torch.Tensor,
    x_scale_inv: torch.Tensor,
    y: torch.Tensor,
    y_scale_inv: torch.Tensor,
    group_lens: torch.Tensor,
    group_offs: torch.Tensor | None,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    *,
    num_cu: int | None = None,
    schedule: str = "static",
) -> torch.Tensor:
    """C[g] = X_g^T Y_g over the rows of each group, of values times their scales; zeros for a group without rows.

    Args:
        x, y: FP8 [R,X] and [R,Y]; BLOCKWISE [P,X] and [P,Y], P rows of padded groups: each begins at a multiple of 128
            and is filled up with zeros. MX: [X,P] and [Y,P] of groups padded likewise, of e2m1 half as many columns.
        x_scale_inv, y_scale_inv: what values are multiplied by. TENSORWISE: of one element. ROWWISE: [1,X] and [1,Y].
            BLOCKWISE: [ceil(P/128),X], likewise Y. MX: E8M0 or uint8 [X,P/32], likewise Y.
        group_lens, group_offs: [G] and [G+1], of the padded groups where there are such.
        out_dtype, num_cu, schedule: as for `multiply_grouped_payloads`.

    Returns:
        C [G,X,Y], contiguous.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
    """
    op = "contract_grouped_payloads"
    _check(op, out_dtype, granularity)
    _check_payload(op, "x", x, 2, granularity)
    _check_payload(op, "y", y, 2, granularity)
    mx = granularity is MX_BLOCKWISE
    fp4, dim = _packed(x, granularity) == 2, 1 if mx else 0
    if x.shape[dim] != y.shape[dim] or fp4 is not (_packed(y, granularity) == 2) or x.device != y.device:
        raise UnsupportedError(f"{op}: x is {what_is(x)} and y {what_is(y)}; as many rows of groups, on one device")
    groups = group_lens.shape[0] if isinstance(group_lens, torch.Tensor) and group_lens.dim() else 0
    check_groups(op, group_lens, group_offs, groups, x.device, False)
    check_schedule(op, num_cu, schedule)
    rows = x.shape[dim] * _packed(x, granularity)
    if mx and rows % MX_PADDING:
        raise UnsupportedError(f"{op}: x has {rows} values a row; a multiple of {MX_PADDING} is accepted")
    operands = []
    tight = RowGroups(*padded_groups(group_lens, group_offs, rows), None if group_offs is None else group_lens)
    for name, payload, scale in (("x", x, x_scale_inv), ("y", y, y_scale_inv)):
        size = payload.shape[1 - dim]
        shape = {ROWWISE: [1, size], BLOCKWISE: [_blocks(rows), size], MX_BLOCKWISE: [size, rows // MX_BLOCK_SIZE]}
        scale = _scale(op, f"{name}_scale_inv", scale, shape.get(granularity, []), granularity, payload)
        data = payload.detach()
        if granularity is BLOCKWISE:
            whole = rows // BLOCK_SIZE  # a group never ends in a part of a block
            data, scale = data[: whole * BLOCK_SIZE].t(), scale[:whole].t()
        elif not mx:
            data = columns_of_codes(data, tight)
            scale = scale.expand(groups, size) if scale.dim() else scale
        operands.append(GroupedOperand(data, scale))
    first, second = operands
    block_size = _BLOCK_SIZES.get(granularity, 0)
    call = GroupedWgradFp8Call(
        first, second, tight.offs_padded, granularity, block_size, out_dtype, None, num_cu, schedule
    )
    result: Any = multiply(call, fp4)
    c: torch.Tensor = result
    return c
