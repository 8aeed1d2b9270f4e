# SPDX-License-Identifier: MIT
"""Every op and module of this wheel with small inputs, for the matrix of what training loops do to them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

import turbo_grouped_gemm as tgg
from turbo_core.low_precision import Float8QuantConfig, Format, ScaleDtype, ScalingGranularity
from turbo_testing.cases import load_file
from turbo_testing.training import ModuleCase, OpCase, floats

cases = load_file(Path(__file__).with_name("cases.py"), "cases_of_turbo_grouped_gemm")

G, N, K = 3, 20, 36  # N and K are multiples of no tile


def lens_of(rows, device):
    """Three groups, the second one empty, and rows behind the last."""
    first = rows // 2
    return torch.tensor([first, 0, rows - first - rows // 5], device=device)


def _make(rows, dtype, device, *, trans_b=True, bias=True, dense=True):
    tensors = {
        "a": floats(rows, K, dtype=dtype, device=device),
        "b": floats(G, *((N, K) if trans_b else (K, N)), dtype=dtype, device=device, scale=0.3),
        "group_lens": lens_of(rows, device),
    }
    if bias:
        tensors["bias"] = floats(G, N, dtype=torch.float32, device=device)
    return tensors


def _gathered(rows, dtype, device):
    """Rows of a taken up to twice, the other way round, and put elsewhere; of no group, an index out of all bounds."""
    tensors = _make(rows, dtype, device, trans_b=False, bias=False)
    slots = 2 * rows
    tensors["group_lens"] = lens_of(slots, device)
    tensors["a_idx"] = torch.arange(slots, device=device).flip(0) // 2
    tensors["out_idx"] = torch.arange(slots, device=device, dtype=torch.int32).flip(0)
    tensors["a_idx"][slots - slots // 5 :] = -7
    return tensors


def _masked(rows, dtype, device):
    tensors = _make(rows, dtype, device, bias=True)
    tensors["a"] = floats(G, rows, K, dtype=dtype, device=device)
    tensors["group_lens"] = torch.tensor([rows // 2, rows, 0], dtype=torch.int32, device=device)
    return tensors


# the granularities that differ most in what they keep; the values of all of them have tests of their own
ROWWISE = Float8QuantConfig(format=Format.HYBRID, granularity=ScalingGranularity.ROWWISE)
MX = Float8QuantConfig(granularity=ScalingGranularity.MX_BLOCKWISE, block_size=32, scale_dtype=ScaleDtype.E8M0)


def _mlp(rows, dtype, device, *, trans=True, probs=True):
    tensors = {
        "x": floats(rows, K, dtype=dtype, device=device),
        "w1": floats(G, *((2 * N, K) if trans else (K, 2 * N)), dtype=dtype, device=device, scale=0.3),
        "w2": floats(G, *((K, N) if trans else (N, K)), dtype=dtype, device=device, scale=0.3),
        "group_lens": lens_of(rows, device),
    }
    if probs:
        tensors["probs"] = floats(rows, dtype=torch.float32, device=device).sigmoid()
    return tensors


_TT = {"trans_w1": True, "trans_w2": True}
_MLP = ("x", "w1", "w2")
_AB = ("a", "b")
_16 = (torch.float32, torch.bfloat16, torch.float16)

OPS = [
    OpCase(
        "grouped_gemm", partial(tgg.grouped_gemm, trans_b=True), _make, ("a", "b", "bias"),
        partial(cases.grouped_gemm, trans_b=True), "NT bias", _AB, dtypes=_16, second=True,
    ),
    OpCase(
        "grouped_gemm", tgg.grouped_gemm, _gathered, _AB, cases.grouped_gemm, "NN by indices", _AB, second=True,
    ),
    OpCase(
        "grouped_gemm", partial(tgg.grouped_gemm, trans_b=True, out_dtype=torch.float32), _masked, ("a", "b", "bias"),
        partial(cases.grouped_gemm, trans_b=True), "masked to float32", _AB, second=True,
    ),
    OpCase(
        "grouped_gemm_fp8", partial(tgg.grouped_gemm_fp8, config=ROWWISE), _make, ("a", "b", "bias"),
        partial(cases.grouped_gemm, trans_b=True), "rowwise", _AB, dtypes=(torch.bfloat16,), snr=20.0,
    ),
    OpCase(
        "grouped_gemm_fp8", partial(tgg.grouped_gemm_fp8, trans_b=False, config=MX), _gathered, _AB,
        cases.grouped_gemm, "mx NN by indices", _AB, dtypes=(torch.bfloat16,), snr=24.0,
    ),
    OpCase(
        "grouped_gemm_fp4", tgg.grouped_gemm_fp4, _make, ("a", "b", "bias"),
        partial(cases.grouped_gemm, trans_b=True), "", _AB, dtypes=(torch.bfloat16,), snr=10.0, rows=64,
    ),
    OpCase(
        "grouped_mlp", partial(tgg.grouped_mlp, **_TT), _mlp, (*_MLP, "probs"), partial(cases.grouped_mlp, **_TT),
        "NT swiglu", _MLP,
    ),
    OpCase(
        "grouped_mlp", partial(tgg.grouped_mlp, activation="geglu"), partial(_mlp, trans=False, probs=False), _MLP,
        partial(cases.grouped_mlp, activation="geglu"), "NN geglu", _MLP,
    ),
    OpCase(
        "grouped_mlp_fp8", partial(tgg.grouped_mlp_fp8, config=ROWWISE, **_TT), _mlp, (*_MLP, "probs"),
        partial(cases.grouped_mlp, **_TT), "rowwise", _MLP, dtypes=(torch.bfloat16,), snr=16.0,
        without={"one_row": "the errors of three products in a chain have no average then: 3 to 25 dB by the values"},
    ),
    OpCase(
        "grouped_mlp_fp4", partial(tgg.grouped_mlp_fp4, **_TT), _mlp, (*_MLP, "probs"),
        partial(cases.grouped_mlp, **_TT), "", _MLP, dtypes=(torch.bfloat16,), snr=7.0, rows=64,
        without={"one_row": "the gradient of probs is one number then, of which MXFP4 leaves no SNR"},
    ),
]  # fmt: skip


def _rows(device):
    return floats(10, K, dtype=torch.float32, device=device), lens_of(10, device)


MODULES = [
    ModuleCase("GroupedLinear", lambda device: tgg.GroupedLinear(G, K, N, bias=True, device=device), _rows),
    ModuleCase(
        "GroupedLinear",
        lambda device: tgg.GroupedLinear(G, K, N, bias=True, device=device, config=Float8QuantConfig()), _rows,
        snr=24.0, label="fp8",
    ),
    ModuleCase("GroupedMLP", lambda device: tgg.GroupedMLP(G, K, N, device=device), _rows),
]  # fmt: skip

NOT_OPS = {"group_offs_from_lens": "integers from integers"}
