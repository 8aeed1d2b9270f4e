# SPDX-License-Identifier: MIT
"""Weights sum to 1 at any size of scores: what a bias or a large product adds to all keys of a query changes nothing.

float32 has room for -1e9, and none beside it for the logarithm of the number of keys. The references take scores as
float32 has them: what rounding a score loses is lost to everybody.
"""

import pytest
import torch

from turbo_attention import flash_attn_fp8_func, flash_attn_func, flash_attn_varlen_func, sparse_mla_func
from turbo_attention.calls import BackwardCall, ForwardCall
from turbo_attention.pytorch.kernels import reference
from turbo_core import BackendType, GlobalBackendManager, why_no_triton
from turbo_testing.attention_references import sparse_mla
from turbo_testing.metrics import assert_close
from turbo_testing.support_table import PLACES

H200 = PLACES["NVIDIA"]
LEAST = {dtype: torch.finfo(dtype).min for dtype in (torch.float32, torch.float16, torch.bfloat16)}
BIASES = {"-1e9": -1e9, "-1e4": -1e4, "1e9": 1e9, **{f"least {dtype}": (LEAST[dtype], dtype) for dtype in LEAST}}
BOUND = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def rounded_attention(q, k, v, bias, slopes=None, sink=None, scale=None):
    """Attention in float64 of scores rounded to float32, one key head for all; and lse."""
    q, k, v = (tensor.double() for tensor in (q, k, v))
    heads = q.shape[2] // k.shape[2]
    s = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(heads, 2)) * (scale or q.shape[-1] ** -0.5)
    if bias is not None:
        s = s.float().double() + bias.double()
    s = s + (s.float().double() - s).detach()
    terms = s if sink is None else torch.cat([s, sink.double()[None, :, None, None].expand(*s.shape[:3], 1)], 3)
    p = terms.softmax(3)[..., : s.shape[3]]
    return torch.einsum("bhij,bjhd->bihd", p, v.repeat_interleave(heads, 2)), torch.logsumexp(terms, 3)


def compare(function, q, k, v, options, bound):
    """Values and every gradient of ``function`` against `rounded_attention`."""
    leaves = [q, k, v, *(options[name] for name in ("bias", "sink") if options.get(name) is not None)]
    out, lse = function(q, k, v, **options, return_lse=True)
    wanted, wanted_lse = rounded_attention(q, k, v, options.get("bias"), sink=options.get("sink"))
    assert_close(out, wanted.detach(), rtol=bound, atol=bound, what="out")
    torch.testing.assert_close(lse.double(), wanted_lse.detach(), rtol=1e-5, atol=1e-4)
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, leaves, dout)
    exact = torch.autograd.grad(wanted, leaves, dout.double())
    for name, actual, gradient in zip(("dq", "dk", "dv", "dbias", "dsink"), got, exact, strict=False):
        scale, rounding = max(1.0, float(gradient.abs().max())), max(bound, BOUND[actual.dtype])
        assert_close(actual, gradient, rtol=rounding, atol=rounding * scale, what=name)


def inputs(device, dtype, sq=5, sk=70, D=16):
    q = torch.randn(2, sq, 2, D, device=device).to(dtype)
    k, v = (torch.randn(2, sk, 1, D, device=device).to(dtype) for _ in range(2))
    return [tensor.requires_grad_() for tensor in (q, k, v)]


def masks(value, q, k, device):
    """A bias that masks query 0 wholly, query 1 but for its last keys, query 2 by turns, and the others not at all."""
    value, dtype = value if isinstance(value, tuple) else (value, torch.float32)
    bias = torch.zeros(1, 1, q.shape[1], k.shape[1], device=device, dtype=dtype)
    bias[:, :, 0] = value
    bias[:, :, 1, :-3] = value
    bias[:, :, 2, ::2] = value
    return bias.requires_grad_()


@pytest.mark.parametrize("value", BIASES.values(), ids=BIASES)
def test_bias_that_masks_whole_rows(backend, device, value):
    q, k, v = inputs(device, torch.float32)
    compare(flash_attn_func, q, k, v, {"bias": masks(value, q, k, device)}, BOUND[torch.float32])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_bias_that_masks_whole_rows_in_16_bits(backend, device, dtype):
    q, k, v = inputs(device, dtype)
    compare(flash_attn_func, q, k, v, {"bias": masks((LEAST[dtype], dtype), q, k, device)}, BOUND[dtype])


@pytest.mark.simulated
@pytest.mark.parametrize("value", [-1e9, LEAST[torch.float32], -1e4])
@pytest.mark.parametrize("logit", [0.0, -1e9])
def test_bias_that_masks_whole_rows_beside_a_sink(backend, device, value, logit):
    """A sink far above the masked keys takes their weight; one that is as far below takes its part."""
    q, k, v = inputs(device, torch.bfloat16)
    sink = torch.full((2,), logit, device=device, requires_grad=True)
    compare(flash_attn_func, q, k, v, {"bias": masks(value, q, k, device), "sink": sink}, BOUND[torch.bfloat16])


