# SPDX-License-Identifier: MIT
"""What the audit compiles of the fused expert MLP's Triton kernels: every row of their tables, as a call plans it.

Operands are tensors on the meta device. ``full=False`` keeps one form of each row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from turbo_core.device import arch_facts
from turbo_gemm.developer import GemmRecord, Tile, lds_bytes, record_of
from turbo_grouped_gemm.calls import Groups
from turbo_grouped_gemm.calls_mlp import DgateCall, Gate, GateCall, GatedDgradCall, GatedGemmCall, MlpCall
from turbo_grouped_gemm.triton import grouped_mlp
from turbo_grouped_gemm.triton.grouped_mlp_tiles import MLP_TABLES

__all__ = ["mlp_kernels"]

_ROWS = 32768
_EPILOGUE = 8192  # bytes of LDS in which columns of a tile are split
_DTYPES = {2: torch.bfloat16, 4: torch.float32}
_SILU, _GPT_OSS = Gate("silu", math.inf, 0.0), Gate("clamped", 7.0, 1.702)
_GELU = Gate("gelu_tanh", 7.0, 0.0)


class _Form(NamedTuple):
    """How a launch differs from the plain one; size: F and the contraction.

    keeps: whether pre is stored, or in the gradient out.
    """

    name: str
    gate: Gate = _SILU
    size: int = 4096
    groups: int = 8
    trans: bool = True
    probs: bool = False
    offs: bool = False
    indexed: bool = False
    steals: bool = False
    keeps: bool = True


_FORMS = (
    _Form("gpt-oss 2880+probs+offs NN", _GPT_OSS, 2880, 128, False, True, True, False, True),
    _Form("gathered+probs", _SILU, 4096, 256, True, True, False, True),
    _Form("plain", keeps=False),
    _Form("geglu NN gathered+offs", _GELU, 4096, 8, False, True, True, True),
)
_EDGES = (
    _Form("edges gpt-oss+probs+offs+gathered", _GPT_OSS, 4090, 8, True, True, True, True),
    _Form("edges NN+probs", _SILU, 4090, 8, False, True),
)


def mlp_kernels(arch: str, full: bool) -> Iterator[GemmRecord]:
    """The kernels for ``arch``, as the entry points ``turbo_core.audit`` want them listed."""
    for kind in MLP_TABLES:
        for bytes_of, dtype in _DTYPES.items():
            for index, tile in enumerate(MLP_TABLES[kind][arch, bytes_of]):
                forms = _FORMS if tile.needs == "regular" else (*_EDGES, *_FORMS)
                for form in forms if full else (forms[index % min(2, len(forms))],):
                    yield _record(kind, arch, tile, form, dtype)
    for form in _FORMS[:2] if full else _FORMS[:1]:
        yield from _gates(arch, form)


def _record(kind: str, arch: str, tile: Tile, form: _Form, dtype: torch.dtype) -> GemmRecord:
    size, schedule = form.size, "work_steal" if form.steals else "static"
    groups, rows = _groups(form), _tensor(_ROWS, size, dtype=dtype)
    index = _indices(_ROWS) if form.indexed else None
    call: MlpCall
    if kind == "gated":
        w = _tensor(form.groups, *((2 * size, size) if form.trans else (size, 2 * size)), dtype=dtype)
        call = GatedGemmCall(
            rows, w, _probs(form), groups, form.gate, form.trans, dtype, index, form.keeps, schedule=schedule
        )
    else:
        w, pre = _tensor(form.groups, size, size, dtype=dtype), _tensor(_ROWS, 2 * size, dtype=dtype)
        call = GatedDgradCall(
            rows, w, pre, _probs(form), groups, form.gate, form.trans, index, form.keeps, form.probs, schedule=schedule
        )
    _, launches = grouped_mlp.plan(call, arch_facts(arch), tile)
    name = f"grouped {kind} {tile.name} {str(dtype).removeprefix('torch.')} {form.name}"
    loop = lds_bytes(tile, arch, dtype.itemsize, dtype.itemsize)
    return record_of(name, arch, launches[0], max(loop, _EPILOGUE))


def _gates(arch: str, form: _Form) -> Iterator[GemmRecord]:
    """The gate by itself, forward and backward, and the sums for probs."""
    pre, dout = (_tensor(_ROWS, columns, dtype=torch.bfloat16) for columns in (2 * form.size, form.size))
    calls: dict[str, MlpCall] = {
        "gate": GateCall(pre, _probs(form), _groups(form), form.gate),
        "dgate": DgateCall(dout, pre, _probs(form), _groups(form), form.gate, True, form.probs),
    }
    for kind, call in calls.items():
        for number, launch in enumerate(grouped_mlp.plan(call, arch_facts(arch))[1]):
            yield record_of(f"grouped {kind} {form.name} launch {number}", arch, launch, 64 * 1024)


def _groups(form: _Form) -> Groups:
    return Groups(_indices(form.groups), _indices(form.groups + 1) if form.offs else None)


def _probs(form: _Form) -> torch.Tensor | None:
    return _tensor(_ROWS, dtype=torch.float32) if form.probs else None


def _indices(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int64, device="meta")


def _tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
