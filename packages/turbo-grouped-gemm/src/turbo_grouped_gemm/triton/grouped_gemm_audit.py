# SPDX-License-Identifier: MIT
"""What the audit (``python -m turbo_core audit``) compiles of the 16- and 32-bit products: the rows of both tables.

Operands are tensors on the meta device; the launchers' own plans say what is launched. ``full=False`` keeps a few forms
of each row, ``full`` takes all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from turbo_core.audit import TritonKernel
from turbo_core.device import arch_facts
from turbo_gemm.developer import GemmRecord, Tile, lds_bytes, record_of
from turbo_grouped_gemm.calls import GroupedGemmCall, GroupedWgradCall, Groups
from turbo_grouped_gemm.triton import grouped_gemm, grouped_wgrad
from turbo_grouped_gemm.triton.grouped_tiles import GEMM_TABLE, WGRAD_TABLE

__all__ = ["gemm_configs", "kernels", "wgrad_configs"]

_ROWS = 32768
_PAIRS = {
    2: ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16)),
    4: ((torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.float16)),
}


class _Form(NamedTuple):
    """How a launch differs from the plain one.

    Attributes:
        columns, inner: N and K; X and Y of the gradient of B.
        trans_b, bias, scattered: of the product alone. accumulate: of the gradient of B alone.
        gathered: rows of A (of X and Y) are named.
        float_out: C is float32, else of A's dtype.
        aligned: addresses and rows are multiples of 16 bytes.
    """

    name: str
    columns: int = 4096
    inner: int = 4096
    groups: int = 8
    trans_b: bool = True
    bias: bool = False
    offs: bool = False
    gathered: bool = False
    scattered: bool = False
    steals: bool = False
    accumulate: bool = False
    float_out: bool = False
    aligned: bool = True
    wide: bool = False

    def regular(self, tile: Tile) -> bool:
        """See Tile.needs."""
        fits = self.columns % 16 == self.inner % 16 == 0 and self.columns >= max(tile.block_m, tile.block_n)
        return fits and self.aligned and not self.wide


_GEMM = (
    _Form("plain"),
    _Form("2880+bias+offs NN", 2880, 2880, 128, trans_b=False, bias=True, offs=True, steals=True),
    _Form("gathered+scattered+bias", groups=256, bias=True, gathered=True, scattered=True),
    _Form("4080+bias+offs NN", 4080, 4080, trans_b=False, bias=True, offs=True),
    _Form("edges+bias+offs", 4090, 4090, bias=True, offs=True),
    _Form("unaligned+edges+gathered NN", 4090, 4090, trans_b=False, gathered=True, aligned=False),
    _Form("NN", trans_b=False),
    _Form("1024 groups+bias", groups=1024, bias=True),
    _Form("1024 groups+offs+steals float32", groups=1024, offs=True, steals=True, float_out=True),
    _Form("2880", 2880, 2880),
    _Form("2880+bias float32 NN", 2880, 2880, trans_b=False, bias=True, float_out=True),
    _Form("gathered NN", trans_b=False, gathered=True),
    _Form("gathered+steals+offs", gathered=True, steals=True, offs=True),
    _Form("scattered+bias float32", scattered=True, bias=True, float_out=True),
    _Form("2880+gathered+scattered NN", 2880, 2880, 256, trans_b=False, gathered=True, scattered=True),
    _Form("4080 float32", 4080, 4080, float_out=True),
    _Form("edges NN", 4090, 4090, trans_b=False),
    _Form("narrow", 8, 8, bias=True),
    _Form("unaligned+edges+bias+scattered", 4090, 4090, bias=True, scattered=True, aligned=False),
    _Form("wide+edges+bias+offs", 4090, 4090, bias=True, offs=True, wide=True),
)
_WGRAD = (
    _Form("plain"),
    _Form("2880+accumulate float32+offs", 2880, 2880, 128, accumulate=True, float_out=True, offs=True, steals=True),
    _Form("gathered", groups=256, gathered=True),
    _Form("4080+accumulate", 4080, 4080, accumulate=True),
    _Form("edges+accumulate", 4090, 4090, accumulate=True),
    _Form("unaligned+edges+gathered+accumulate float32", 4090, 4090, 8, gathered=True, accumulate=True, float_out=True,
          aligned=False),
    _Form("accumulate float32", accumulate=True, float_out=True),
    _Form("accumulate", accumulate=True),
    _Form("float32+offs", offs=True, float_out=True),
    _Form("2880", 2880, 2880),
    _Form("1024 groups+offs+steals+accumulate float32", groups=1024, offs=True, steals=True, accumulate=True,
          float_out=True),
    _Form("2880+gathered+accumulate float32", 2880, 2880, gathered=True, accumulate=True, float_out=True),
    _Form("4080+gathered+accumulate float32", 4080, 4080, gathered=True, accumulate=True, float_out=True),
    _Form("edges+offs", 4090, 4090, offs=True),
    _Form("narrow", 8, 8),
    _Form("unaligned+edges+offs", 4090, 4090, offs=True, aligned=False),
    _Form("wide+edges+accumulate float32", 4090, 4090, accumulate=True, float_out=True, wide=True),
)  # fmt: skip


def kernels(arch: str, full: bool) -> Iterator[TritonKernel]:
    """The products' kernels, as the entry points ``turbo_core.audit`` want them listed."""
    yield from gemm_configs(arch, full=full)
    yield from wgrad_configs(arch, full=full)


