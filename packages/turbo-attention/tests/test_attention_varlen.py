# SPDX-License-Identifier: MIT
"""flash_attn_varlen_func: each sequence is the dense attention of it, empty ones included."""

import pytest
import torch

from turbo_attention import TurboAttention, flash_attn_func, flash_attn_varlen_func
from turbo_testing.attention_references import attention
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

cases = load("turbo-attention")

OPTIONS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (9, 2)},
    "causal sink": {"causal": True, "sink": True},
    "alibi softcap": {"alibi": True, "softcap": 3.0},
}


def lengths(cu):
    return [end - start for start, end in zip(cu, cu[1:], strict=False)]


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    "ragged",
    [cases.RAGGED[0], pytest.param(cases.RAGGED[1], marks=pytest.mark.simulated), cases.RAGGED[2]],
    ids=str,
)
@pytest.mark.parametrize("heads", [(4, 4), (4, 1)], ids=str)
def test_against_float64(backend, device, ragged, options, heads, poisoned_allocations):
    cu_q, cu_k = ragged
    Hq, Hkv = heads
    q = torch.randn(cu_q[-1], Hq, 16, device=device, requires_grad=True)
    k = torch.randn(cu_k[-1], Hkv, 16, device=device, requires_grad=True)
    v = torch.randn(cu_k[-1], Hkv, 24, device=device, requires_grad=True)
    options = dict(options)
    sink = torch.randn(Hq, device=device, requires_grad=True) if options.pop("sink", False) else None
    slopes = torch.rand(len(cu_q) - 1, Hq, device=device) if options.pop("alibi", False) else None
    starts = [torch.tensor(cu, dtype=torch.int32, device=device) for cu in ragged]
    out, lse = flash_attn_varlen_func(
        q, k, v, *starts, max(lengths(cu_q)), max(lengths(cu_k)), sink=sink, alibi_slopes=slopes, return_lse=True,
        **options
    )  # fmt: skip
    left, right = options.get("window_size", (-1, -1))
    right = 0 if options.get("causal") else right
    wanted, wanted_lse = [], []
    for n in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
        one, one_lse = attention(
            q[None, rows], k[None, keys], v[None, keys], 0.25, left, right, options.get("softcap", 0.0), None,
            None if slopes is None else slopes[n], sink
        )  # fmt: skip
        wanted.append(one[0])
        wanted_lse.append(one_lse[0])
    wanted, wanted_lse = torch.cat(wanted), torch.cat(wanted_lse, 1)
    leaves = [q, k, v, *([] if sink is None else [sink])]
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, leaves, dout)
    exact = torch.autograd.grad(wanted, leaves, dout.double())
    assert_close(out, wanted.detach(), dtype=torch.float32, what="out")
    assert_close(lse, wanted_lse.detach(), dtype=torch.float32, what="lse")
    for name, actual, gradient in zip(("dq", "dk", "dv", "dsink"), got, exact, strict=False):
        assert_close(actual, gradient, rtol=1e-4, atol=1e-4, what=name)
        assert actual.isfinite().all()


def test_keys_of_an_empty_query_sequence_have_no_gradient(backend, device):
    cu_q, cu_k = ((0, 0, 25, 51), (0, 50, 77, 153))
    q = torch.randn(51, 8, 16, device=device, requires_grad=True)
    k = torch.randn(153, 1, 16, device=device, requires_grad=True)
    starts = [torch.tensor(cu, dtype=torch.int32, device=device) for cu in (cu_q, cu_k)]
    out = flash_attn_varlen_func(q, k, k, *starts, 26, 76, causal=True)
    (dk,) = torch.autograd.grad(out.sum(), (k,))
    assert (dk[:50] == 0).all() and dk.isfinite().all() and (dk[51:] != 0).any()


def test_rows_behind_the_last_sequence_are_not_read(backend, device):
    q = torch.randn(40, 2, 16, device=device)
    starts = torch.tensor([0, 10, 33], dtype=torch.int32, device=device)
    wanted = flash_attn_varlen_func(q, q, q, starts, starts, 23, 23)[:33]
    q[33:] = torch.nan
    assert torch.equal(flash_attn_varlen_func(q, q, q, starts, starts, 23, 23)[:33], wanted)


def test_one_sequence_is_dense_attention(backend, device):
    q = torch.randn(1, 50, 2, 16, device=device)
    starts = torch.tensor([0, 50], dtype=torch.int32, device=device)
    ragged = flash_attn_varlen_func(q[0], q[0], q[0], starts, starts, 50, 50, causal=True)
    assert_close(ragged, flash_attn_func(q, q, q, causal=True)[0].double(), dtype=torch.float32)


def test_dropout_and_probabilities(backend, device):
    q = torch.randn(30, 2, 16, device=device)
    starts = torch.tensor([0, 10, 10, 30], dtype=torch.int32, device=device)
    out, p = flash_attn_varlen_func(q, q, q, starts, starts, 20, 20, dropout_p=0.3, return_attn_probs=True)
    assert p.shape == (3, 2, 20, 20) and (p[0, :, 10:] == 0).all() and (p[1] == 0).all()
    kept = torch.where(torch.signbit(p), 0.0, p) / ((2**24 - round(0.3 * 2**24)) / 2**24)
    wanted = torch.einsum("hij,jhd->ihd", kept[2], q[10:])
    assert_close(out[10:], wanted.double(), dtype=torch.float32)


def test_module_takes_both_forms(backend, device):
    module = TurboAttention(causal=True, sink=torch.nn.Parameter(torch.zeros(2, device=device)))
    q = torch.randn(1, 20, 2, 16, device=device)
    starts = torch.tensor([0, 20], dtype=torch.int32, device=device)
    dense = module(q, q, q)
    ragged = module(
        q[0], q[0], q[0], cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=20, max_seqlen_k=20
    )  # fmt: skip
    assert_close(ragged, dense[0].detach().double(), dtype=torch.float32)
    dense.sum().backward()
    assert module.sink.grad.abs().max() > 0
