# SPDX-License-Identifier: MIT
"""grouped_gemm with its weight gradient added to main_grad: once for each backward in which the weight takes part."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import turbo_grouped_gemm as tgg
from turbo_core import BackendUnavailableError, GlobalBackendManager, UnsupportedError
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

CASES = load("turbo-grouped-gemm")


class Step:
    """x of 10 rows, of which the last is of no group and NaN, a weight with main_grad, and what a plain call gives."""

    def __init__(self, trans_b, dtype, device, indices=False, main_dtype=torch.float32):
        torch.manual_seed(3)
        self.trans_b, self.indices, device = trans_b, indices, torch.device(device)
        self.lens = torch.tensor([4, 0, 5], device=device)
        self.x = torch.randn(10, 32, device=device).to(dtype)
        if not indices:
            self.x[9:] = torch.nan
        self.x.requires_grad_()
        self.options = {"trans_b": trans_b}
        if indices:
            order = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 77], device=device)
            self.options |= {"a_idx": order, "out_idx": torch.arange(10, device=device).flip(0)}
        shape = (3, 24, 32) if trans_b else (3, 32, 24)
        self.w = torch.nn.Parameter(torch.randn(shape, device=device).to(dtype) * 0.3)
        self.w.main_grad = torch.zeros(shape, dtype=main_dtype, device=device)
        self.w.grad_added_to_main_grad = False
        plain = self.w.detach().clone().requires_grad_()
        self.grad = torch.randn(10, 24, device=device).to(dtype)
        self.y = tgg.grouped_gemm(self.x, plain, self.lens, **self.options)
        self.dx, self.dw = torch.autograd.grad(self.y, (self.x, plain), self.grad)

    def fused(self, **options):
        chosen = {**self.options, "fuse_bgrad_accum_pattern": "megatron", **options}
        return tgg.grouped_gemm(self.x, self.w, self.lens, **chosen)

    def backward(self, y):
        y.backward(self.grad, retain_graph=True)


@pytest.fixture(params=[(False, False), (True, True)], ids=["NN", "NT by indices"])
def step(request, device):
    return Step(request.param[0], torch.float32, device, request.param[1])


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("indices", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_added_to_float32(device, dtype, indices, trans_b):
    step = Step(trans_b, dtype, device, indices)
    step.w.main_grad.fill_(2.0)
    y = step.fused()
    assert step.w.grad_added_to_main_grad is True
    assert torch.equal(y, step.y)
    step.backward(y)
    assert torch.equal(step.x.grad, step.dx)
    assert not step.w.grad.any()
    wide = {"a": step.x.detach().double().nan_to_num(0.0), "b": step.w.detach().double().requires_grad_()}
    out = CASES.grouped_gemm(group_lens=step.lens, **wide, **step.options)
    (expected,) = torch.autograd.grad(out, wide["b"], step.grad.double())
    assert_close(step.w.main_grad, 2.0 + expected, dtype=dtype, what="main_grad")
    assert (step.w.main_grad[1] == 2.0).all(), "a group without rows adds nothing"


@pytest.mark.usefixtures("serving")
def test_added_to_16_bits(device):
    step = Step(True, torch.bfloat16, device, main_dtype=torch.bfloat16)
    step.backward(step.fused())
    assert_close(step.w.main_grad, step.dw.double(), dtype=torch.bfloat16)


def test_a_gradient_of_x_alone_adds_nothing(step):
    y = step.fused()
    (got,) = torch.autograd.grad(y, step.x, step.grad, retain_graph=True)
    assert torch.equal(got, step.dx)
    assert not step.w.main_grad.any()
    step.backward(y)
    step.backward(y)
    assert_close(step.w.main_grad, 2 * step.dw.double(), what="main_grad")


def test_where_the_weight_gets_no_gradient(step):
    step.w.requires_grad_(False)
    step.backward(step.fused())
    with torch.no_grad():
        step.w.requires_grad_(True)
        step.fused()
    assert not step.w.main_grad.any() and not step.w.grad_added_to_main_grad


def test_a_gradient_penalty_reaches_main_grad(device):
    """dx is a product of the weight, so the penalty's gradient of it goes where the others go."""
    step = Step(True, torch.float32, device, True)
    y = step.fused()
    (dx,) = torch.autograd.grad(y.square().sum(), step.x, create_graph=True)
    assert not step.w.main_grad.any()
    (y.mean() + dx.square().sum()).backward()
    x64, w64 = (t.detach().double().requires_grad_() for t in (step.x, step.w))
    y64 = CASES.grouped_gemm(x64, w64, step.lens, **step.options)
    (dx64,) = torch.autograd.grad(y64.square().sum(), x64, create_graph=True)
    gx, gw = torch.autograd.grad(y64.mean() + dx64.square().sum(), (x64, w64))
    for name, found, expected in (("x", step.x.grad, gx), ("main_grad", step.w.main_grad, gw)):
        scale = float(expected.abs().max())
        assert_close(found.double() / scale, expected / scale, rtol=1e-4, atol=1e-4, what=name)


@pytest.mark.parametrize("reentrant", [False, True])
def test_under_a_checkpoint(step, reentrant):
    y = checkpoint(lambda x: tgg.grouped_gemm(
        x, step.w, step.lens, fuse_bgrad_accum_pattern="megatron", **step.options
    ), step.x, use_reentrant=reentrant)  # fmt: skip
    y.backward(step.grad)
    assert_close(step.w.main_grad, step.dw.double(), what="main_grad")


def test_compiled_whole(step):
    torch.compile(step.fused, fullgraph=True, backend="aot_eager")().backward(step.grad)
    assert_close(step.w.main_grad, step.dw.double(), what="main_grad")
    assert step.w.grad_added_to_main_grad


def test_a_refused_call_leaves_the_mark_as_it_was(step):
    GlobalBackendManager.set_grouped_gemm_backend("HIPBLASLT")
    with pytest.raises(BackendUnavailableError):
        step.fused()
    assert step.w.grad_added_to_main_grad is False
    step.w.main_grad = step.w.main_grad[0]
    with pytest.raises(UnsupportedError, match=r"grouped_gemm: b.main_grad has shape \[\d+, \d+\]"):
        step.fused()


def test_the_layer(device):
    layer = tgg.GroupedLinear(3, 32, 24, device=device, fuse_wgrad_accumulation=True)
    x, lens = torch.randn(9, 32, device=device), torch.tensor([4, 0, 5], device=device)
    with pytest.raises(UnsupportedError, match="GroupedLinear: fuse_wgrad_accumulation=True needs weight.main_grad"):
        layer(x, lens)
    layer.weight.main_grad = torch.zeros_like(layer.weight)
    layer.weight.grad_added_to_main_grad = False
    layer(x, lens).sum().backward()
    assert_close(layer.weight.main_grad[0], x[:4].double().sum(0).expand(24, 32), dtype=torch.float32)
