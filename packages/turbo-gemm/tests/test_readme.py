# SPDX-License-Identifier: MIT
"""The support tables in this wheel's README are what the backends answer."""

from pathlib import Path

import pytest
import torch

from turbo_core import BackendType
from turbo_gemm.calls import GemmCall
from turbo_gemm.pytorch.kernels import aiter_gemm, scaled_mm
from turbo_gemm.pytorch.kernels.gemm_fp8_impl import GemmFp4Dispatcher, GemmFp8Dispatcher
from turbo_gemm.pytorch.kernels.gemm_impl import GemmDispatcher
from turbo_gemm.pytorch.ops.gemm_fp4 import GEMM_FP4
from turbo_gemm.pytorch.ops.gemm_fp8 import GEMM_FP8
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS
from turbo_testing.support_table import check_readme, support_table

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def call(dtype_a, dtype_b, out_dtype, **options):
    def make(device):
        a = torch.empty(128, 256, dtype=dtype_a, device=device)
        b = torch.empty(512, 256, dtype=dtype_b, device=device)
        out = torch.empty(128, 512, dtype=out_dtype, device=device) if options.get("accumulate") else None
        return GemmCall(a, b, None, False, True, out_dtype, out)

    return make


CALLS = {
    "bf16 x bf16 -> bf16": call(BF16, BF16, BF16),
    "fp16 x fp16 -> fp16": call(FP16, FP16, FP16),
    "fp32 x fp32 -> fp32": call(FP32, FP32, FP32),
    "bf16 x bf16 -> fp32": call(BF16, BF16, FP32),
    "bf16 x bf16 added to fp32 `main_grad`": call(BF16, BF16, FP32, accumulate=True),
    "fp32 x fp32 -> bf16": call(FP32, FP32, BF16),
    "bf16 x fp32 -> fp32 (two dtypes)": call(BF16, FP32, FP32),
}


def test_support_table():
    pytest.importorskip("triton")
    readme = Path(__file__).parents[1] / "README.md"
    check_readme(readme, support_table(GemmDispatcher, CALLS))


def quant_call(config, role="forward", m=128, accumulate=False, out_dtype=BF16):
    def make(device):
        a, b = (torch.empty(rows, 256, dtype=BF16, device=device) for rows in (m, 512))
        info = GEMM_FP4 if config in FP4_CONFIGS else GEMM_FP8
        chosen = {**FP8_CONFIGS, **FP4_CONFIGS}[config]
        call = info.calls(a, b, trans_b=True, config=chosen, out_dtype=out_dtype)[role]
        if accumulate:
            call = call._replace(out=torch.empty(512, 256, dtype=FP32, device=device), out_dtype=FP32)
        return call

    return make


FP8_CALLS = {
    "TENSORWISE, forward and dgrad": quant_call("tensorwise-e4m3"),
    "TENSORWISE, sizes that are no multiples of 16": quant_call("tensorwise-e4m3", "wgrad", m=100),
    "TENSORWISE, wgrad added to fp32 `main_grad`": quant_call("tensorwise-e4m3", "wgrad", accumulate=True),
    "ROWWISE, forward and dgrad to bf16": quant_call("rowwise-e4m3"),
    "ROWWISE, forward to fp32": quant_call("rowwise-e4m3", out_dtype=FP32),
    "ROWWISE, wgrad added to fp32 `main_grad`": quant_call("rowwise-e4m3", "wgrad", accumulate=True),
    "BLOCKWISE, forward and dgrad": quant_call("blockwise-e4m3"),
    "BLOCKWISE, wgrad added to fp32 `main_grad`": quant_call("blockwise-e4m3", "wgrad", accumulate=True),
    "MX_BLOCKWISE, M and N multiples of 16": quant_call("mx-e4m3"),
    "MX_BLOCKWISE, any M and N": quant_call("mx-e4m3", m=100),
    "MX_BLOCKWISE, wgrad added to fp32 `main_grad`": quant_call("mx-e4m3", "wgrad", accumulate=True),
}
BUILT = (BackendType.CK,)  # a choice at build time
FP4_CALLS = {
    "MXFP4, M and N multiples of 16": quant_call("mxfp4"),
    "MXFP4, any M and N": quant_call("mxfp4", m=100),
    "MXFP4 preshuffled": quant_call("mxfp4-preshuffled"),
    "MXFP4, wgrad added to fp32 `main_grad`": quant_call("mxfp4", "wgrad", accumulate=True),
}


@pytest.mark.parametrize(
    ("name", "dispatcher", "calls"),
    [("gemm_fp8", GemmFp8Dispatcher, FP8_CALLS), ("gemm_fp4", GemmFp4Dispatcher, FP4_CALLS)],
)
def test_support_tables_of_the_quantised_gemms(monkeypatch, name, dispatcher, calls):
    pytest.importorskip("triton")
    monkeypatch.setattr(scaled_mm, "_hip_version", lambda: (7, 0))
    monkeypatch.setattr(aiter_gemm, "_installed", lambda: "0.1.14")
    check_readme(Path(__file__).parents[1] / "README.md", support_table(dispatcher, calls, BUILT), name)