def test_equal_keys_under_one_bias_have_equal_weights(backend, device):
    """Four keys, a bias of -1e9 on each: 1/4 of each value, as without it."""
    q, k = (torch.ones(1, 4, 1, 16, device=device, requires_grad=True) for _ in range(2))
    v = torch.arange(4.0, device=device)[None, :, None, None].expand(1, 4, 1, 16).clone().requires_grad_()
    for value in (-1e9, LEAST[torch.float32], LEAST[torch.bfloat16], -1e4, 0.0):
        bias = torch.full((4, 4), value, device=device, requires_grad=True)
        out = flash_attn_func(q, k, v, bias=bias)
        torch.testing.assert_close(out, torch.full_like(out, 1.5))
        dq, dv, dbias = torch.autograd.grad(out.sum(), (q, v, bias))
        torch.testing.assert_close(dv, torch.ones_like(dv))
        torch.testing.assert_close(dbias, torch.tensor([[-6.0, -2, 2, 6]], device=device).expand(4, 4))
        torch.testing.assert_close(dq, torch.zeros_like(dq), atol=1e-5, rtol=0)


@pytest.mark.simulated
@pytest.mark.parametrize("side", [4.0, 128.0, 1024.0])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_equal_keys_of_large_logits(backend, device, dtype, side):
    """Every weight is 1 / 70, forward and backward, at logits of 64, 65536 and 2^22."""
    q = torch.full((1, 70, 2, 16), side, device=device).to(dtype).requires_grad_()
    k = torch.full((1, 70, 1, 16), side, device=device).to(dtype).requires_grad_()
    v = torch.randn(1, 70, 1, 16, device=device).to(dtype).requires_grad_()
    out = flash_attn_func(q, k, v)
    bound = BOUND[dtype]
    assert_close(out, v.detach().double().mean(1, keepdim=True).expand_as(out), rtol=bound, atol=bound, what="out")
    dout = torch.randn_like(out)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout)
    column = dout.double().sum(2, keepdim=True)
    wanted = column.mean(1, keepdim=True).expand_as(dv)
    assert_close(dv, wanted, rtol=bound, atol=bound, what="dv")
    # dk_j = scale sum_i p (dp_ij - D_i) q_i; dq is 0 where all keys are equal
    dp = torch.einsum("bihd,bjd->bhij", dout.double(), v.detach().double()[:, :, 0])
    ds = (dp - dp.mean(3, keepdim=True)) / 70
    exact = ds.sum((1, 2))[..., None, None] * side / 4
    assert_close(dk, exact.expand_as(dk), rtol=bound, atol=bound * float(exact.abs().max()), what="dk")
    assert dq.abs().max() <= bound * float(dp.abs().max()) * side


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_logits_that_differ(backend, device, dtype):
    """Scores of 20480 that are 0 to 3 apart, exact in float32; equal ones for one query.

    Triton's interpreter has no multiply-add: times log2(e) they are rounded to 0.002.
    """
    q = torch.zeros(1, 3, 1, 32, device=device)
    k = torch.zeros(1, 40, 1, 32, device=device)
    q[..., 0], k[..., 0] = 128.0, 160.0
    q[0, :, 0, 1] = torch.tensor([0.0, 1.0, -1.0], device=device)
    k[0, :, 0, 1] = torch.arange(40, device=device) % 13 * 0.25
    q, k = (tensor.to(dtype).requires_grad_() for tensor in (q, k))
    v = torch.randn(1, 40, 1, 32, device=device).to(dtype).requires_grad_()

    def function(q, k, v, **options):
        return flash_attn_func(q, k, v, softmax_scale=1.0, **options)

    out, lse = function(q, k, v, return_lse=True)
    wanted, _ = rounded_attention(q, k, v, None, scale=1.0)
    bound = max(BOUND[dtype], 2e-3 if backend is BackendType.TRITON and device.type == "cpu" else 0.0)
    assert_close(out, wanted.detach(), rtol=bound, atol=bound, what="out")
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), dout)
    exact = torch.autograd.grad(wanted, (q, k, v), dout.double())
    for name, actual, gradient, factor in zip(("dq", "dk", "dv"), got, exact, (160, 128, 1), strict=True):
        assert_close(actual, gradient, rtol=bound, atol=bound * factor, what=name)


def test_ragged_equal_keys_of_large_logits(backend, device):
    q = torch.full((60, 1, 16), 128.0, device=device, requires_grad=True)
    v = torch.randn(60, 1, 16, device=device, requires_grad=True)
    starts = torch.tensor([0, 17, 17, 60], dtype=torch.int32, device=device)
    out = flash_attn_varlen_func(q, q, v, starts, starts, 43, 43)
    dout = torch.randn_like(out)
    dq, dv = torch.autograd.grad(out, (q, v), dout)
    for rows in (slice(0, 17), slice(17, 60)):
        assert_close(out[rows], v[rows].detach().double().mean(0).expand_as(out[rows]), dtype=torch.float32)
        assert_close(dv[rows], dout[rows].double().mean(0).expand_as(dv[rows]), dtype=torch.float32)


