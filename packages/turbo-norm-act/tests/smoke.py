# SPDX-License-Identifier: MIT
"""Smoke test of an installed turbo-norm-act: a plain program, so that it runs where nothing else is installed."""

import importlib.util

import turbo_norm_act


def without_torch() -> None:
    for name in turbo_norm_act.__all__:
        try:
            getattr(turbo_norm_act, name)
        except ImportError as error:
            assert "pip install" in str(error), f"no line to type in: {error}"
        else:
            raise AssertionError(f"turbo_norm_act.{name} was loaded without torch")


def with_torch() -> None:
    import torch
    import torch.nn.functional as F

    x = torch.randn(5, 16, requires_grad=True)
    layer = turbo_norm_act.RMSNorm(16)
    y, s = layer(x, x)
    expected = F.rms_norm(2 * x, (16,), layer.weight, 1e-6)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(y)
    (dx,) = torch.autograd.grad([y, s], [x], [grad, grad])
    (wanted,) = torch.autograd.grad([expected, 2 * x], [x], [grad, grad])
    torch.testing.assert_close(dx, wanted, rtol=1e-4, atol=1e-4)
    z = turbo_norm_act.LayerNorm(16)(x)
    torch.testing.assert_close(z, F.layer_norm(x, (16,)), rtol=1e-4, atol=1e-4)
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(turbo_norm_act.SwiGLU()(x), F.silu(gate) * up, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(turbo_norm_act.geglu(x), F.gelu(gate) * up, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        without_torch()
        print("turbo-norm-act: ok without torch")
    else:
        with_torch()
        print("turbo-norm-act: ok with torch")
