# SPDX-License-Identifier: MIT
"""What the audit (``python -m turbo_core audit``) compiles: every row of the tile tables in every form of its launch.

``full=False`` keeps, of each row, one layout each of the plain, masked, biased and accumulating forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from turbo_core.audit import TritonKernel
from turbo_core.device import arch_facts
from turbo_gemm.calls import GemmCall
from turbo_gemm.triton import gemm
from turbo_gemm.triton.gemm_fp8_audit import GemmRecord, fp8_configs, mx_configs, record_of
from turbo_gemm.triton.gemm_tiles import TABLE, Tile, lds_bytes

__all__ = ["audit_configs", "kernels", "tile_records"]

LAYOUTS = ("NN", "NT", "TN", "TT")  # T: A is stored as [K, M], B as [N, K]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


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
    """The launch of such a call, planned from tensors on the meta device."""
    c_dtype = form.c_dtype or pair[0]
    M, N = (4090, 4093) if form.mask_mn else (4096, 4096)
    K = 4090 if form.mask_k else 4096
    trans_a, trans_b = layout[0] == "T", layout[1] == "T"
    a = _matrix(M, K, pair[0], trans_a, form)
    b = _matrix(K, N, pair[1], trans_b, form)
    c = _matrix(M, N, c_dtype, False, form)
    bias = _matrix(1, N, pair[0], False, form)[0] if form.bias else None
    call = GemmCall(a, b, bias, trans_a, trans_b, c.dtype, c if form.accumulate else None)
    _, (launch,) = gemm.plan(call, arch_facts(arch), tile, c)
    name = f"{tile.name} {pair[0]}x{pair[1]}->{c_dtype} {layout} {form.name}"
    return record_of(name, arch, launch, lds_bytes(tile, arch, operand_bytes, c.element_size()))


def _matrix(rows: int, cols: int, dtype: str, transposed: bool, form: _Form) -> torch.Tensor:
    """As it is stored, with rows apart as the form asks."""
    rows, cols = (cols, rows) if transposed else (rows, cols)
    stride = 2**27 if form.wide else 4112 if form.aligned else 4099
    whole = torch.empty_strided((2**29,), (1,), dtype=_DTYPES[dtype], device="meta")
    return whole.as_strided((rows, cols), (stride, 1), 0 if form.aligned else 1)
