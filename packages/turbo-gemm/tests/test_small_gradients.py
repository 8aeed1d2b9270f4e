# SPDX-License-Identifier: MIT
"""gemm_fp8 of gradients and inputs far below one: every granularity keeps its digits."""

import pytest
import torch

import turbo_gemm
from turbo_core import BackendType
from turbo_testing import references
from turbo_testing.metrics import assert_snr
from turbo_testing.quantised import FP8_CONFIGS, gate


@pytest.mark.parametrize("scale", [1e-9, 1e-11, 1e-20, 1e-30])
@pytest.mark.parametrize(
    "config", ["tensorwise-hybrid", "rowwise-e4m3", "blockwise-e4m3", "blockwise-hybrid", "mx-e4m3"]
)
def test_gradients_of_any_scale(quant_backend, device, config, scale):
    if quant_backend is BackendType.HIPBLASLT and not config.startswith("tensorwise"):
        pytest.skip("torch's BLAS takes some of the others on some GPUs only")
    config = FP8_CONFIGS[config]
    torch.manual_seed(38)
    a = torch.randn(64, 96, device=device).bfloat16().requires_grad_()
    b = (torch.randn(80, 96, device=device) / 50).bfloat16().requires_grad_()
    grad = torch.randn(64, 80, device=device).double().mul(scale).bfloat16()
    grad[:16] = 0  # rows of zeros, as masked tokens leave them
    found = torch.autograd.grad(turbo_gemm.gemm_fp8(a, b, False, True, config=config), [a, b], grad)
    expected = references.gemm_backward(a.detach(), b.detach(), grad, False, True)
    for what, got, want in zip(("dA", "dB"), found, expected):
        assert_snr(got.double() / scale, want / scale, gate(config), what=what)
    assert not found[0][:16].any()


@pytest.mark.parametrize("config", ["tensorwise-e4m3", "rowwise-e4m3", "blockwise-e4m3"])
def test_a_product_of_small_numbers(quant_backend, device, config):
    if quant_backend is BackendType.HIPBLASLT and not config.startswith("tensorwise"):
        pytest.skip("torch's BLAS takes some of the others on some GPUs only")
    a, b = torch.randn(48, 64, device=device) * 1e-15, torch.randn(64, 32, device=device) * 1e-12
    found = turbo_gemm.gemm_fp8(a, b, config=FP8_CONFIGS[config])
    assert_snr(found.double() * 1e27, a.double() @ b.double() * 1e27, 25.0)
