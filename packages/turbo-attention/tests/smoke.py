# SPDX-License-Identifier: MIT
"""Smoke test of an installed turbo-attention: a plain program, so that it runs where nothing else is installed."""

import importlib.util
import math

import turbo_attention


def without_torch() -> None:
    for name in turbo_attention.__all__:
        try:
            getattr(turbo_attention, name)
        except ImportError as error:
            assert "pip install" in str(error), f"no line to type in: {error}"
        else:
            raise AssertionError(f"turbo_attention.{name} was loaded without torch")


def with_torch() -> None:
    import torch

    q = torch.randn(1, 5, 2, 16, requires_grad=True)
    k, v = torch.randn(2, 1, 5, 1, 16)
    starts = torch.tensor([0, 5], dtype=torch.int32)
    exact = torch.nn.functional.scaled_dot_product_attention(
        *(rows.double().transpose(1, 2) for rows in (q, k.expand(1, 5, 2, 16), v.expand(1, 5, 2, 16)))
    ).transpose(1, 2)
    (wanted,) = torch.autograd.grad(exact.sum(), q)
    results = {
        "dense": (turbo_attention.flash_attn_func(q, k, v), 1e-4),
        "module": (turbo_attention.TurboAttention()(q, k, v), 1e-4),
        "fp8": (turbo_attention.flash_attn_fp8_func(q, k, v), 0.1),
        "ragged": (turbo_attention.flash_attn_varlen_func(q[0], k[0], v[0], starts, starts, 5, 5)[None], 1e-4),
    }
    for name, (out, error) in results.items():
        assert (out - exact).norm() < error * exact.norm(), name
        (found,) = torch.autograd.grad(out.sum(), q)
        assert (found - wanted).norm() < error * max(1, wanted.norm()), name
    slots = torch.zeros(5, 1, dtype=torch.int32)
    out, lse = turbo_attention.sparse_mla_func(q[0], k[0], slots, None, 16, return_lse=True)
    assert torch.equal(out, k[0, :1].expand(5, 2, 16)) and math.isfinite(lse.sum())


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        without_torch()
        print("turbo-attention: ok without torch")
    else:
        with_torch()
        print("turbo-attention: ok with torch")
