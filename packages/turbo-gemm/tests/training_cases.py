# SPDX-License-Identifier: MIT
"""Every op and module of this wheel with small inputs, for the matrix of what training loops do to them."""

from __future__ import annotations

from functools import partial

import torch

import turbo_gemm as tg
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig, Format, ScaleDtype, ScalingGranularity
from turbo_testing.training import ModuleCase, OpCase, floats

N, K = 20, 36  # multiples of no tile


def _make(rows, dtype, device, *, trans_a=False, trans_b=True, bias=True, n=N, k=K):
    tensors = {
        "a": floats(*((k, rows) if trans_a else (rows, k)), dtype=dtype, device=device),
        "b": floats(*((n, k) if trans_b else (k, n)), dtype=dtype, device=device),
    }
    if bias:
        tensors["bias"] = floats(n, dtype=torch.float32, device=device)
    return tensors


def _reference(a, b, bias=None, trans_a=False, trans_b=True):
    y = (a.t() if trans_a else a) @ (b.t() if trans_b else b)
    return y if bias is None else y + bias


FP8 = {
    "tensorwise": Float8QuantConfig(),
    "rowwise": Float8QuantConfig(format=Format.HYBRID, granularity=ScalingGranularity.ROWWISE),
    "blockwise": Float8QuantConfig(granularity=ScalingGranularity.BLOCKWISE, block_size=16),
    "mx": Float8QuantConfig(granularity=ScalingGranularity.MX_BLOCKWISE, block_size=32, scale_dtype=ScaleDtype.E8M0),
}
SNR = {"rowwise": 20.0, "fp4": 10.0}  # HYBRID has E5M2 gradients

# A number of rows within one block of scales is a graph of its own: the compiler specialises sizes of one.
FIRST_BLOCK = 1

_NT = ("a", "b", "bias")
_16 = (torch.float32, torch.bfloat16, torch.float16)

OPS = [
    OpCase(
        "gemm", partial(tg.gemm, trans_b=True), _make, _NT, _reference, "NT bias", ("a", "b"), dtypes=_16, second=True
    ),
    OpCase(
        "gemm", tg.gemm, partial(_make, trans_b=False, bias=False), ("a", "b"), partial(_reference, trans_b=False),
        "NN", ("a", "b"), dtypes=_16, second=True,
    ),
    OpCase(
        "gemm", partial(tg.gemm, trans_a=True, out_dtype=torch.float32), partial(_make, trans_a=True, trans_b=False),
        _NT, partial(_reference, trans_a=True, trans_b=False), "TN bias to float32", ("a", "b"), dtypes=_16,
        second=True,
    ),
    *(
        OpCase(
            "gemm_fp8", partial(tg.gemm_fp8, trans_b=True, config=config), _make, _NT, _reference, label, ("a", "b"),
            dtypes=(torch.bfloat16,), snr=SNR.get(label, 24.0), recompilations=FIRST_BLOCK * (label == "blockwise"),
        )
        for label, config in FP8.items()
    ),
    OpCase(
        "gemm_fp4", partial(tg.gemm_fp4, trans_b=True, config=Float4QuantConfig()), partial(_make, n=32, k=64), _NT,
        _reference, "mx", ("a", "b"), dtypes=(torch.bfloat16,), snr=SNR["fp4"], rows=64, recompilations=FIRST_BLOCK,
    ),
]  # fmt: skip


def _rows(device):
    return (floats(2, 16, K, dtype=torch.float32, device=device),)


def _linear(device):
    return torch.nn.Linear(K, N, device=device)


MODULES = [
    ModuleCase("Linear", lambda device: tg.Linear(K, N, device=device), _rows, _linear),
    *(
        ModuleCase(
            "Float8Linear", lambda device, config=config: tg.Float8Linear(K, N, config=config, device=device), _rows,
            _linear, SNR.get(label, 24.0), label,
        )
        for label, config in FP8.items()
    ),
    ModuleCase(
        "Float4Linear", lambda device: tg.Float4Linear(K, N, device=device), _rows, _linear, SNR["fp4"],
    ),
]  # fmt: skip

NOT_OPS: dict[str, str] = {}
