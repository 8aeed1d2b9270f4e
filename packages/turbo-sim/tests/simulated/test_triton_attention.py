# SPDX-License-Identifier: MIT
"""Flash attention forward and backward, small kernels of their own, against float64."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    q, k, v, out, lse, S, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr
):
    """out[S, D] = softmax(q k^T scale) v for one head per program_id(1); lse[S] is the log of the softmax
    denominators.
    """
    base = tl.program_id(1) * S * D
    m, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    x = tl.load(q + base + m[:, None] * D + d[None, :], mask=m[:, None] < S, other=0.0)
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * BM, S) if CAUSAL else S
    for start in range(0, end, BN):
        n = start + tl.arange(0, BN)
        y = tl.load(k + base + n[None, :] * D + d[:, None], mask=n[None, :] < S, other=0.0)
        s = tl.dot(x, y) * scale
        keep = n[None, :] < S
        if CAUSAL:
            keep = keep & (m[:, None] >= n[None, :])
        s = tl.where(keep, s, -1e30)
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        shrink = tl.exp(top - new)
        total = total * shrink + tl.sum(p, 1)
        z = tl.load(v + base + n[:, None] * D + d[None, :], mask=n[:, None] < S, other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p.to(z.dtype), z)
        top = new
    tl.store(
        out + base + m[:, None] * D + d[None, :], (acc / total[:, None]).to(out.dtype.element_ty), mask=m[:, None] < S
    )
    tl.store(lse + tl.program_id(1) * S + m, top + tl.log(total), mask=m < S)


@triton.jit
def backward_kernel(
    q, k, v, do, lse, delta, dq, dk, dv, S, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr
):  # fmt: skip
    """dk and dv of BN keys in registers; dq by float32 atomics. delta[S] = sum(do * out)."""
    base, rows = tl.program_id(1) * S * D, tl.program_id(1) * S
    n, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, D)
    y = tl.load(k + base + n[:, None] * D + d[None, :], mask=n[:, None] < S, other=0.0)
    z = tl.load(v + base + n[:, None] * D + d[None, :], mask=n[:, None] < S, other=0.0)
    gk, gv = tl.zeros((BN, D), tl.float32), tl.zeros((BN, D), tl.float32)
    for start in range(0, S, BM):
        m = start + tl.arange(0, BM)
        x = tl.load(q + base + m[:, None] * D + d[None, :], mask=m[:, None] < S, other=0.0)
        g = tl.load(do + base + m[:, None] * D + d[None, :], mask=m[:, None] < S, other=0.0)
        keep = (m[:, None] < S) & (n[None, :] < S)
        if CAUSAL:
            keep = keep & (m[:, None] >= n[None, :])
        s = tl.dot(x, tl.trans(y)) * scale
        p = tl.where(keep, tl.exp(s - tl.load(lse + rows + m, mask=m < S, other=0.0)[:, None]), 0.0)
        gv += tl.dot(tl.trans(p.to(g.dtype)), g)
        dp = tl.dot(g, tl.trans(z))
        ds = (p * (dp - tl.load(delta + rows + m, mask=m < S, other=0.0)[:, None]) * scale).to(x.dtype)
        gk += tl.dot(tl.trans(ds), x)
        tl.atomic_add(dq + base + m[:, None] * D + d[None, :], tl.dot(ds, y), mask=m[:, None] < S)
    tl.store(dk + base + n[:, None] * D + d[None, :], gk, mask=n[:, None] < S)
    tl.store(dv + base + n[:, None] * D + d[None, :], gv, mask=n[:, None] < S)


def reference(q, k, v, do, scale, causal):
    q, k, v = (t.double().requires_grad_() for t in (q, k, v))
    s = q @ k.transpose(1, 2) * scale
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[1:], dtype=torch.bool).tril(), -float("inf"))
    out = torch.softmax(s, 2) @ v
    out.backward(do.double())
    return out.detach(), torch.logsumexp(s, 2).detach(), q.grad, k.grad, v.grad


@pytest.mark.covering(each="simulator")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seqlen,head_dim", [(100, 64), (64, 128)])
def test_attention(simulator, dtype, causal, seqlen, head_dim):
    heads, scale = 2, head_dim**-0.5
    q, k, v, do = (torch.randn(heads, seqlen, head_dim).to(dtype) for _ in range(4))
    out, lse = torch.empty_like(q), torch.empty(heads, seqlen)
    forward_kernel[(triton.cdiv(seqlen, 64), heads)](
        q, k, v, out, lse, seqlen, scale, D=head_dim, BM=64, BN=32, CAUSAL=causal
    )
    delta = (out.float() * do.float()).sum(2)
    dq, dk, dv = (torch.zeros(heads, seqlen, head_dim) for _ in range(3))
    backward_kernel[(triton.cdiv(seqlen, 32), heads)](
        q, k, v, do, lse, delta, dq, dk, dv, seqlen, scale, D=head_dim, BM=32, BN=32, CAUSAL=causal
    )
    expected = reference(q, k, v, do, scale, causal)
    for name, actual, wanted in zip(("out", "lse", "dq", "dk", "dv"), (out, lse, dq, dk, dv), expected):
        error = (actual.double() - wanted).norm() / wanted.norm()
        assert error < (2e-2 if dtype == torch.bfloat16 else 4e-3), f"{name}: {error:.2e}"
