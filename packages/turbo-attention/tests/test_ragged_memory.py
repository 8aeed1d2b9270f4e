# SPDX-License-Identifier: MIT
"""Rows that no sequence has, and offsets and indices that lead out of the tensors.

The first are zeros, in results and gradients, whatever memory held; the others are read as the nearest inside, so that
what is wrong is the numbers and no memory.
"""

import pytest
import torch

from turbo_attention import flash_attn_varlen_func, sparse_mla_func
from turbo_testing.attention_references import attention, sparse_mla
from turbo_testing.metrics import assert_close

# rows of q, rows of k and v, cu_seqlens_q, cu_seqlens_k
GAPS = {
    "behind": (40, 50, (0, 10, 33), (0, 20, 41)),
    "before": (40, 50, (7, 10, 40), (9, 9, 50)),
    "both, empty ones": (70, 50, (3, 3, 36, 36, 67), (1, 8, 8, 40, 49)),
    "no sequence": (33, 34, (0,), (0,)),
    "empty sequences": (5, 6, (2, 2, 2), (3, 3, 3)),
    "queries alone": (40, 7, (1, 30), (2, 2)),
}


def tensors(device, rows_q, rows_k, heads=2):
    q = torch.randn(rows_q, heads, 16, device=device)
    k = torch.randn(rows_k, 1, 16, device=device)
    v = torch.randn(rows_k, 1, 24, device=device)
    return q, k, v


def starts(device, *cu):
    return [torch.tensor(values, dtype=torch.int32, device=device) for values in cu]


@pytest.mark.covering(each="backend")
@pytest.mark.simulated
@pytest.mark.parametrize("options", [{}, {"causal": True, "sink": True}], ids=["full", "causal sink"])
@pytest.mark.parametrize("gaps", GAPS.values(), ids=GAPS)
def test_rows_of_no_sequence_are_zeros(backend, device, gaps, options, poisoned_allocations):
    rows_q, rows_k, cu_q, cu_k = gaps
    q, k, v = tensors(device, rows_q, rows_k)
    inside_q, inside_k = slice(cu_q[0], cu_q[-1]), slice(cu_k[0], cu_k[-1])
    for tensor, inside in ((q, inside_q), (k, inside_k), (v, inside_k)):
        kept = tensor[inside].clone()
        tensor.fill_(torch.nan)
        tensor[inside] = kept
        tensor.requires_grad_()
    options = dict(options)
    sink = torch.randn(2, device=device, requires_grad=True) if options.pop("sink", False) else None
    longest = [max((b - a for a, b in zip(cu, cu[1:], strict=False)), default=0) for cu in (cu_q, cu_k)]
    leaves = [q, k, v, *([] if sink is None else [sink])]
    out, lse = flash_attn_varlen_func(
        q, k, v, *starts(device, cu_q, cu_k), *longest, sink=sink, return_lse=True, **options
    )
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    got = torch.autograd.grad([out, lse], leaves, [dout, dlse])
    wanted, wanted_lse = torch.zeros(out.shape), torch.full(lse.shape, -torch.inf)
    exact = [torch.zeros(leaf.shape, dtype=torch.float64) for leaf in leaves]
    for n in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
        parts = [q[None, rows], k[None, keys], v[None, keys]]
        one, one_lse = attention(*parts, 0.25, right=0 if options else -1, sink=sink)
        wanted[rows], wanted_lse[:, rows] = one[0].detach().cpu().float(), one_lse[0].detach().cpu().float()
        finite = torch.where(one_lse == -torch.inf, 0.0, one_lse)
        outputs, given = [one, finite], [dout[None, rows].double(), dlse[None, :, rows].double()]
        given[1] = torch.where(one_lse == -torch.inf, 0.0, given[1])
        if not one.numel() or not finite.requires_grad:
            continue
        found = torch.autograd.grad(outputs, leaves, given, allow_unused=True)
        for total, gradient in zip(exact, found, strict=True):
            if gradient is not None:
                total += gradient.detach().cpu().double()
    assert_close(out, wanted.to(device), dtype=torch.float32, what="out")
    assert_close(lse, wanted_lse.to(device), dtype=torch.float32, what="lse")
    for name, actual, gradient in zip(("dq", "dk", "dv", "dsink"), got, exact, strict=False):
        assert_close(actual, gradient.to(device), rtol=1e-4, atol=1e-4, what=name)
    for result, inside in ((out, inside_q), (got[0], inside_q), (got[1], inside_k), (got[2], inside_k)):
        outside = torch.ones(len(result), dtype=torch.bool)
        outside[inside] = False
        assert (result[outside.to(device)] == 0).all()


