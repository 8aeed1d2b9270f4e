# SPDX-License-Identifier: MIT
"""What the audit (``python -m turbo_core audit``) compiles: every row of the tile tables in every form of its launch.

``full=False`` keeps, of each row, one layout each of the plain, masked, biased and accumulating forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from turbo_core.audit import TritonKernel
from turbo_core.device import arch_facts
from turbo_gemm.triton.gemm_fp8_audit import fp8_configs, mx_configs
from turbo_gemm.triton.gemm_kernel import gemm_kernel
from turbo_gemm.triton.gemm_tiles import TABLE, Tile, group_rows, lds_bytes

__all__ = ["GemmRecord", "audit_configs", "kernels", "tile_records"]

LAYOUTS = ("NN", "NT", "TN", "TT")  # T: A is stored as [K, M], B as [N, K]
_POINTERS = {"bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32"}


@dataclass(frozen=True)
class GemmRecord(TritonKernel):
    """One compilation; ``lds_estimate`` is what the table's model reckons the launch takes of LDS, at most."""

    lds_estimate: int


@dataclass(frozen=True)
class _Form:
    """How a launch differs from the plain one: edges, epilogue, alignment."""

    name: str
    mask_mn: bool = False
    mask_k: bool = False
    bias: bool = False
    accumulate: bool = False
    c_dtype: str = ""  # default: A's
    aligned: bool = True
    wide: bool = False


_PLAIN = _Form("plain")
_QUICK = (
    _PLAIN,
    _Form("edges+bias", mask_mn=True, mask_k=True, bias=True),
    _Form("edges+accumulate", mask_mn=True, mask_k=True, accumulate=True, c_dtype="fp32"),
    _Form("unaligned+edges+bias", mask_mn=True, mask_k=True, bias=True, aligned=False),
)
_FULL = (
    *_QUICK,
    _Form("bias", bias=True),
    _Form("float32 out", c_dtype="fp32"),
    _Form("accumulate", accumulate=True),
    _Form("accumulate float32", accumulate=True, c_dtype="fp32"),
    _Form("edges m n", mask_mn=True),
    _Form("edges k", mask_k=True),
    _Form("unaligned", aligned=False),
    _Form("edges+bias+accumulate", mask_mn=True, mask_k=True, bias=True, accumulate=True, c_dtype="fp32"),
    _Form("wide+edges", mask_mn=True, mask_k=True, wide=True),
)


def kernels(arch: str, full: bool) -> Iterator[TritonKernel]:
    """The wheel's kernels, as the entry points ``turbo_core.audit`` want them listed."""
    yield from audit_configs(arch, full=full)
    yield from fp8_configs(arch, full=full)
    yield from mx_configs(arch, full=full)


def audit_configs(arch: str, *, full: bool = True, operand_bytes: int | None = None) -> Iterator[GemmRecord]:
    """Every launch form of every row of `arch` ("gfx942" or "gfx950"), of both operand sizes or one."""
    for (target, size), rows in TABLE.items():
        if target == arch and operand_bytes in (None, size):
            for tile in rows:
                yield from tile_records(tile, arch, size, full=full)


def tile_records(tile: Tile, arch: str, operand_bytes: int, *, full: bool = True) -> Iterator[GemmRecord]:
    """The launch forms of one row."""
    pairs: tuple[tuple[str, str], ...]
    if operand_bytes == 2:
        pairs = (("bf16", "bf16"), ("fp16", "fp16"))
    else:
        pairs = (("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "fp16"))
    if full:
        for pair in pairs:
            for layout, form in product(LAYOUTS, _FULL):
                if _launched(tile, layout, form):
                    yield _record(tile, arch, operand_bytes, pair, layout, form)
        return
    wanted = _FULL if tile.needs == "whole" else _QUICK
    forms = [form for form in wanted if _launched(tile, "NN", form)]
    for index, form in enumerate(forms):  # layouts and dtypes in turn
        yield _record(tile, arch, operand_bytes, pairs[index % len(pairs)], LAYOUTS[index % 3], form)


def _launched(tile: Tile, layout: str, form: _Form) -> bool:
    """Whether the launcher ever gives this form to this row: the other side of Tile.needs."""
    regular = layout != "TT" and form.aligned and not form.wide
    edges = form.mask_mn or form.mask_k
    return tile.needs == "any" or (regular and (tile.needs == "regular" or not edges))


def _record(tile: Tile, arch: str, operand_bytes: int, pair: tuple[str, str], layout: str, form: _Form) -> GemmRecord:
    c_dtype = form.c_dtype or pair[0]
    a_first, b_first = layout[0] == "T", layout[1] == "T"
    unit_stride = {
        "stride_am": a_first,
        "stride_ak": not a_first,
        "stride_bk": b_first,
        "stride_bn": not b_first,
        "stride_cm": False,
        "stride_cn": True,
        "stride_bias": True,
    }
    constexprs: dict[str, Any] = {
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "GROUP_M": group_rows(tile, arch_facts(arch)),
        "XCDS": arch_facts(arch).xcds,
        "A_T": False,
        "B_T": False,
        "DESC_AB": False,
        "DESC_C": False,
        "UPCAST": pair[0] != pair[1],
        "ACCUMULATE": form.accumulate,
        "MASK_MN": form.mask_mn,
        "MASK_K": form.mask_k,
        "WIDE": form.wide,
        "FLATTEN": tile.flatten,
        "SUBTILE": tile.subtile,
    }
    signature: dict[str, str] = {}
    for name in gemm_kernel.arg_names:
        if name in constexprs:
            signature[name] = "constexpr"
        elif name in unit_stride:
            signature[name] = "constexpr" if unit_stride[name] else "i32"
        else:
            signature[name] = "i32"
    signature["a"], signature["b"] = _POINTERS[pair[0]], _POINTERS[pair[1]]
    signature["c"] = _POINTERS[c_dtype]
    signature["bias"] = _POINTERS[pair[0]] if form.bias else "constexpr"
    if not form.bias:
        constexprs["bias"] = None
    constexprs.update({name: 1 for name, unit in unit_stride.items() if unit})
    attrs: dict[tuple[int, ...], list[list[Any]]] = {}
    if form.aligned:
        attrs = {
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(gemm_kernel.arg_names)
            if signature[name] != "constexpr"
            and not (form.mask_mn and name in ("M", "N"))
            and not (form.mask_k and name == "K")
        }
    options = dict(num_warps=tile.num_warps, num_stages=tile.num_stages, enable_fp_fusion=True, **dict(tile.options))
    name = f"{tile.name} {pair[0]}x{pair[1]}->{c_dtype} {layout} {form.name}"
    estimate = lds_bytes(tile, arch, operand_bytes, out_bytes=4 if c_dtype == "fp32" else 2)
    return GemmRecord(name, arch, gemm_kernel, signature, constexprs, attrs, options, estimate)
