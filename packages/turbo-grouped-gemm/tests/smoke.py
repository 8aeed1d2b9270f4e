# SPDX-License-Identifier: MIT
"""Smoke test of an installed turbo-grouped-gemm: a plain program, so that it runs where nothing else is installed."""

import importlib.util

import turbo_grouped_gemm


def without_torch() -> None:
    for name in turbo_grouped_gemm.__all__:
        try:
            getattr(turbo_grouped_gemm, name)
        except ImportError as error:
            assert "pip install" in str(error), f"no line to type in: {error}"
        else:
            raise AssertionError(f"turbo_grouped_gemm.{name} was loaded without torch")


def with_torch() -> None:
    import torch

    x, residual = torch.randn(2, 5, 16, requires_grad=True)
    scale = torch.randn(5, requires_grad=True)
    y = turbo_grouped_gemm.ScaleRows()(x, scale, residual)
    torch.testing.assert_close(y, x * scale[:, None] + residual, rtol=1e-4, atol=1e-4)
    dx, dscale = torch.autograd.grad(y.sum(), [x, scale])
    torch.testing.assert_close(dx, scale[:, None].expand(5, 16), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dscale, x.sum(-1), rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        without_torch()
        print("turbo-grouped-gemm: ok without torch")
    else:
        with_torch()
        print("turbo-grouped-gemm: ok with torch")
