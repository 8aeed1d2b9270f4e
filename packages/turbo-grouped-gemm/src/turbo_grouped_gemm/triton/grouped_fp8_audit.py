# SPDX-License-Identifier: MIT
"""What the audit compiles of the grouped FP8 and MX kernels: every row of their tables, planned as a call would be.

Operands are tensors on the meta device; the launchers' own plans say what is launched. ``full=False`` keeps a few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from turbo_core.device import arch_facts
from turbo_core.low_precision import MX_BLOCK_SIZE, ScalingGranularity
from turbo_gemm.developer import GemmRecord, Tile, fp8_lds_bytes, pack_rows, record_of
from turbo_grouped_gemm.calls import GroupedGemmFp8Call, GroupedOperand, GroupedWgradFp8Call, Groups
from turbo_grouped_gemm.triton import grouped_gemm_fp8, grouped_wgrad_fp8
from turbo_grouped_gemm.triton.grouped_fp8_tiles import GEMM_TABLE, WGRAD_TABLE

__all__ = ["fp8_kernels"]

_G, _ROWS = 32, 8192


@dataclass(frozen=True)
class _Form:
    """How a launch differs from the plain one; types of the operands: 0 e4m3, 1 e5m2. C's stride 0: as it comes."""

    name: str
    edges: bool = False
    bias: bool = False
    gather: bool = False
    scatter: bool = False
    offs: bool = False
    steal: bool = False
    accumulate: bool = False
    out_dtype: torch.dtype = torch.bfloat16
    c_stride: int = 0
    types: tuple[int, int] = (0, 0)


_GEMM_FORMS = (
    _Form("plain", offs=True),
    _Form("edges+bias gathered scattered e5m2xe4m3", edges=True, bias=True, gather=True, scatter=True, types=(1, 0)),
    _Form("work_steal", steal=True),
    _Form("gathered", gather=True, offs=True),
    _Form("scattered float32", scatter=True, out_dtype=torch.float32),
    _Form("bias e5m2xe5m2 float16", bias=True, types=(1, 1), out_dtype=torch.float16),
    _Form("edges+bias float32", edges=True, bias=True, offs=True, out_dtype=torch.float32),
    _Form("unaligned edges+bias float32", edges=True, bias=True, out_dtype=torch.float32, c_stride=4099),
    _Form("wide+edges gathered", edges=True, gather=True, bias=True, offs=True, steal=True, c_stride=2**23),
)
_WGRAD_FORMS = (
    _Form("edges e5m2xe4m3", edges=True, types=(1, 0)),
    _Form("edges+accumulate float32", edges=True, accumulate=True, out_dtype=torch.float32),
    _Form("unaligned edges+accumulate float32", edges=True, accumulate=True, out_dtype=torch.float32, c_stride=4099),
    _Form("plain"),
    _Form("work_steal", steal=True),
    _Form("float32 out e5m2xe5m2", types=(1, 1), out_dtype=torch.float32),
    _Form("accumulate float32", accumulate=True, out_dtype=torch.float32),
    _Form("accumulate", accumulate=True),
    _Form("edges+accumulate work_steal", edges=True, accumulate=True, steal=True),
    _Form("unaligned C", c_stride=4099),
    _Form("wide+edges", edges=True, accumulate=True, c_stride=2**23),
)
_FEW = 2  # forms of the first row of each kind; the other rows are smaller


def fp8_kernels(arch: str, full: bool) -> Iterator[GemmRecord]:
    """All launches for ``arch``, with the packing of a batch; otherwise two of the largest row of each kind."""
    for (target, kind), rows in GEMM_TABLE.items():
        for tile, form in _listed(rows, _GEMM_FORMS, full) if target == arch else ():
            yield _gemm_record(tile, arch, form, kind)
    for (target, kind), rows in WGRAD_TABLE.items():
        for tile, form in _listed(rows, _WGRAD_FORMS, full) if target == arch else ():
            yield _wgrad_record(tile, arch, form, kind)
    (packing,) = pack_rows(_meta(_G, 4096, 4096, dtype=torch.uint8).mT)[1]
    yield record_of("pack batch", arch, packing, arch_facts(arch).lds_bytes)


def _listed(rows: tuple[Tile, ...], forms: tuple[_Form, ...], full: bool) -> Iterator[tuple[Tile, _Form]]:
    """Rows with what the launcher may give to them: the other side of Tile.needs."""
    for tile in rows if full else rows[:1]:
        taken = [form for form in forms if tile.needs == "any" or not form.c_stride]
        taken = [form for form in taken if tile.needs != "whole" or not form.edges]
        for form in taken if full else taken[:_FEW]:
            yield tile, form


