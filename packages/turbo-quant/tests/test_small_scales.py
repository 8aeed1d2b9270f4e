# SPDX-License-Identifier: MIT
"""Gradients of any size keep their digits, down to where float32 scales end; zeros stay zeros."""

import pytest
import torch

from turbo_core.low_precision import fp8_amax_floor, fp8_max
from turbo_quant import dequantize_fp8, quantize_fp8, quantize_fp8_with_trans
from turbo_quant.calls import QuantizeFloatCall
from turbo_quant.pytorch.kernels import reference
from turbo_quant.pytorch.kernels.quantize_impl import quantize_float
from turbo_testing import quant_oracle as oracle
from turbo_testing.cases import load
from turbo_testing.metrics import compute_snr

cases = load("turbo-quant")
E4M3, E5M2, *_ = cases.FP8_DTYPES
LEAST_NORMAL = torch.finfo(torch.float32).tiny
ways = pytest.mark.parametrize("granularity, keywords", [
    (cases.TENSORWISE, {}), (cases.ROWWISE, {"axis": 1}), (cases.ROWWISE, {"axis": 0}),
    (cases.BLOCKWISE, {"axis": 1, "block_size": 32}), (cases.BLOCKWISE, {"axis": 0, "block_size": 32}),
    (cases.BLOCKWISE, {"block_size": 32, "scaling_recipe": cases.RECIPES["tile"]}),
    (cases.MX_BLOCKWISE, {"axis": 1}), (cases.MX_BLOCKWISE, {"axis": 0}),
], ids=str)  # fmt: skip


def there_and_back(x, dtype, granularity, keywords):
    q, scale_inv = cases.run(quantize_fp8, x, dtype, granularity, **keywords)
    size = {"size": x.shape[keywords["axis"]]} if granularity is cases.MX_BLOCKWISE else {}
    return scale_inv, dequantize_fp8(q, torch.float32, granularity, scale_inv=scale_inv, **keywords, **size)


@pytest.mark.parametrize("scale", [1e-6, 1e-9, 1e-11, 1e-14, 1e-20, 1e-30, 1e-34, 1e-36])
@ways
def test_digits_are_kept_at_any_scale(backend, device, scale, granularity, keywords):
    torch.manual_seed(38)
    x = torch.randn(96, 160, device=device).double().mul(scale).float()
    for dtype in (E4M3, E5M2):
        scale_inv, y = there_and_back(x, dtype, granularity, keywords)
        assert compute_snr(x.double() / scale, y.double() / scale) > cases.gate(dtype)
        if granularity is not cases.MX_BLOCKWISE:
            assert scale_inv.min() >= LEAST_NORMAL


@ways
def test_zeros_among_small_numbers_are_exact(backend, device, granularity, keywords):
    x = (torch.rand(96, 160, device=device) + 0.5) * torch.randn(96, 160, device=device).sign() * 1e-12
    x[32:64], x[:, 64:128] = 0, 0
    scale_inv, y = there_and_back(x, E4M3, granularity, keywords)
    assert torch.equal(y == 0, x == 0)
    if granularity is not cases.MX_BLOCKWISE:
        assert scale_inv.isfinite().all() and (scale_inv >= LEAST_NORMAL).all()


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
@pytest.mark.parametrize("out_dtype", cases.FP8_DTYPES, ids=str)
def test_around_the_floor(backend, device, dtype, out_dtype):
    """amax a little above, at and below the floor, subnormal, and zero: the oracle's bits, nothing infinite."""
    floor = fp8_amax_floor(out_dtype)
    step = torch.finfo(dtype).eps
    amax = torch.tensor([floor * (1 + step), floor, floor * (1 - step), floor / 1000, LEAST_NORMAL, 1e-40, 1e-45, 0.0])
    x = torch.linspace(-1, 1, 128).outer(amax).t().contiguous().to(dtype).to(device)[None]
    for case in cases.FLOAT_CASES:
        if backend == "TURBO" and (case.k_major or case.block_size not in (0, 128)):
            continue  # the HIP kernels have blocks of 128, in the order of x
        call = QuantizeFloatCall(x, out_dtype, *case[1:])
        found = cases.run(quantize_float, call)
        cases.assert_same_bits(found, reference.quantize_float(call), case.name)
        for scale_inv in (found.row_scale_inv, found.column_scale_inv):
            assert scale_inv is None or (scale_inv.isfinite().all() and (scale_inv >= LEAST_NORMAL).all())
    row = cases.run(quantize_float, QuantizeFloatCall(x, out_dtype, cases.ROWWISE, 0, True, False))
    name = str(out_dtype).removeprefix("torch.")
    codes, scale_inv = oracle.quantize_float(x.float().cpu().numpy(), name, (1, 128))
    cases.assert_same_bits((row.row, row.row_scale_inv), (codes, scale_inv))
    if dtype is torch.float32:
        exact = x.double() * (fp8_max(out_dtype) / amax.clamp(min=floor).double()).to(device)[None, :, None]
        error = (row.row.double() - exact).abs()
        assert (error <= exact.abs() * 2**-3 + torch.finfo(out_dtype).smallest_normal).all()


def test_both_copies_of_a_small_gradient(backend, device):
    x = torch.randn(64, 160, device=device) * 1e-11
    q, s, q_t, s_t = cases.run(quantize_fp8_with_trans, x, E5M2, cases.BLOCKWISE, block_size=32)
    for axis, payload, scale_inv in ((1, q, s), (0, q_t, s_t)):
        y = dequantize_fp8(payload, torch.float32, cases.BLOCKWISE, scale_inv=scale_inv, block_size=32, axis=axis)
        assert compute_snr(x * 1e11, y * 1e11) > cases.gate(E5M2)


def test_nothing_to_quantise_has_the_scale_of_zeros(device):
    for granularity, axis in ((cases.TENSORWISE, None), (cases.ROWWISE, 1)):
        _, empty = quantize_fp8(torch.empty(3, 0, device=device), E4M3, granularity, axis=axis)
        _, zeros = quantize_fp8(torch.zeros(3, 4, device=device), E4M3, granularity, axis=axis)
        assert torch.equal(empty, zeros)