def gemm_configs(arch: str, *, full: bool) -> Iterator[GemmRecord]:
    """`grouped_gemm_kernel` for `arch`, "gfx942" or "gfx950"."""
    for size in _PAIRS:
        for index, tile in enumerate(GEMM_TABLE[arch, size]):
            for form, (a, b) in _forms(tile, size, _GEMM, index, full):
                yield _gemm(tile, arch, size, form, a, b)


def wgrad_configs(arch: str, *, full: bool) -> Iterator[GemmRecord]:
    """Likewise `grouped_wgrad_kernel`."""
    for size in _PAIRS:
        for index, tile in enumerate(WGRAD_TABLE[arch, size]):
            for form, (a, b) in _forms(tile, size, _WGRAD, index, full):
                yield _wgrad(tile, arch, size, form, a, b)


def _forms(
    tile: Tile, size: int, forms: tuple[_Form, ...], index: int, full: bool
) -> list[tuple[_Form, tuple[torch.dtype, torch.dtype]]]:
    """The forms that the launcher gives to this row; of a short list three for the first row, for others two."""
    given = [form for form in forms if tile.needs == "any" or form.regular(tile)]
    pairs = _PAIRS[size]
    if full:
        return [(form, pair) for form in given for pair in pairs]
    count = 3 if index == 0 else 2
    chosen = [given[(index + step) % min(5, len(given))] for step in range(count)]
    return [(form, pairs[(index + step) % len(pairs)]) for step, form in enumerate(chosen)]


def _gemm(tile: Tile, arch: str, size: int, form: _Form, a_dtype: torch.dtype, b_dtype: torch.dtype) -> GemmRecord:
    N, K, G = form.columns, form.inner, form.groups
    out_dtype = torch.float32 if form.float_out else a_dtype
    call = GroupedGemmCall(
        _tensor(form, a_dtype, _ROWS, K),
        _tensor(form, b_dtype, G, *((N, K) if form.trans_b else (K, N))),
        _tensor(form, a_dtype, G, N) if form.bias else None,
        _groups(form),
        form.trans_b,
        out_dtype,
        _indices(_ROWS) if form.gathered else None,
        _indices(_ROWS) if form.scattered else None,
        _ROWS,
        schedule="work_steal" if form.steals else "static",
    )
    _, (launch,) = grouped_gemm.plan(call, arch_facts(arch), tile, _tensor(form, out_dtype, _ROWS, N))
    name = f"grouped gemm {tile.name} {_names(a_dtype, b_dtype)} {form.name}"
    return record_of(name, arch, launch, lds_bytes(tile, arch, size, out_dtype.itemsize))


def _wgrad(tile: Tile, arch: str, size: int, form: _Form, x_dtype: torch.dtype, y_dtype: torch.dtype) -> GemmRecord:
    X, Y = form.columns, form.inner
    out_dtype = torch.float32 if form.float_out else x_dtype
    c = _tensor(form, out_dtype, form.groups, X, Y)
    call = GroupedWgradCall(
        _tensor(form, x_dtype, _ROWS, X),
        _tensor(form, y_dtype, _ROWS, Y),
        _groups(form),
        out_dtype,
        _indices(_ROWS) if form.gathered else None,
        _indices(_ROWS) if form.gathered else None,
        c if form.accumulate else None,
        schedule="work_steal" if form.steals else "static",
    )
    _, (launch,) = grouped_wgrad.plan(call, arch_facts(arch), tile, c)
    name = f"grouped wgrad {tile.name} {_names(x_dtype, y_dtype)} {form.name}"
    lds = lds_bytes(tile, arch, size, out_dtype.itemsize)
    if form.accumulate:  # C's parts pass through LDS, once the loop is done with it
        lds = max(lds, tile.block_m * tile.block_n * 4 // tile.subtile, tile.block_m * tile.block_n * 2)
    return record_of(name, arch, launch, lds)


def _names(*dtypes: torch.dtype) -> str:
    return "x".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _groups(form: _Form) -> Groups:
    return Groups(_indices(form.groups), _indices(form.groups + 1) if form.offs else None)


def _indices(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int64, device="meta")


def _tensor(form: _Form, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Rows as far apart as the form asks, matrices one after the other."""
    row = 2**27 if form.wide else -(-shape[-1] // 16) * 16 + (0 if form.aligned else 3)
    strides = (shape[-2] * row, row, 1)[-len(shape) :]
    memory = torch.empty_strided((sum(size * stride for size, stride in zip(shape, strides)) + 1,), (1,), dtype=dtype,
                                 device="meta")  # fmt: skip
    return memory.as_strided(shape, strides, 0 if form.aligned else 1)
