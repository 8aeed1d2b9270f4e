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

    lens, offs = torch.tensor([3, 0, 2]), [0, 3, 3, 5]
    x = torch.randn(6, 8, requires_grad=True)  # the last row belongs to no group
    layer = turbo_grouped_gemm.GroupedLinear(3, 8, 4)
    y = layer(x, lens)
    w = layer.weight
    expected = torch.zeros(6, 4)
    for g in range(3):
        expected[offs[g] : offs[g + 1]] = x[offs[g] : offs[g + 1]] @ w[g].T
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    assert turbo_grouped_gemm.group_offs_from_lens(lens).tolist() == offs
    seed = torch.randn(6, 4)
    found, wanted = (torch.autograd.grad(c, [x, w], seed) for c in (y, expected))
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(2, 64, 64, requires_grad=True)
    lens = torch.tensor([20, 44])
    exact = turbo_grouped_gemm.grouped_gemm(x, w, lens, trans_b=True)
    for function, error in ((turbo_grouped_gemm.grouped_gemm_fp8, 0.1), (turbo_grouped_gemm.grouped_gemm_fp4, 0.5)):
        quantised = function(x, w, lens)
        assert (quantised - exact).norm() < error * exact.norm(), function.__name__
        quantised.sum().backward()


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        without_torch()
        print("turbo-grouped-gemm: ok without torch")
    else:
        with_torch()
        print("turbo-grouped-gemm: ok with torch")
