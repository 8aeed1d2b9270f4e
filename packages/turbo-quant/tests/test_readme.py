# SPDX-License-Identifier: MIT
"""The README's table of backends is what the backends answer, and its example runs."""

import re
from pathlib import Path

import pytest
import torch

from turbo_core.low_precision import ScalingGranularity
from turbo_quant.calls import DequantizeFloatCall, DequantizeMxCall, MxDirection, QuantizeFloatCall, QuantizeMxCall
from turbo_quant.formats import payload_dtype, scale_dtype
from turbo_quant.pytorch.kernels.quantize_impl import DequantizeDispatcher, QuantizeDispatcher
from turbo_testing.support_table import check_readme, support_table

README = Path(__file__).resolve().parents[1] / "README.md"
TENSORWISE, ROWWISE, BLOCKWISE, _ = ScalingGranularity
E4M3 = torch.float8_e4m3fn
PLAIN = MxDirection()


def quantise_float(granularity, block, row, column, tile=False, groups=0, dtype=E4M3, k_major=False):
    def make(device):
        x = torch.empty(1, 256, 512, dtype=torch.bfloat16, device=device)
        offs = (torch.empty(groups + 1, dtype=torch.int64, device=device),) * 2 if groups else (None, None)
        return QuantizeFloatCall(x, dtype, granularity, block, row, column, tile, *offs, k_major=k_major)

    return make


def quantise_mx(format, row, column, groups=0, gaps=False):
    def make(device):
        x = torch.empty(1, 256, 512, dtype=torch.bfloat16, device=device)
        stochastic = any(direction is not None and direction.stochastic for direction in (row, column))
        rng = torch.empty(2, dtype=torch.int64, device=device) if stochastic else None
        offs = (torch.empty(groups + 1, dtype=torch.int64, device=device),) * 2 if groups else (None, None)
        lens = torch.empty(groups, dtype=torch.int64, device=device) if gaps else None
        return QuantizeMxCall(x, format, row, column, 0, rng, *offs, lens)

    return make


def dequantise_float(device):
    q = torch.empty(1, 256, 512, dtype=E4M3, device=device)
    return DequantizeFloatCall(q, torch.empty(1, 256, 4, device=device), BLOCKWISE, 128, 2, torch.bfloat16)


def dequantise_mx(device):
    q = torch.empty(1, 256, 256, dtype=payload_dtype("e2m1"), device=device)
    scale = torch.empty(1, 256, 16, dtype=scale_dtype(), device=device)
    return DequantizeMxCall(q, scale, "e2m1", 512, False, False, 0, torch.bfloat16)


QUANTISE = {
    "TENSORWISE": quantise_float(TENSORWISE, 0, True, False),
    "the FNUZ types": quantise_float(TENSORWISE, 0, True, False, dtype=torch.float8_e4m3fnuz),
    "ROWWISE, one axis or both": quantise_float(ROWWISE, 0, True, True),
    "BLOCKWISE pieces, one axis or both": quantise_float(BLOCKWISE, 128, True, True),
    "BLOCKWISE tiles": quantise_float(BLOCKWISE, 128, True, False, tile=True),
    "BLOCKWISE, blocks other than 128": quantise_float(BLOCKWISE, 64, True, True),
    "K-major, of any granularity": quantise_float(BLOCKWISE, 128, True, True, k_major=True),
    "BLOCKWISE, groups": quantise_float(BLOCKWISE, 128, True, True, groups=8),
    "K-major groups, of any granularity": quantise_float(ROWWISE, 0, True, True, groups=8, k_major=True),
    "MXFP8, one axis or both": quantise_mx("e4m3", PLAIN, PLAIN),
    "MXFP4, one axis or both": quantise_mx("e2m1", PLAIN, PLAIN),
    "MXFP4, rotated, stochastic, preshuffled": quantise_mx(
        "e2m1", MxDirection(rht=True, stochastic=True), MxDirection(shuffle_scale=True, shuffle_out=True)
    ),
    "MXFP8 and MXFP4, groups": quantise_mx("e2m1", PLAIN, PLAIN, groups=8),
    "the same with gaps between them, or of named rows": quantise_mx("e2m1", PLAIN, PLAIN, groups=8, gaps=True),
}
DEQUANTISE = {"dequantise, float scales": dequantise_float, "dequantise, MX": dequantise_mx}


def test_support_table():
    pytest.importorskip("triton")
    body = support_table(DequantizeDispatcher, DEQUANTISE).splitlines()[2:]
    check_readme(README, "\n".join([support_table(QuantizeDispatcher, QUANTISE), *body]))


def test_the_example_runs():
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("the example names torch's FP4 type")
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(code[1], names)
    assert (names["y"] - names["x"]).abs().max() < 0.3
    assert names["q_row"].shape == (512, 512) and names["s_col"].shape == (1024, 16)
