# SPDX-License-Identifier: MIT
"""FP8 attention of values far below one: they keep their digits, forward and backward, and zeros stay zeros."""

import pytest
import torch

from turbo_attention import flash_attn_fp8_func
from turbo_core import GlobalBackendManager
from turbo_testing.metrics import compute_snr


@pytest.mark.parametrize("backend", ["TORCH", "TRITON"])
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e-20, 1e-30])
def test_values_of_any_scale(device, backend, scale):
    GlobalBackendManager.set_attn_backend(backend)
    torch.manual_seed(38)
    q, k, v = (torch.randn(1, 80, 2, 32, device=device) for _ in range(3))
    v = (v.double() * scale).float()
    v[:, :, 1] = 0
    grad = (torch.randn(1, 80, 2, 32, device=device).double() * scale).float()
    leaves = [t.bfloat16().requires_grad_() for t in (q, k, v)]
    out = flash_attn_fp8_func(*leaves, causal=True)
    found = torch.autograd.grad(out, leaves, grad.to(out.dtype))
    wide = [t.detach().double().transpose(1, 2).requires_grad_() for t in leaves]
    out64 = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True)
    expected = torch.autograd.grad(out64, wide, grad.to(out.dtype).double().transpose(1, 2))
    assert compute_snr(out64.transpose(1, 2) / scale, out.double() / scale) > 20
    assert not out[:, :, 1].any()
    assert compute_snr(expected[2].transpose(1, 2) / scale, found[2].double() / scale) > 20, "dv"
