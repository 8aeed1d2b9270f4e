# SPDX-License-Identifier: MIT
"""references: the hand-written gradients equal autograd's, in every layout, and the values equal a loop."""

import itertools

import pytest
import torch

from turbo_testing import references

LAYOUTS = list(itertools.product([False, True], repeat=2))


def operands(trans_a, trans_b, m=3, n=5, k=4, dtype=torch.float64):
    a = torch.randn((k, m) if trans_a else (m, k), dtype=dtype)
    b = torch.randn((n, k) if trans_b else (k, n), dtype=dtype)
    return a, b, torch.randn(n, dtype=dtype)


@pytest.mark.parametrize("trans_a, trans_b", LAYOUTS)
def test_gemm_is_the_sum_of_its_docstring(trans_a, trans_b):
    a, b, bias = operands(trans_a, trans_b)
    out = references.gemm(a, b, trans_a, trans_b, bias)
    for m, n in itertools.product(range(3), range(5)):
        total = sum((a[k, m] if trans_a else a[m, k]) * (b[n, k] if trans_b else b[k, n]) for k in range(4))
        assert out[m, n].item() == pytest.approx((total + bias[n]).item(), rel=1e-12)


@pytest.mark.parametrize("trans_a, trans_b", LAYOUTS)
def test_gradcheck(trans_a, trans_b):
    tensors = [x.requires_grad_() for x in operands(trans_a, trans_b)]
    assert torch.autograd.gradcheck(lambda a, b, bias: references.gemm(a, b, trans_a, trans_b, bias), tensors)


@pytest.mark.parametrize("trans_a, trans_b", LAYOUTS)
def test_backward_equals_autograd(trans_a, trans_b):
    a, b, bias = (x.requires_grad_() for x in operands(trans_a, trans_b))
    out = references.gemm(a, b, trans_a, trans_b, bias)
    grad = torch.randn_like(out)
    out.backward(grad)
    grad_a, grad_b = references.gemm_backward(a, b, grad, trans_a, trans_b)
    torch.testing.assert_close(grad_a, a.grad)
    torch.testing.assert_close(grad_b, b.grad)
    torch.testing.assert_close(references.gemm_bias_backward(grad), bias.grad)
    assert grad_a.is_contiguous() and grad_b.is_contiguous() and not grad_a.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn])
def test_low_precision_inputs_are_widened_first(dtype):
    a = torch.randn(4, 300).to(dtype)
    b = torch.randn(300, 4).to(dtype)
    assert torch.equal(references.gemm(a, b), a.double() @ b.double())


def test_zero_k_gives_zeros_or_the_bias():
    a, b, bias = torch.empty(3, 0), torch.empty(0, 5), torch.randn(5)
    assert torch.equal(references.gemm(a, b), torch.zeros(3, 5, dtype=torch.float64))
    assert torch.equal(references.gemm(a, b, bias=bias), bias.double().expand(3, 5))
    grad_a, grad_b = references.gemm_backward(a, b, torch.ones(3, 5))
    assert grad_a.shape == (3, 0) and grad_b.shape == (0, 5)
