# SPDX-License-Identifier: MIT
"""What the audit compiles of the FP8 and MX GEMMs: every row of their tile table, planned as a call would be.

Operands are tensors on the meta device; the launchers' own plans say what is launched. ``full=False`` keeps a few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from turbo_core.audit import TritonKernel
from turbo_core.device import arch_facts
from turbo_core.launch import Launch
from turbo_core.low_precision import MX_BLOCK_SIZE, ScalingGranularity
from turbo_gemm.calls import GemmFp8Call, Operand
from turbo_gemm.triton import gemm_fp8
from turbo_gemm.triton.gemm_fp8_tiles import FP8_TABLE, fp8_lds_bytes
from turbo_gemm.triton.gemm_launch import pack_rows
from turbo_gemm.triton.gemm_tiles import Tile

__all__ = ["GemmRecord", "fp8_configs", "mx_configs", "record_of"]


@dataclass(frozen=True)
class GemmRecord(TritonKernel):
    """One compilation; ``lds_estimate`` is what the table's model reckons the launch takes of LDS, at most."""

    lds_estimate: int


def record_of(name: str, arch: str, launch: Launch, lds_estimate: int) -> GemmRecord:
    """The launch as the audit takes it."""
    found = launch.signature()
    types, constants, attributes = found.types, found.constants, found.attributes
    return GemmRecord(name, arch, launch.kernel, types, constants, attributes, launch.all_options(), lds_estimate)


@dataclass(frozen=True)
class _Form:
    """How a launch differs from the plain one: edges, epilogue, C's layout, operands' types (0: e4m3, 1: e5m2)."""

    name: str
    edges: bool = False
    bias: bool = False
    accumulate: bool = False
    out_dtype: torch.dtype = torch.bfloat16
    c_stride: int = 0  # default: aligned
    types: tuple[int, int] = (0, 0)


_QUICK = (
    _Form("plain"),
    _Form("edges+bias e5m2xe4m3", edges=True, bias=True, types=(1, 0)),
    _Form("edges+accumulate float32", edges=True, accumulate=True, out_dtype=torch.float32, c_stride=4099),
    _Form("accumulate float32", accumulate=True, out_dtype=torch.float32),
)
_FULL = (
    *_QUICK,
    _Form("bias e4m3xe5m2", bias=True, types=(0, 1)),
    _Form("e5m2xe5m2", types=(1, 1)),
    _Form("float16", out_dtype=torch.float16),
    _Form("float32 out", out_dtype=torch.float32),
    _Form("accumulate", accumulate=True),
    _Form("edges", edges=True),
    _Form("edges+bias+accumulate", edges=True, bias=True, accumulate=True, out_dtype=torch.float32, c_stride=4099),
    _Form("bias+accumulate float32", bias=True, accumulate=True, out_dtype=torch.float32),
    _Form("unaligned C", c_stride=4099),
    _Form("wide+edges", edges=True, c_stride=2**23),
)
_SCALES = ((False, True), (False, False), (True, False))  # of tiles, a and b; in the short form the first two in turn
_BLOCK_SIZES = {128: (128, 256), 64: (64,), 32: (32, 100)}  # by the step along K: those that such a row is chosen for


def fp8_configs(arch: str, *, full: bool) -> Iterator[GemmRecord]:
    """FP8 GEMM and packing for `arch`."""
    for (target, kind), rows in FP8_TABLE.items():
        if target != arch or not kind.startswith("fp8"):
            continue
        for tile in rows:
            for index, form in enumerate(_forms(tile, full)):
                if kind == "fp8":
                    yield _fp8(tile, arch, form, "rowwise", 0, False, False)
                    continue
                for size in _BLOCK_SIZES[tile.block_k] if full else _BLOCK_SIZES[tile.block_k][:1]:
                    for a_tiles, b_tiles in _SCALES if full else _SCALES[index % 2 :][:1]:
                        name = f"block {size} {'2d' if a_tiles else '1d'}{'2d' if b_tiles else '1d'}"
                        yield _fp8(tile, arch, form, name, size, a_tiles, b_tiles)
    for name, shape, strides in (
        ("transposed", (4096, 4096), (1, 4096)),
        ("padded", (4096, 4095), (4095, 1)),
        ("strided", (4096, 4096), (8192, 2)),
        ("wide", (4096, 4096), (2**24, 1)),
    ):
        x = torch.empty_strided(shape, strides, dtype=torch.uint8, device="meta")
        for launch in pack_rows(x)[1]:
            yield record_of(f"pack {name}", arch, launch, arch_facts(arch).lds_bytes)


