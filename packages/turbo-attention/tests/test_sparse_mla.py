# SPDX-License-Identifier: MIT
"""sparse_mla_func against float64: rotary columns that count, repeated rows, empty slots, fewer rows than tokens."""

import pytest
import torch

from turbo_attention import sparse_mla_func
from turbo_testing.attention_references import sparse_mla
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close, assert_snr

cases = load("turbo-attention")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def inputs(shape, dtype, device):
    q = torch.randn(shape.T, shape.H, shape.D, device=device).to(dtype).requires_grad_()
    kv = torch.randn(shape.N, shape.D, device=device).to(dtype).requires_grad_()
    indices = torch.randint(-1, shape.N, (shape.T, shape.topk), dtype=torch.int32, device=device)
    return q, kv, indices


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize(
    "shape",
    [cases.SPARSE[0], pytest.param(cases.SPARSE[1], marks=pytest.mark.simulated), *cases.SPARSE[2:]],
    ids=str,
)
def test_against_float64(backend, device, shape, with_sink, dtype, poisoned_allocations):
    q, kv, indices = inputs(shape, dtype, device)
    indices[0] = -1  # a token that sees nothing
    sink = torch.randn(shape.H, device=device, requires_grad=True) if with_sink else None
    out, lse = sparse_mla_func(q, kv, indices, sink, shape.rank, return_lse=True)
    wanted, wanted_lse = sparse_mla(q, kv, indices, sink, shape.rank, shape.D**-0.5)
    leaves = [q, kv, *([sink] if with_sink else [])]
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    seen = wanted_lse != -torch.inf
    got = torch.autograd.grad([out, lse], leaves, [dout, dlse])
    finite = torch.where(seen, wanted_lse, 0.0)
    exact = torch.autograd.grad([wanted, finite], leaves, [dout.double(), torch.where(seen, dlse, 0.0).double()])
    bound = TOLERANCE[dtype]
    assert_close(out, wanted.detach(), rtol=bound, atol=bound, what="out")
    assert_close(lse, wanted_lse.detach(), rtol=bound, atol=bound, what="lse")
    for name, actual, gradient in zip(("dq", "dkv", "dsink"), got, exact, strict=False):
        assert_close(actual, gradient, rtol=bound, atol=bound * max(1.0, float(gradient.abs().max())), what=name)
    assert (got[0][0] == 0).all()


def test_rotary_columns_count(backend, device):
    q, kv, indices = inputs(cases.SPARSE[1], torch.float32, device)
    rank = cases.SPARSE[1].rank
    zeroed = kv.detach().clone()
    zeroed[:, rank:] = 0
    assert not torch.allclose(
        sparse_mla_func(q, kv, indices, None, rank), sparse_mla_func(q, zeroed, indices, None, rank)
    )


def test_kv_of_three_dimensions(backend, device):
    q, kv, indices = inputs(cases.SPARSE[1], torch.float32, device)
    rank = cases.SPARSE[1].rank
    assert torch.equal(
        sparse_mla_func(q, kv[:, None], indices, None, rank), sparse_mla_func(q, kv, indices, None, rank)
    )


@pytest.mark.deterministic
def test_bit_equal_from_run_to_run(backend, device):
    shape = cases.Sparse(30, 3, 4, 40, 32, 16)  # every row is named hundreds of times
    q, kv, indices = inputs(shape, torch.bfloat16, device)
    dout = torch.randn(30, 4, 16, device=device).bfloat16()
    runs = [torch.autograd.grad(sparse_mla_func(q, kv, indices, None, 16), (q, kv), dout) for _ in range(3)]
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


@pytest.mark.parametrize("zero", ["tokens", "slots", "rows"])
def test_zero_sizes(backend, device, zero):
    T, topk, N = (0 if zero == name else 3 for name in ("tokens", "slots", "rows"))
    q = torch.randn(T, 2, 32, device=device, requires_grad=True)
    kv = torch.randn(N, 32, device=device, requires_grad=True)
    indices = torch.full((T, topk), -1, dtype=torch.int32, device=device)
    out, lse = sparse_mla_func(q, kv, indices, None, 16, return_lse=True)
    assert (out == 0).all() and (lse == -torch.inf).all()
    out.sum().backward()
    assert (q.grad == 0).all() and (kv.grad == 0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [64, 128])
@pytest.mark.parametrize("with_sink", [False, True])
def test_model_shapes(device, heads, with_sink):
    q = torch.randn(1024, heads, 576, device=device).bfloat16().requires_grad_()
    kv = torch.randn(1500, 576, device=device).bfloat16().requires_grad_()
    indices = torch.randint(-1, 1500, (1024, 256), dtype=torch.int32, device=device)
    sink = torch.randn(heads, device=device) if with_sink else None
    out = sparse_mla_func(q, kv, indices, sink)
    dout = torch.randn_like(out)
    dq, dkv = torch.autograd.grad(out, (q, kv), dout)
    part = slice(0, 64)
    wanted, _ = sparse_mla(q[part].detach(), kv.detach(), indices[part], sink, 512, 576**-0.5)
    assert_snr(out[part], wanted, 40, what="out")
    few = q.detach()[part].clone().requires_grad_(), kv.detach().clone().requires_grad_()
    small = sparse_mla_func(few[0], few[1], indices[part], sink)
    got = torch.autograd.grad(small, few, dout[part])
    exact_inputs = [tensor.detach().double().requires_grad_() for tensor in few]
    exact_out, _ = sparse_mla(*exact_inputs, indices[part], sink, 512, 576**-0.5)
    exact = torch.autograd.grad(exact_out, exact_inputs, dout[part].double())
    for name, actual, gradient in zip(("dq", "dkv"), got, exact, strict=True):
        assert_snr(actual, gradient, 40, what=name)
    assert dq.isfinite().all() and dkv.isfinite().all()
