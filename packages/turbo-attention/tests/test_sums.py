# SPDX-License-Identifier: MIT
"""What is summed over many: a sink's gradient where contributions cancel, dkv in a fixed order, and work in chunks."""

import pytest
import torch

from turbo_attention import flash_attn_func, flash_attn_varlen_func, sparse_mla_func
from turbo_attention.calls import BackwardCall, ForwardCall
from turbo_attention.pytorch.kernels import reference, sparse_mla_reference
from turbo_attention.sparse_calls import SparseBackward, SparseForward
from turbo_core import GlobalBackendManager, why_no_triton
from turbo_testing.attention_references import attention, sparse_mla
from turbo_testing.metrics import assert_close

# --- a sink whose gradient is a small sum of large numbers ------------------------------------------------------------


@pytest.mark.simulated
@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_sink_whose_contributions_cancel(backend, device, dtype, ragged, poisoned_allocations):
    """Values far from zero: each query adds much to dsink, the sum over queries is a thousandth of that."""
    S = 96
    q, k = (torch.randn(1, S, 2, 32, device=device).to(dtype) for _ in range(2))
    v = (torch.randn(1, S, 2, 32, device=device) + 4).to(dtype)
    sink = torch.zeros(2, device=device, requires_grad=True)
    signs = torch.ones(S, device=device)
    signs[1::2] = -1
    dout = (signs[None, :, None, None] * torch.rand(1, S, 2, 32, device=device).add(0.5)).to(dtype)
    exact = sink.detach().double().requires_grad_()
    wanted, lse = attention(q, k, v, 32**-0.5, sink=exact)
    shares = torch.exp(exact.detach()[None, :, None] - lse) * (wanted * dout.double()).sum(3).transpose(1, 2)
    (dsink,) = torch.autograd.grad(wanted, exact, dout.double())
    assert (shares.abs().sum((0, 2)) > 5 * dsink.abs()).all(), "they cancel"
    if ragged:
        rows = [torch.cat([tensor[0], torch.full_like(tensor[0, :7], torch.nan)]) for tensor in (q, k, v)]
        starts = torch.tensor([0, S], dtype=torch.int32, device=device)
        out = flash_attn_varlen_func(*rows, starts, starts, S, S, sink=sink)[:S][None]
    else:
        out = flash_attn_func(q, k, v, sink=sink)
    (got,) = torch.autograd.grad(out, sink, dout)
    assert ((got.double() - dsink).abs() <= 2e-6 * shares.abs().sum((0, 2))).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_sparse_sink_whose_contributions_cancel(backend, device, dtype):
    q = torch.randn(64, 2, 40, device=device).to(dtype)
    kv = (torch.randn(50, 40, device=device) + 2).to(dtype)
    indices = torch.randint(-3, 55, (64, 21), dtype=torch.int32, device=device)
    sink = torch.zeros(2, device=device, requires_grad=True)
    signs = torch.ones(64, device=device)
    signs[1::2] = -1
    dout = (signs[:, None, None] * torch.rand(64, 2, 24, device=device).add(0.5)).to(dtype)
    exact = sink.detach().double().requires_grad_()
    named = indices.masked_fill(indices >= 50, -1)
    wanted, lse = sparse_mla(q, kv, named, exact, 24, 0.02)
    shares = torch.exp(exact.detach() - lse) * (wanted * dout.double()).sum(2)
    (dsink,) = torch.autograd.grad(wanted, exact, dout.double())
    assert (shares.abs().sum(0) > 5 * dsink.abs()).all(), "they cancel"
    (got,) = torch.autograd.grad(sparse_mla_func(q, kv, indices, sink, 24, 0.02), sink, dout)
    assert ((got.double() - dsink).abs() <= 2e-6 * shares.abs().sum(0)).all()


# --- sums in a fixed order --------------------------------------------------------------------------------------------


