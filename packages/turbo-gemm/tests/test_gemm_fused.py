# SPDX-License-Identifier: MIT
"""Gradient accumulation fused into the weight-gradient GEMM (``fuse_bgrad_accum_pattern="megatron"``)."""

import pytest
import torch

import turbo_gemm
from turbo_core import BackendType, GlobalBackendManager, UnsupportedError, trace_dispatch
from turbo_testing.metrics import assert_close

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def weight(shape, dtype, main_grad_dtype, device):
    made = torch.nn.Parameter(torch.randn(shape).to(device, dtype))
    made.main_grad = torch.randn(shape).to(device, main_grad_dtype)
    made.grad_added_to_main_grad = False
    return made


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("main_grad_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (False, True), (True, False), (True, True)])
def test_main_grad_takes_the_gradient(backend, device, dtype, main_grad_dtype, trans_a, trans_b):
    if backend is BackendType.HIPBLASLT and main_grad_dtype not in (dtype, torch.float32):
        pytest.skip(f"backend HIPBLASLT has no {dtype} x {dtype} -> {main_grad_dtype}")
    m, n, k = (256, 512, 256) if device.type == "cuda" else (33, 47, 16)
    a = torch.randn((k, m) if trans_a else (m, k)).to(device, dtype).requires_grad_()
    w = weight((n, k) if trans_b else (k, n), dtype, main_grad_dtype, device)
    grad_out = (torch.randn(m, n) / m**0.5).to(device, dtype)
    plain = w.detach().clone().requires_grad_()
    before = w.main_grad.double()

    out = turbo_gemm.gemm(a, w, trans_a, trans_b, fuse_bgrad_accum_pattern="megatron")
    assert torch.equal(w.main_grad.double(), before), "the forward must not touch main_grad"
    with trace_dispatch() as trace:
        (grad_a, grad_w) = torch.autograd.grad(out, (a, w), grad_out)

    want_a, want_w = torch.autograd.grad(turbo_gemm.gemm(a, plain, trans_a, trans_b), (a, plain), grad_out)
    coarser = max((dtype, main_grad_dtype), key=lambda d: torch.finfo(d).eps)
    assert_close(grad_a, want_a, what="dA")
    assert_close(w.main_grad, before + want_w.double(), dtype=coarser, what="main_grad")
    assert w.grad_added_to_main_grad
    assert grad_w.shape == w.shape
    assert not grad_w.any(), "what autograd gets adds nothing"
    assert [record.role for record in trace.records] == ["dgrad", "wgrad"]
    assert "accumulated" in trace.records[1].call


def test_micro_batches_interleave(backend, device):
    """Two forwards before the first backward, as pipeline schedules do."""
    w = weight((8, 4), torch.float32, torch.float32, device)
    w.main_grad.zero_()
    inputs = [torch.randn(5, 4).to(device) for _ in range(3)]
    outputs = [turbo_gemm.gemm(x, w, trans_b=True, fuse_bgrad_accum_pattern="megatron") for x in inputs[:2]]
    outputs[0].sum().backward()
    outputs.append(turbo_gemm.gemm(inputs[2], w, trans_b=True, fuse_bgrad_accum_pattern="megatron"))
    outputs[1].sum().backward()
    outputs[2].sum().backward()
    assert_close(w.main_grad, sum(x.double().sum(0) for x in inputs).expand(8, 4), what="main_grad")


def test_main_grad_may_be_strided(backend, device):
    w = weight((8, 4), torch.float32, torch.float32, device)
    storage = torch.zeros(8, 9, device=device)
    w.main_grad = storage[:, 2:6]
    x = torch.randn(5, 4).to(device)
    turbo_gemm.gemm(x, w, trans_b=True, fuse_bgrad_accum_pattern="megatron").sum().backward()
    assert_close(w.main_grad, x.double().sum(0).expand(8, 4), what="main_grad")
    assert not storage[:, :2].any()
    assert not storage[:, 6:].any()


def test_hooks_of_the_parameter_run(device):
    w = weight((8, 4), torch.float32, torch.float32, device)
    seen = []
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad_added_to_main_grad))
    turbo_gemm.gemm(torch.randn(5, 4).to(device), w, trans_b=True, fuse_bgrad_accum_pattern="megatron").sum().backward()
    assert seen == [True]


def test_frozen_weight_leaves_main_grad_alone(device):
    w = weight((8, 4), torch.float32, torch.float32, device)
    w.requires_grad_(False)
    before = w.main_grad.clone()
    x = torch.randn(5, 4).to(device).requires_grad_()
    turbo_gemm.gemm(x, w, trans_b=True, fuse_bgrad_accum_pattern="megatron").sum().backward()
    with torch.no_grad():
        turbo_gemm.gemm(x, w.requires_grad_(), trans_b=True, fuse_bgrad_accum_pattern="megatron")
    assert torch.equal(w.main_grad, before)
    assert not w.grad_added_to_main_grad


def test_autocast_accumulates_into_the_master_weight(device):
    w = weight((8, 4), torch.float32, torch.float32, device)
    w.main_grad.zero_()
    x = torch.randn(5, 4).to(device)
    with torch.autocast(device.type, torch.bfloat16), trace_dispatch() as trace:
        out = turbo_gemm.gemm(x, w, trans_b=True, fuse_bgrad_accum_pattern="megatron")
    out.sum().backward()
    assert out.dtype is torch.bfloat16
    assert "bfloat16 x bfloat16" in trace.records[0].call
    assert_close(w.main_grad, x.bfloat16().double().sum(0).expand(8, 4), what="main_grad")


@pytest.mark.parametrize("auto_tune", ["global", "per op"])
def test_tuning_never_writes_main_grad(device, auto_tune):
    if auto_tune == "global":
        GlobalBackendManager.set_auto_tune(True)
    else:
        GlobalBackendManager.set_gemm_backend(auto_tune=True)
    w = weight((8, 4), torch.float32, torch.float32, device)
    w.main_grad.zero_()
    x = torch.randn(5, 4).to(device)
    for _ in range(2):
        turbo_gemm.gemm(x, w, trans_b=True, fuse_bgrad_accum_pattern="megatron").sum().backward()
    assert_close(w.main_grad, 2 * x.double().sum(0).expand(8, 4), what="main_grad")


def spoil(w, how):
    if how == "no main_grad":
        del w.main_grad
    elif how == "no flag":
        del w.grad_added_to_main_grad
    elif how == "shape":
        w.main_grad = torch.zeros(4, 8)
    elif how == "dtype":
        w.main_grad = torch.zeros(8, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("pattern", "how", "complaint"),
    [
        ("fused", None, "fuse_bgrad_accum_pattern='fused'; accepted are None and 'megatron'"),
        ("megatron", "no main_grad", "needs b.main_grad"),
        ("megatron", "no flag", "b.grad_added_to_main_grad"),
        ("megatron", "shape", r"b.main_grad has shape \[4, 8\]"),
        ("megatron", "dtype", "torch.float64"),
    ],
)
def test_refusals(pattern, how, complaint):
    w = weight((8, 4), torch.float32, torch.float32, "cpu")
    spoil(w, how)
    with pytest.raises(UnsupportedError, match=complaint):
        turbo_gemm.gemm(torch.randn(5, 4), w, trans_b=True, fuse_bgrad_accum_pattern=pattern)
