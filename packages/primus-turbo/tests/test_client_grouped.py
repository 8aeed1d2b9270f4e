# SPDX-License-Identifier: MIT
"""Grouped products of FP8 payloads as a framework's own autograd function puts them together."""

import pytest
import torch

import primus_turbo.pytorch as turbo
from primus_turbo.pytorch.core.low_precision import ScalingGranularity
from primus_turbo.pytorch.kernels.grouped_gemm.grouped_gemm_fp8_impl import (
    grouped_gemm_fp8_impl,
    grouped_gemm_fp8_variable_k_impl,
)
from primus_turbo.pytorch.kernels.grouped_gemm.grouped_gemm_utils import group_offs_from_lens
from primus_turbo.pytorch.kernels.quantization import quantization_impl as quantisation
from turbo_core import BackendType, UnsupportedError
from turbo_testing.metrics import assert_snr

E4M3 = torch.float8_e4m3fn
G, N, K = 3, 80, 96


@pytest.fixture
def operands(device):
    lens = torch.tensor([40, 0, 33], device=device)
    x, w = torch.randn(73, K, device=device), torch.randn(G, N, K, device=device)
    return x, w, torch.randn(73, N, device=device), lens, group_offs_from_lens(lens)


def check(out, dx, dw, x, w, grad, offs):
    offs = offs.tolist()
    for g, rows in enumerate(slice(i, j) for i, j in zip(offs, offs[1:])):
        if rows.start == rows.stop:
            assert not dw[g].count_nonzero()
            continue
        assert_snr(out[rows], x[rows].double() @ w[g].double().t(), 25)
        assert_snr(dx[rows], grad[rows].double() @ w[g].double(), 25)
        assert_snr(dw[g], grad[rows].double().t() @ x[rows].double(), 25)


def test_a_tensorwise_step(operands):
    x, w, grad, lens, offs = operands
    kind = {"granularity": ScalingGranularity.TENSORWISE.value, "default_backend": BackendType.CK.value, "num_cu": None}
    (x8, xs), (w8, ws), (g8, gs) = (
        turbo.ops.quantize_fp8(t, E4M3, ScalingGranularity.TENSORWISE) for t in (x, w, grad)
    )
    out = grouped_gemm_fp8_impl(x8, w8, xs, ws, lens, offs, False, True, torch.float32, **kind)
    dx = grouped_gemm_fp8_impl(g8, w8, gs, ws, lens, offs, False, False, torch.float32, **kind)
    dw = grouped_gemm_fp8_variable_k_impl(
        x8, g8, xs, gs, lens, offs, trans_a=True, trans_b=False, trans_c=True, out_dtype=torch.float32, **kind
    )
    check(out, dx, dw, x, w, grad, offs)


def test_a_blockwise_step(operands):
    x, w, grad, lens, offs = operands
    kind = {"granularity": ScalingGranularity.BLOCKWISE.value}
    x_row, x_col, x_row_scale, x_col_scale, padded_lens, padded_offs = (
        quantisation.quant_fp8_blockwise_segment_m_row_col_impl(x, E4M3, 128, lens, offs)
    )
    w8, ws = quantisation.quant_fp8_blockwise_for_weight_impl(w, E4M3)
    g_row, g_col, g_row_scale, g_col_scale, *_ = quantisation.quant_fp8_blockwise_segment_m_row_col_impl(
        grad, E4M3, 128, lens, offs
    )
    out = grouped_gemm_fp8_impl(x_row, w8, x_row_scale, ws, lens, offs, False, True, torch.float32, **kind)
    dx = grouped_gemm_fp8_impl(g_row, w8, g_row_scale, ws, lens, offs, False, False, torch.float32, **kind)
    dw = grouped_gemm_fp8_variable_k_impl(
        x_col, g_col, x_col_scale, g_col_scale, padded_lens, padded_offs, True, False, True, torch.float32, **kind
    )
    check(out, dx, dw, x, w, grad, offs)


def test_refusals(operands):
    x, w, grad, lens, offs = operands
    x8, xs = turbo.ops.quantize_fp8(x, E4M3, ScalingGranularity.TENSORWISE)
    w8, ws = turbo.ops.quantize_fp8(w, E4M3, ScalingGranularity.TENSORWISE)
    with pytest.raises(UnsupportedError, match="grouped_gemm_fp8_impl: trans_a=True; False is accepted"):
        grouped_gemm_fp8_impl(x8, w8, xs, ws, lens, offs, True, True, torch.float32, 1)
    with pytest.raises(UnsupportedError, match="trans_a=False, trans_b=False with TENSORWISE; True and False"):
        grouped_gemm_fp8_variable_k_impl(x8, x8, xs, xs, lens, offs, False, False, False, torch.float32, 1)