# of 20 queries and 30 keys
WRONG = {
    "past the end": ((0, 90000), (0, 80000)),
    "past the end in the middle": ((0, 400, 20), (0, 10, 30)),
    "negative": ((-5, 12, 20), (-(2**31), 4, 30)),
    "decreasing": ((0, 15, 5, 20), (0, 30, 10, 20)),
    "largest": ((2**31 - 1, 2**31 - 1), (0, 2**31 - 1)),
    "last below first": ((9, 3), (30, 1)),
}


@pytest.mark.simulated
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_offsets_never_lead_out_of_the_tensors(backend, device, wrong):
    """Inputs and results lie between rows of NaN and of 7 that nobody may read or write."""
    whole = [torch.full((100, 2, 16), torch.nan, device=device) for _ in range(3)]
    inner = [tensor[40 : 40 + rows] for tensor, rows in zip(whole, (20, 30, 30), strict=True)]
    for tensor in inner:
        tensor.copy_(torch.randn(tensor.shape, device=device))
    q, k, v = (tensor.requires_grad_() for tensor in inner)
    out, lse = flash_attn_varlen_func(q, k, v, *starts(device, *wrong), 20, 30, return_lse=True)
    clamped = [[min(max(value, 0), rows) for value in cu] for cu, rows in zip(wrong, (20, 30), strict=True)]
    if all(b >= a for cu in clamped for a, b in zip(cu, cu[1:], strict=False)):
        right, right_lse = flash_attn_varlen_func(q, k, v, *starts(device, *clamped), 20, 30, return_lse=True)
        assert torch.equal(out, right) and torch.equal(lse, right_lse)
    covered = torch.zeros(20, dtype=torch.bool)
    for a, b in zip(clamped[0], clamped[0][1:], strict=False):
        covered[a : max(a, b)] = True
    covered = covered.to(device)
    assert out[covered].isfinite().all()
    for gradient, rows in zip(torch.autograd.grad(out[covered].sum(), (q, k, v)), (20, 30, 30), strict=True):
        assert gradient.shape[0] == rows
    assert all(tensor[:40].isnan().all() and tensor[70:].isnan().all() for tensor in whole)


@pytest.mark.simulated
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sparse_indices_past_the_rows_are_empty_slots(backend, device, dtype):
    kv = torch.full((40, 40), torch.nan, device=device, dtype=dtype)
    kv[10:30] = torch.randn(20, 40, device=device).to(dtype)
    kv = kv[10:30].requires_grad_()
    q = torch.randn(6, 3, 40, device=device).to(dtype).requires_grad_()
    indices = torch.randint(0, 20, (6, 37), dtype=torch.int32, device=device)
    far = torch.tensor([20, 21, 29, 2**31 - 1, -1, -(2**31), 19], dtype=torch.int32, device=device)
    indices[:, 5:12] = far
    indices[3] = 20  # a token whose slots are all empty
    sink = torch.randn(3, device=device, requires_grad=True)
    out, lse = sparse_mla_func(q, kv, indices, sink, 24, return_lse=True)
    named = indices.masked_fill(indices >= 20, -1)
    wanted, wanted_lse = sparse_mla(q, kv, named, sink, 24, 40**-0.5)
    bound = 1e-4 if dtype == torch.float32 else 3e-2
    assert_close(out, wanted.detach(), rtol=bound, atol=bound, what="out")
    assert_close(lse, wanted_lse.detach(), rtol=bound, atol=bound, what="lse")
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, kv, sink), dout)
    exact = torch.autograd.grad(wanted, (q, kv, sink), dout.double())
    for name, actual, gradient in zip(("dq", "dkv", "dsink"), got, exact, strict=True):
        assert_close(actual, gradient, rtol=bound, atol=bound * max(1.0, float(gradient.abs().max())), what=name)