def _operand(
    arch: str, kind: str, of_type: int, shape: tuple[int, ...], scale: tuple[int, ...] | None
) -> GroupedOperand:
    """Payload and scales; scale None: those of MX."""
    if kind.startswith("mx"):
        *lead, K = shape
        dtype = torch.uint8 if kind == "mxfp4" else (torch.float8_e4m3fn, torch.float8_e5m2)[of_type]
        data = _meta(*lead, K // 2 if kind == "mxfp4" else K, dtype=dtype)
        return GroupedOperand(data, _meta(*lead, K // MX_BLOCK_SIZE, dtype=torch.uint8))
    fnuz = "fnuz" if arch_facts(arch).fp8_fnuz else ""
    dtype = getattr(torch, ("float8_e4m3" + (fnuz or "fn"), "float8_e5m2" + fnuz)[of_type])
    return GroupedOperand(_meta(*shape, dtype=dtype), _meta(*(scale or ())))


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _granularity(kind: str) -> tuple[ScalingGranularity, int]:
    if kind.startswith("mx"):
        return ScalingGranularity.MX_BLOCKWISE, MX_BLOCK_SIZE
    return (ScalingGranularity.ROWWISE, 0) if kind == "fp8" else (ScalingGranularity.BLOCKWISE, 128)


def _gemm_record(tile: Tile, arch: str, form: _Form, kind: str) -> GemmRecord:
    """The product's launch, which comes after those that pack its operands."""
    N, K = (4093, 4096 if kind.startswith("mx") else 4112) if form.edges else (4096, 4096)
    blocks = -(-K // 128)
    blockwise = kind.startswith("fp8 ")
    a = _operand(arch, kind, form.types[0], (_ROWS, K), (_ROWS, blocks) if blockwise else (_ROWS, 1))
    if blockwise:  # as quantisation writes them: those of a block side by side
        a = a._replace(scale_inv=_meta(blocks, _ROWS).t())
    b_scale = (_G, -(-N // 128), blocks) if blockwise else (_G, N, 1)
    b = _operand(arch, kind, form.types[1], (_G, N, K), b_scale)
    stride = form.c_stride or -(-N // 16) * 16
    c = torch.empty_strided((_ROWS, N), (stride, 1), dtype=form.out_dtype, device="meta")
    index = _meta(_ROWS, dtype=torch.int64)
    granularity, block_size = _granularity(kind)
    call = GroupedGemmFp8Call(
        a, b, _meta(_G, N) if form.bias else None,
        Groups(_meta(_G, dtype=torch.int64), _meta(_G + 1, dtype=torch.int64) if form.offs else None),
        granularity, block_size, form.out_dtype, index if form.gather else None, index if form.scatter else None, _ROWS,
        schedule="work_steal" if form.steal else "static",
    )  # fmt: skip
    launch = grouped_gemm_fp8.plan(call, arch_facts(arch), tile, c)[1][-1]
    estimate = fp8_lds_bytes(tile, arch, kind, form.out_dtype.itemsize)
    return record_of(f"grouped {kind} {tile.name} {form.name}", arch, launch, estimate)


def _wgrad_record(tile: Tile, arch: str, form: _Form, kind: str) -> GemmRecord:
    """Likewise for the gradient of B."""
    X, Y = (4090, 4093) if form.edges else (4096, 4096)
    operands = []
    for rows, of_type in ((X, form.types[0]), (Y, form.types[1])):
        operand = _operand(arch, kind, of_type, (rows, _ROWS), (_G, rows))
        if kind.startswith("fp8 "):
            operand = operand._replace(scale_inv=_meta(_ROWS // 128, rows).t())
        operands.append(operand)
    stride = form.c_stride or -(-Y // 16) * 16
    c = torch.empty_strided((_G, X, Y), (X * stride, stride, 1), dtype=form.out_dtype, device="meta")
    granularity, block_size = _granularity(kind)
    call = GroupedWgradFp8Call(
        *operands, _meta(_G + 1, dtype=torch.int64), granularity, block_size, form.out_dtype,
        c if form.accumulate else None, schedule="work_steal" if form.steal else "static",
    )  # fmt: skip
    launch = grouped_wgrad_fp8.plan(call, arch_facts(arch), tile, c)[1][-1]
    estimate = fp8_lds_bytes(tile, arch, kind, form.out_dtype.itemsize)
    return record_of(f"grouped wgrad {kind} {tile.name} {form.name}", arch, launch, estimate)