def mx_configs(arch: str, *, full: bool) -> Iterator[GemmRecord]:
    """MX GEMM for `arch`."""
    for (target, kind), rows in FP8_TABLE.items():
        if target == arch and kind.startswith("mx"):
            for tile in rows:
                for form in _forms(tile, full):
                    yield _mx(tile, arch, form, kind)


def _forms(tile: Tile, full: bool) -> list[_Form]:
    """What the launcher may give to this row: the other side of Tile.needs."""
    forms = [form for form in (_FULL if full else _QUICK) if tile.needs == "any" or not form.c_stride]
    if tile.needs != "any":
        forms = [form for form in forms if not (form.bias and form.accumulate)]
    return [form for form in forms if tile.needs != "whole" or not form.edges]


def _sizes(form: _Form) -> tuple[int, int, int]:
    return (4090, 4093, 4112) if form.edges else (4096, 4096, 4096)


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _record(
    name: str, tile: Tile, arch: str, form: _Form, kind: str, a: Operand, b: Operand, granularity: ScalingGranularity,
    block_size: int,
) -> GemmRecord:  # fmt: skip
    """The product's launch, which comes after those that pack its operands."""
    M, N = a.data.shape[0], b.data.shape[0]
    stride = form.c_stride or -(-N // 16) * 16
    c = torch.empty_strided((M, N), (stride, 1), dtype=form.out_dtype, device="meta")
    bias = _meta(N) if form.bias else None
    call = GemmFp8Call(a, b, bias, granularity, block_size, form.out_dtype, c if form.accumulate else None)
    launch = gemm_fp8.plan(call, arch_facts(arch), tile, c)[1][-1]
    estimate = fp8_lds_bytes(tile, arch, kind, form.out_dtype.itemsize)
    return record_of(f"{kind} {tile.name} {name} {form.name}", arch, launch, estimate)


def _fp8(tile: Tile, arch: str, form: _Form, name: str, block: int, a_tiles: bool, b_tiles: bool) -> GemmRecord:
    """block: size of the blocks of BLOCKWISE, 0: ROWWISE."""
    M, N, K = _sizes(form)
    fnuz = "fnuz" if arch_facts(arch).fp8_fnuz else ""
    e4m3: torch.dtype = getattr(torch, f"float8_e4m3{fnuz or 'fn'}")
    types = (e4m3, getattr(torch, f"float8_e5m2{fnuz}"))
    a, b = (
        Operand(
            _meta(rows, K, dtype=types[form.types[i]]),
            _meta(-(-rows // block) if tiles else rows, -(-K // block) if block else 1),
            i == 1,
            tiles,
        )
        for i, (rows, tiles) in enumerate(((M, a_tiles), (N, b_tiles)))
    )
    granularity = ScalingGranularity.BLOCKWISE if block else ScalingGranularity.ROWWISE
    return _record(name, tile, arch, form, "fp8", a, b, granularity, block)


def _mx(tile: Tile, arch: str, form: _Form, kind: str) -> GemmRecord:
    M, N, K = _sizes(form)
    K = K // 128 * 128
    kinds = ("e2m1", "e2m1") if kind == "mxfp4" else tuple(("e4m3", "e5m2")[i] for i in form.types)
    types = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.uint8}
    a, b = (
        Operand(
            _meta(rows, K // 2 if kind == "mxfp4" else K, dtype=types[kinds[i]]),
            _meta(rows, K // 32, dtype=torch.uint8),
            i == 1,
        )
        for i, rows in enumerate((M, N))
    )
    name = "x".join(kinds)
    return _record(name, tile, arch, form, kind, a, b, ScalingGranularity.MX_BLOCKWISE, MX_BLOCK_SIZE)
