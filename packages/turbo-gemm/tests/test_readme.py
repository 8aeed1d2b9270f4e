# SPDX-License-Identifier: MIT
"""The support table in this wheel's README is what the backends answer."""

from pathlib import Path

import pytest
import torch

from turbo_gemm.pytorch.kernels.gemm_impl import GemmCall, GemmDispatcher
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