@pytest.mark.deterministic
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_dkv_has_the_same_bits_from_run_to_run(device, threads):
    """Few rows, named thousands of times, by several threads."""
    GlobalBackendManager.set_sparse_attn_backend("TORCH")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        q = torch.randn(400, 2, 48, device=device, requires_grad=True)
        kv = torch.randn(7, 48, device=device, requires_grad=True)
        indices = torch.randint(-1, 9, (400, 60), dtype=torch.int32, device=device)
        dout = torch.randn(400, 2, 32, device=device)
        runs = [torch.autograd.grad(sparse_mla_func(q, kv, indices, None, 32), (q, kv), dout) for _ in range(12)]
    finally:
        torch.set_num_threads(before)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


# --- chunks -----------------------------------------------------------------------------------------------------------


def equal(got, wanted):
    for name, one, other in zip(type(wanted)._fields, got, wanted, strict=True):
        if other is None:
            assert one is None
            continue
        assert_close(one, other.double(), rtol=1e-5, atol=1e-5, what=name)


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
@pytest.mark.parametrize("chunk", [1, 150, 600])
def test_queries_in_chunks(device, chunk, ragged):
    """Chunks of one query, of a few and of most of them: the last is smaller than the others."""
    B, sq, sk = (1, 40, 50) if ragged else (2, 23, 31)
    q, k, v = (torch.randn(B, n, h, 16, device=device) for n, h in ((sq, 4), (sk, 2), (sk, 2)))
    starts = [torch.tensor(cu, dtype=torch.int32, device=device) for cu in ((0, 17, 40), (0, 31, 50))]
    bias = None if ragged else torch.randn(B, 4, sq, sk, device=device)
    cu = starts if ragged else (None, None)
    slopes, sink = torch.rand(2, 4, device=device), torch.randn(4, device=device)
    rng = torch.tensor([5, 7], device=device)
    lengths = (23, 31) if ragged else (sq, sk)
    call = ForwardCall(q, k, v, 0.3, 9, 2, 4.0, 0.2, bias, slopes, sink, rng, *cu, *lengths)
    whole = reference.attention_forward(call)
    equal(reference.attention_forward(call, chunk), whole)
    dout, dlse = torch.randn_like(whole.out), torch.randn_like(whole.lse)
    backward = BackwardCall(call, *whole, dout, dlse, not ragged)
    equal(reference.attention_backward(backward, chunk), reference.attention_backward(backward))
    probabilities = reference.attention_probabilities(call)
    assert_close(reference.attention_probabilities(call, chunk), probabilities.double(), dtype=torch.float32)
    assert (probabilities < 0).any()


@pytest.mark.covering
@pytest.mark.parametrize("held", [1, 3 * 9 * 40, 5 * 9 * 40])
@pytest.mark.parametrize("name", ["TORCH", "TRITON"])
def test_tokens_in_chunks(device, name, held, poisoned_allocations):
    """13 tokens of 9 slots of 40 columns: 13 chunks, 5 of which the last has one token, and 3 of which it has three."""
    if name == "TRITON" and (reason := why_no_triton(device)):
        pytest.skip(reason)
    q, kv = torch.randn(13, 3, 40, device=device), torch.randn(6, 40, device=device)
    indices = torch.randint(-1, 8, (13, 9), dtype=torch.int32, device=device)
    call = SparseForward(q, kv, indices, torch.randn(3, device=device), 24, 0.2)
    whole = sparse_mla_reference.sparse_mla_forward(call)
    backward = SparseBackward(call, *whole, torch.randn_like(whole.out), torch.randn_like(whole.lse))
    wanted = sparse_mla_reference.sparse_mla_backward(backward)
    if name == "TORCH":
        equal(sparse_mla_reference.sparse_mla_forward(call, held), whole)
        equal(sparse_mla_reference.sparse_mla_backward(backward, held), wanted)
    else:
        from turbo_attention.triton import sparse_mla as launcher

        equal(launcher.run(backward, held), wanted)
