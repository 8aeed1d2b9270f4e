# SPDX-License-Identifier: MIT
"""The README's tables of backends are what the backends themselves answer, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton")

from turbo_grouped_gemm.calls import GroupedGemmCall, GroupedWgradCall, Groups  # noqa: E402
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_fp8_impl import (  # noqa: E402
    GroupedGemmFp4Dispatcher,
    GroupedGemmFp8Dispatcher,
)
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_impl import GroupedGemmDispatcher  # noqa: E402
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp4 import GROUPED_GEMM_FP4  # noqa: E402
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8 import GROUPED_GEMM_FP8  # noqa: E402
from turbo_testing.cases import load  # noqa: E402
from turbo_testing.metrics import assert_close  # noqa: E402
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS  # noqa: E402
from turbo_testing.support_table import check_readme, support_table  # noqa: E402

README = Path(__file__).resolve().parents[1] / "README.md"
BF16, FP32 = torch.bfloat16, torch.float32


def gemm(dtype=BF16, out_dtype=None, **options):
    def make(where):
        trans_b = options.get("trans_b", True)
        shapes = (512, 256), (8, 384, 256) if trans_b else (8, 256, 384)
        a, b = (torch.empty(shape, dtype=dtype, device=where) for shape in shapes)
        lens, index = (torch.empty(n, dtype=torch.int64, device=where) for n in (8, 512))
        offs = torch.empty(9, dtype=torch.int64, device=where) if options.get("offs") else None
        bias = torch.empty(8, 384, dtype=dtype, device=where) if options.get("bias") else None
        index = index if options.get("indices") else None
        call = GroupedGemmCall(a, b, bias, Groups(lens, offs), trans_b, out_dtype or dtype, index, index, 512)
        return call._replace(schedule=options.get("schedule", "static"))

    return make


def wgrad(dtype=BF16, out_dtype=None):
    def make(where):
        x, y = (torch.empty(512, width, dtype=dtype, device=where) for width in (384, 256))
        lens = torch.empty(8, dtype=torch.int64, device=where)
        out = None if out_dtype is None else torch.empty(8, 384, 256, dtype=out_dtype, device=where)
        return GroupedWgradCall(x, y, Groups(lens, None), out_dtype or dtype, None, None, out)

    return make


CALLS = {
    "bf16, `trans_b=True`": gemm(),
    "bf16, `trans_b=False`, and the dgrad of the other": gemm(trans_b=False),
    "bf16, wgrad": wgrad(),
    "bf16, wgrad added to fp32 `main_grad`": wgrad(out_dtype=FP32),
    "fp16": gemm(torch.float16),
    "fp32": gemm(FP32),
    "bf16 -> fp32": gemm(out_dtype=FP32),
    "with a bias": gemm(bias=True),
    "groups with offsets, masked": gemm(offs=True),
    "rows by indices": gemm(indices=True),
    '`schedule="work_steal"`': gemm(schedule="work_steal"),
}


def quantised(config, role="forward", **options):
    def make(where):
        fp4 = config in FP4_CONFIGS
        a, b = (torch.empty(shape, dtype=BF16, device=where) for shape in ((512, 256), (8, 384, 256)))
        lens, index = (torch.empty(n, dtype=torch.int64, device=where) for n in (8, 512))
        chosen = (FP4_CONFIGS if fp4 else FP8_CONFIGS)[config]
        index = index if options.get("indices") else None
        info = GROUPED_GEMM_FP4 if fp4 else GROUPED_GEMM_FP8
        call = info.calls(a, b, lens, config=chosen, a_idx=index, out_idx=index)[role]
        if options.get("accumulate"):
            call = call._replace(out=torch.empty(8, 384, 256, dtype=FP32, device=where), out_dtype=FP32)
        return call

    return make


FP8_CALLS = {
    label: call
    for name, config in (
        ("TENSORWISE", "tensorwise-e4m3"),
        ("ROWWISE", "rowwise-e4m3"),
        ("BLOCKWISE", "blockwise-e4m3"),
        ("MX_BLOCKWISE", "mx-e4m3"),
    )
    for label, call in (
        (f"{name}, forward and dgrad", quantised(config)),
        (f"{name}, rows by indices", quantised(config, indices=True)),
        (f"{name}, wgrad", quantised(config, "wgrad")),
        (f"{name}, wgrad added to fp32 `main_grad`", quantised(config, "wgrad", accumulate=True)),
    )
}
FP4_CALLS = {
    "MXFP4, forward and dgrad": quantised("mxfp4"),
    "MXFP4, rows by indices": quantised("mxfp4", indices=True),
    "MXFP4, wgrad": quantised("mxfp4", "wgrad"),
    "MXFP4, wgrad added to fp32 `main_grad`": quantised("mxfp4", "wgrad", accumulate=True),
}


@pytest.mark.parametrize(
    ("name", "dispatcher", "calls"),
    [("fp8", GroupedGemmFp8Dispatcher, FP8_CALLS), ("fp4", GroupedGemmFp4Dispatcher, FP4_CALLS)],
)
def test_tables_of_the_quantised_products(name, dispatcher, calls):
    check_readme(README, support_table(dispatcher, calls), name)


def test_table_of_backends():
    check_readme(README, support_table(GroupedGemmDispatcher, CALLS))


def test_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    names = {}
    exec(compile(example, str(README), "exec"), names)
    x, w = (names[name].detach().double() for name in ("x", "w"))
    expected = load("turbo-grouped-gemm").grouped_gemm(x, w, names["lens"], trans_b=True)
    assert_close(names["y"], expected, dtype=BF16)
    assert names["w"].grad[0].any() and not names["w"].grad[1].any()
