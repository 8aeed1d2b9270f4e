# SPDX-License-Identifier: MIT
"""Which backends take an operator on which device, the default first, from the backends' own answers.

No device is needed: tensors are fake, and the facts of each place are given. The HIP kernels and amd-aiter count as
installed, CK, which is a choice at build time, does not.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch

from tools.monorepo import ROOT

sys.path.insert(0, str(ROOT / "common"))

from turbo_core import BackendType, OpInfo
from turbo_testing import quantised, support_table

PLACES = ("gfx942", "gfx950", "other GPUs", "CPU")
_FACTS = dict(zip(PLACES, support_table.PLACES.values(), strict=True))
_AITER = "0.1.14"
_BF16 = torch.bfloat16
X, ROW = (1024, 4096), (4096,)
_GROUPED = (
    ("one scale a tensor or a row", "rowwise-e4m3"),
    ("one scale a block", "blockwise-e4m3"),
    ("MXFP8", "mx-e4m3"),
)


class Row(NamedTuple):
    """A row of the table: what is called, the modules over it, its `OpInfo`, and a typical call on a device."""

    label: str
    modules: str
    info: OpInfo
    calls: Callable[[torch.device], Any]


def _quantised(info: OpInfo, config: str) -> Callable[[torch.device], Any]:
    chosen = {**quantised.FP8_CONFIGS, **quantised.FP4_CONFIGS}[config]

    def calls(device: torch.device) -> Any:
        a, b = (torch.empty(rows, 256, dtype=_BF16, device=device) for rows in (128, 512))
        return info.calls(a, b, trans_b=True, config=chosen, out_dtype=_BF16)

    return calls


def _grouped(info: OpInfo, config: str) -> Callable[[torch.device], Any]:
    chosen = {**quantised.FP8_CONFIGS, **quantised.FP4_CONFIGS}[config]

    def calls(device: torch.device) -> Any:
        a, b = (torch.empty(shape, dtype=_BF16, device=device) for shape in ((512, 256), (8, 512, 256)))
        return info.calls(a, b, torch.empty(8, dtype=torch.int64, device=device), config=chosen, out_dtype=_BF16)

    return calls


def _of(info: OpInfo, *shapes: tuple[int, ...]) -> Callable[[torch.device], Any]:
    return lambda device: info.calls(*(torch.empty(shape, dtype=_BF16, device=device) for shape in shapes))


def _sparse(info: OpInfo) -> Callable[[torch.device], Any]:
    def calls(device: torch.device) -> Any:
        q, kv = (torch.empty(*shape, 576, dtype=_BF16, device=device) for shape in ((256, 64), (256,)))
        return info.calls(q, kv, torch.empty(256, 64, dtype=torch.int32, device=device))

    return calls


def _table() -> Iterator[Row]:
    from turbo_attention.pytorch.ops import attention, attention_fp8, sparse_mla
    from turbo_gemm.pytorch.ops.gemm import GEMM
    from turbo_gemm.pytorch.ops.gemm_fp4 import GEMM_FP4
    from turbo_gemm.pytorch.ops.gemm_fp8 import GEMM_FP8
    from turbo_grouped_gemm.pytorch.ops.grouped_gemm import GROUPED_GEMM
    from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp4 import GROUPED_GEMM_FP4
    from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8 import GROUPED_GEMM_FP8
    from turbo_grouped_gemm.pytorch.ops.grouped_mlp import GROUPED_MLP
    from turbo_norm_act.pytorch.ops import activation, norm
    from turbo_quant.pytorch.ops import infos

    yield Row("`gemm`, with bias and wgrad added to `main_grad`", "`Linear`", GEMM, GEMM.example)
    for label, config in (("a tensor", "tensorwise"), ("a row", "rowwise"), ("a block", "blockwise")):
        yield Row(f"`gemm_fp8`, one scale {label}", "`Float8Linear`", GEMM_FP8, _quantised(GEMM_FP8, f"{config}-e4m3"))
    yield Row("`gemm_fp8`, MXFP8", "`Float8Linear`", GEMM_FP8, _quantised(GEMM_FP8, "mx-e4m3"))
    yield Row("`gemm_fp4`, MXFP4", "`Float4Linear`", GEMM_FP4, _quantised(GEMM_FP4, "mxfp4"))
    yield Row("`grouped_gemm`, likewise", "`GroupedLinear`", GROUPED_GEMM, GROUPED_GEMM.example)
    for label, config in _GROUPED:
        calls = _grouped(GROUPED_GEMM_FP8, config)
        yield Row(f"`grouped_gemm_fp8`, {label}", "`GroupedLinear`", GROUPED_GEMM_FP8, calls)
    calls = _grouped(GROUPED_GEMM_FP4, "mxfp4")
    yield Row("`grouped_gemm_fp4`, MXFP4", "`GroupedLinear`", GROUPED_GEMM_FP4, calls)
    yield Row("`grouped_mlp`, the gate in its products", "`GroupedMLP`", GROUPED_MLP, GROUPED_MLP.example)
    yield Row("`flash_attn_func`", "`TurboAttention`", attention.FLASH_ATTN, attention.FLASH_ATTN.example)
    varlen = attention.FLASH_ATTN_VARLEN
    yield Row("`flash_attn_varlen_func`", "`TurboAttention`", varlen, varlen.example)
    yield Row("`flash_attn_fp8_func`", "", attention_fp8.FLASH_ATTN_FP8, attention_fp8.FLASH_ATTN_FP8.example)
    yield Row("`sparse_mla_func`", "", sparse_mla.SPARSE_MLA, _sparse(sparse_mla.SPARSE_MLA))
    yield Row(
        "`rmsnorm`, `rmsnorm_residual`", "`RMSNorm`", norm.RMSNORM_RESIDUAL, _of(norm.RMSNORM_RESIDUAL, X, X, ROW)
    )
    yield Row("`layernorm`", "`LayerNorm`", norm.LAYERNORM, _of(norm.LAYERNORM, X, ROW, ROW))
    gates = "`swiglu`, `geglu`, `swiglu_with_probs`, `geglu_with_probs`"
    yield Row(gates, "`SwiGLU`, `GeGLU`", activation.SWIGLU, _of(activation.SWIGLU, X, X))
    names = "`quantize_fp8`, `quantize_fp4`, `dequantize_*`, `grouped_*`, not differentiable"
    yield Row(names, "", infos.quantize_fp8, infos.quantize_fp8.example)


@contextlib.contextmanager
def _everything_installed() -> Iterator[None]:
    from turbo_attention.pytorch.kernels import aiter_attention
    from turbo_gemm.pytorch.kernels import aiter_gemm, scaled_mm

    with (
        mock.patch.object(aiter_attention, "_installed", lambda: _AITER),
        mock.patch.object(aiter_gemm, "_installed", lambda: _AITER),
        mock.patch.object(scaled_mm, "_hip_version", lambda: (7, 0)),
    ):
        yield


def _cell(row: Row, place: str) -> str:
    """The backends that take the forward there: the default, then the others in the order of fallback."""
    with support_table.standing_on(_FACTS[place]) as where:
        call = row.calls(where)["forward"]
        first = row.info.dispatcher.resolve(call).backend
        answers = row.info.dispatcher.answers(call)
    others = [name for name, why_not in answers.items() if why_not is None and name not in (first, BackendType.CK)]
    return ", ".join(backend.name for backend in (first, *others))


def rows() -> Iterator[list[str]]:
    """The cells of each row."""
    with _everything_installed():
        for row in _table():
            yield [row.label, row.modules, *(_cell(row, place) for place in PLACES)]
