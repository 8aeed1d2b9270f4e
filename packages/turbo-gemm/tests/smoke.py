# SPDX-License-Identifier: MIT
"""Smoke test of an installed turbo-gemm: a plain program, so that it runs where nothing else is installed."""

import importlib.util

import turbo_gemm


def without_torch() -> None:
    for name in turbo_gemm.__all__:
        try:
            getattr(turbo_gemm, name)
        except ImportError as error:
            assert "pip install" in str(error), f"no line to type in: {error}"
        else:
            raise AssertionError(f"turbo_gemm.{name} was loaded without torch")


def with_torch() -> None:
    import torch

    a = torch.randn(5, 7, requires_grad=True)
    b = torch.randn(3, 7, requires_grad=True)
    c = turbo_gemm.gemm(a, b, trans_b=True)
    torch.testing.assert_close(c, (a.double() @ b.double().T).float(), rtol=1e-4, atol=1e-4)
    grad_c = torch.randn(5, 3)
    c.backward(grad_c)
    torch.testing.assert_close(a.grad, grad_c @ b.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(b.grad, grad_c.T @ a.detach(), rtol=1e-4, atol=1e-4)
    for function, error in ((turbo_gemm.gemm_fp8, 0.1), (turbo_gemm.gemm_fp4, 0.5)):
        quantised = function(a, b, trans_b=True)
        assert (quantised - c).norm() < error * c.norm(), function.__name__
        quantised.sum().backward()
    layer = turbo_gemm.Linear(7, 3)
    torch.testing.assert_close(layer(a), torch.nn.functional.linear(a, layer.weight, layer.bias), rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        without_torch()
        print("turbo-gemm: ok without torch")
    else:
        with_torch()
        print("turbo-gemm: ok with torch")