@pytest.mark.parametrize("value", [-1e9, LEAST[torch.float32]])
def test_fp8_bias_that_masks_whole_rows(backend, device, value):
    q, k, v = inputs(device, torch.bfloat16)
    q, k, v = (tensor.detach().mul(4).round().div(4).requires_grad_() for tensor in (q, k, v))  # E4M3 holds them
    bias = masks(value, q, k, device)
    out = flash_attn_fp8_func(q, k, v, bias=bias)
    wanted, _ = rounded_attention(q, k, v, bias)
    assert_close(out, wanted.detach(), rtol=0.1, atol=0.1, what="out")
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), dout)
    exact = torch.autograd.grad(wanted, (q, k, v), dout.double())
    for name, actual, gradient in zip(("dq", "dk", "dv"), got, exact, strict=True):
        assert_close(actual, gradient, rtol=0.1, atol=0.1 * float(gradient.abs().max()), what=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sinks", [None, "equal", "far below"])
def test_sparse_equal_rows_of_large_logits(backend, device, dtype, sinks):
    kv = torch.full((6, 32), 128.0, device=device)
    kv[:, :8] = torch.randn(6, 8, device=device)  # beside 24 columns of equal scores of 49152 each
    q = torch.full((4, 2, 32), 128.0, device=device)
    q[..., :8] = 0
    q, kv = q.to(dtype).requires_grad_(), kv.to(dtype).requires_grad_()
    indices = torch.tensor([[0, 1, 2, 3, 5], [5, 5, -1, 0, 6], [-1, -1, -1, -1, -1], [1, 2, 3, -7, 400]])
    indices = indices.to(torch.int32).to(device)
    sink = None if sinks is None else torch.full((2,), 393216.0 * 0.125 if sinks == "equal" else 0.0, device=device)
    out, lse = sparse_mla_func(q, kv, indices, sink, 16, 0.125, return_lse=True)
    named = indices.masked_fill(indices >= 6, -1)
    wanted, wanted_lse = sparse_mla(q, kv, named, sink, 16, 0.125)
    bound = BOUND[dtype]
    assert_close(out, wanted.detach(), rtol=bound, atol=bound * 128, what="out")
    assert torch.equal(lse == -torch.inf, wanted_lse == -torch.inf)
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, kv), dout)
    exact = torch.autograd.grad(wanted, (q, kv), dout.double())
    for name, actual, gradient in zip(("dq", "dkv"), got, exact, strict=True):
        assert_close(actual, gradient, rtol=bound, atol=bound * 128, what=name)


def test_probabilities_sum_to_one(device):
    GlobalBackendManager.set_attn_backend("TORCH")
    q, k, v = inputs(device, torch.float32)
    _, p = flash_attn_func(q, k, v, bias=masks(-1e9, q, k, device), return_attn_probs=True)
    torch.testing.assert_close(p.sum(3), torch.ones_like(p.sum(3)))


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
def test_on_nvidia_heads_of_large_lse_are_computed_again(device, ragged, poisoned_allocations):
    """The kernel of keys leaves the second number of lse out at first, which 16 bits do not see while lse is small."""
    if device.type != "cpu" or (reason := why_no_triton(device)):
        pytest.skip("the interpreter runs the launches of the other device" if device.type != "cpu" else reason)
    from turbo_attention.triton import attention as launcher

    starts = torch.tensor([0, 90, 99, 130], dtype=torch.int32) if ragged else None
    q, k = torch.ones(1, 140, 4, 16).bfloat16(), torch.full((1, 140, 2, 16), 1024.0).bfloat16()
    q[:, :, 1] = 1024.0  # one head of four, of the first key head: logits of 2^22
    v = torch.randn(1, 140, 2, 16).bfloat16()
    lengths = (90, 90) if ragged else (140, 140)
    call = ForwardCall(q, k, v, 0.25, -1, -1, 0.0, 0.0, None, None, None, None, starts, starts, *lengths)
    result, launches = launcher.plan_forward(call, H200)
    for launch in launches:
        launch.run(device)
    dout = torch.randn(1, 140, 4, 16).bfloat16()
    backward = BackwardCall(call, *result, dout, None, False)
    wanted = reference.attention_backward(backward)
    found, launches = launcher.plan_backward(backward, H200)
    kernels = [launch.kernel.fn.__name__ for launch in launches]
    again = kernels.index("backward_kv_kernel", kernels.index("backward_kv_kernel") + 1)
    for launch in launches[:again]:
        launch.run(device)
    first = found.dv.clone()
    for launch in launches[again:]:
        launch.run(device)
    for name in ("dq", "dk", "dv"):
        exact = getattr(wanted, name).double()
        largest = 256.0 if name == "dq" else float(exact.abs().max())  # dq is 0: all keys are equal, of 1024 each
        assert_close(getattr(found, name), exact, rtol=2e-2, atol=2e-2 * largest, what=name)
    rows = slice(0, 130 if ragged else 140)
    assert torch.equal(first[:, rows, 1], found.dv[:, rows, 1]), "of near heads nothing is computed again"
    assert (first[:, rows, 0] - found.dv[:, rows, 0]).abs().max() > 0.01
