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
from turbo_core.launch import ALWAYS, Launch
from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.triton.gemm_fp8 import Scales, plan_fp8
from turbo_gemm.triton.gemm_fp8_tiles import FP8_TABLE, fp8_lds_bytes
from turbo_gemm.triton.gemm_mx import plan_mx
from turbo_gemm.triton.gemm_pack import plan_packing
from turbo_gemm.triton.gemm_tiles import Tile

__all__ = ["Fp8Record", "fp8_configs", "mx_configs"]


@dataclass(frozen=True)
class Fp8Record(TritonKernel):
    """One compilation; ``lds_estimate`` is what the table's model reckons the launch takes of LDS, at most."""

    lds_estimate: int


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
_BLOCK_SIZES = {128: (128, 256), 64: (64,), 32: (32, 100)}  # by the step along K: those that such a row is chosen for


def fp8_configs(arch: str, *, full: bool) -> Iterator[Fp8Record]:
    """FP8 GEMM and packing for `arch`."""
    for (target, kind), rows in FP8_TABLE.items():
        if target != arch or not kind.startswith("fp8"):
            continue
        for tile in rows:
            for form in _forms(tile, full):
                if kind == "fp8":
                    yield _fp8(tile, arch, form, "rowwise", Scales(ScalingGranularity.ROWWISE, 0))
                    continue
                for size in _BLOCK_SIZES[tile.block_k] if full else _BLOCK_SIZES[tile.block_k][:1]:
                    for a_tiles, b_tiles in ((False, True), (False, False), (True, False))[: 3 if full else 2]:
                        name = f"block {size} {'2d' if a_tiles else '1d'}{'2d' if b_tiles else '1d'}"
                        scales = Scales(ScalingGranularity.BLOCKWISE, size, a_tiles, b_tiles)
                        yield _fp8(tile, arch, form, name, scales)
    for name, shape, strides in (
        ("transposed", (4096, 4096), (1, 4096)),
        ("padded", (4096, 4095), (4095, 1)),
        ("strided", (4096, 4096), (8192, 2)),
        ("wide", (4096, 4096), (2**24, 1)),
    ):
        x = torch.empty_strided(shape, strides, dtype=torch.uint8, device="meta")
        packing = plan_packing(x)
        if packing is not None:
            packed = torch.empty(shape[0], packing.padded, dtype=torch.uint8, device="meta")
            yield _record(f"pack {name}", arch, packing.plan.as_launch(x, packed), arch_facts(arch).lds_bytes)


def mx_configs(arch: str, *, full: bool) -> Iterator[Fp8Record]:
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


def _c(form: _Form, M: int, N: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    stride = form.c_stride or -(-N // 16) * 16
    out = torch.empty_strided((M, N), (stride, 1), dtype=form.out_dtype, device="meta")
    return out, _meta(N) if form.bias else None


def _fp8(tile: Tile, arch: str, form: _Form, name: str, scales: Scales) -> Fp8Record:
    facts = arch_facts(arch)
    M, N, K = _sizes(form)
    fnuz = "fnuz" if facts.fp8_fnuz else ""
    e4m3: torch.dtype = getattr(torch, f"float8_e4m3{fnuz or 'fn'}")
    types = (e4m3, getattr(torch, f"float8_e5m2{fnuz}"))
    a, b = _meta(M, K, dtype=types[form.types[0]]), _meta(N, K, dtype=types[form.types[1]])
    blocks = -(-K // scales.block_size) if scales.block_size else 1
    a_scale = _meta(-(-M // scales.block_size) if scales.a_tiles else M, blocks)
    b_scale = _meta(-(-N // scales.block_size) if scales.b_tiles else N, blocks)
    out, bias = _c(form, M, N)
    plan = plan_fp8(
        a, a_scale, b, b_scale, False, True, scales, form.out_dtype, bias, out, form.accumulate, tile, facts
    )
    launch = plan.product.as_launch(a, b, out, bias, a_scale, b_scale)
    estimate = fp8_lds_bytes(tile, arch, "fp8", form.out_dtype.itemsize)
    return _record(f"fp8 {tile.name} {name} {form.name}", arch, launch, estimate)


def _mx(tile: Tile, arch: str, form: _Form, kind: str) -> Fp8Record:
    M, N, K = _sizes(form)
    K = K // 128 * 128
    format_a, format_b = ("e2m1", "e2m1") if kind == "mxfp4" else (("e4m3", "e5m2")[i] for i in form.types)
    width = K // 2 if kind == "mxfp4" else K
    a, b = _meta(M, width, dtype=torch.uint8), _meta(N, width, dtype=torch.uint8)
    a_scale, b_scale = _meta(M, K // 32, dtype=torch.uint8), _meta(N, K // 32, dtype=torch.uint8)
    out, bias = _c(form, M, N)
    plan = plan_mx(
        a, a_scale, b, b_scale, format_a, format_b, form.out_dtype, bias, out, form.accumulate, tile, arch_facts(arch)
    )
    launch = plan.product.as_launch(a, b, out, bias, a_scale, b_scale)
    estimate = fp8_lds_bytes(tile, arch, kind, form.out_dtype.itemsize)
    return _record(f"{kind} {tile.name} {format_a}x{format_b} {form.name}", arch, launch, estimate)


def _record(name: str, arch: str, launch: Launch, lds_estimate: int) -> Fp8Record:
    found = launch.signature()
    return Fp8Record(
        name, arch, launch.kernel, dict(found.types), dict(found.constants), dict(found.attributes),
        {**launch.options, **ALWAYS}, lds_estimate,
    )  # fmt: skip
