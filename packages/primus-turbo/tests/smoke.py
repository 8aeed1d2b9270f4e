# SPDX-License-Identifier: MIT
"""Smoke test of an installed primus-turbo: a plain program, so that it runs where nothing else is installed."""

import importlib.util

import primus_turbo
from primus_turbo.__main__ import main


def without_torch() -> None:
    try:
        primus_turbo.pytorch  # noqa: B018  (loading it is the test)
    except ImportError as error:
        assert "pip install" in str(error), f"no line to type in: {error}"
    else:
        raise AssertionError("primus_turbo.pytorch was loaded without torch")
    assert main([]) == 0
    assert main(["demo"]) == 2


def with_torch() -> None:
    import torch

    import primus_turbo.pytorch as turbo

    a, b = torch.randn(5, 7), torch.randn(3, 7)
    expected = (a.double() @ b.double().T).float()
    torch.testing.assert_close(turbo.ops.gemm(a, b, trans_b=True), expected, rtol=1e-4, atol=1e-4)
    layer = turbo.modules.Linear(7, 3)
    layer(a).sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.full((3,), 5.0))
    q = torch.randn(1, 5, 2, 16, requires_grad=True)
    exact = torch.nn.functional.scaled_dot_product_attention(*[q.double().transpose(1, 2)] * 3).transpose(1, 2)
    out = turbo.ops.flash_attn_func(q, q, q)
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-4)
    out.sum().backward()
    norm = torch.nn.functional.rms_norm(a, (7,), eps=1e-6)
    torch.testing.assert_close(turbo.ops.rmsnorm(a, torch.ones(7), eps=1e-6), norm, rtol=1e-4, atol=1e-4)
    tensorwise = turbo.core.low_precision.ScalingGranularity.TENSORWISE
    payload, scale_inv = turbo.ops.quantize_fp8(a, turbo.float8_e4m3, tensorwise)
    torch.testing.assert_close(payload.float() * scale_inv, a, rtol=0.07, atol=0.01)
    assert turbo.core.backend.BackendType.TORCH.name == "TORCH"
    assert main(["demo", "--device", "cpu", "--steps", "2", "--layers", "1"]) == 0


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        without_torch()
        print("primus-turbo: ok without torch")
    else:
        with_torch()
        print("primus-turbo: ok with torch")
