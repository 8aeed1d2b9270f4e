# SPDX-License-Identifier: MIT
"""Accumulation into main_grad inside training loops: the gradient is added by backwards in which the weight takes part.

The layers' ``fuse_wgrad_accumulation`` is tested here as well.
"""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import turbo_gemm
from turbo_core import BackendUnavailableError, GlobalBackendManager, UnsupportedError
from turbo_core.low_precision import Float4QuantConfig
from turbo_gemm.pytorch.kernels import gemm_fp8_reference, gemm_reference
from turbo_quant import QuantizedTensorPair, create_quantized_weight
from turbo_testing.metrics import assert_close
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS

CONFIGS = {"gemm": None, **FP8_CONFIGS, **FP4_CONFIGS}
NAMES = ["gemm", "tensorwise-e4m3", "rowwise-hybrid", "blockwise-e4m3", "mx-hybrid", "mxfp4"]
LAYERS = {"gemm": turbo_gemm.Linear, "mx-hybrid": turbo_gemm.Float8Linear, "mxfp4": turbo_gemm.Float4Linear}


def product(name):
    """x w^T by one of the ops."""
    if name == "gemm":
        return lambda a, b, **options: turbo_gemm.gemm(a, b, trans_b=True, **options)
    config = CONFIGS[name]
    function = turbo_gemm.gemm_fp4 if isinstance(config, Float4QuantConfig) else turbo_gemm.gemm_fp8
    return lambda a, b, **options: function(a, b, trans_b=True, config=config, **options)


def fused(name):
    multiply = product(name)
    return lambda a, b, **options: multiply(a, b, fuse_bgrad_accum_pattern="megatron", **options)


def weight(shape=(48, 32), dtype=torch.float32, device="cpu"):
    made = torch.nn.Parameter(torch.randn(shape, device=device).to(dtype))
    made.main_grad = torch.zeros(shape, device=device)
    made.grad_added_to_main_grad = False
    return made


@pytest.fixture(params=NAMES)
def case(request, device):
    """The op, x, a weight with a main_grad, and the gradients of y.sum() that a plain call has."""
    torch.manual_seed(3)
    x = torch.randn(16, 32, device=device, requires_grad=True)
    w = weight(device=device)
    plain = w.detach().clone().requires_grad_()
    dx, dw = torch.autograd.grad(product(request.param)(x, plain).sum(), (x, plain))
    return request.param, x, w, dx, dw


@pytest.mark.usefixtures("serving")
def test_a_gradient_of_x_alone_adds_nothing(case):
    """Field case: autograd.grad with respect to x, then the backward; main_grad held the gradient twice."""
    name, x, w, dx, dw = case
    y = fused(name)(x, w)
    (got,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.equal(got, dx)
    assert not w.main_grad.any()
    y.sum().backward()
    assert_close(w.main_grad, dw.double(), what="main_grad")
    assert torch.equal(x.grad, dx)
    assert not w.grad.any()


def test_each_backward_of_the_weight_adds_once(case):
    name, x, w, dx, dw = case
    y = fused(name)(x, w)
    y.sum().backward(retain_graph=True)
    y.sum().backward(inputs=[x], retain_graph=True)
    assert_close(w.main_grad, dw.double(), what="after one of the weight")
    torch.autograd.grad(y.sum(), (x, w), retain_graph=True)
    assert_close(w.main_grad, 2 * dw.double(), what="after grad of both")
    (zeros,) = torch.autograd.grad(y.sum(), w)
    assert_close(w.main_grad, 3 * dw.double(), what="after grad of the weight")
    assert not zeros.any()


def test_a_weight_that_is_no_leaf(case):
    """A weight cut out of a flat buffer: the gradient that its graph gets is zeros."""
    name, x, w, dx, dw = case
    flat = w.detach().clone().flatten().requires_grad_()
    part = flat.view(w.shape)
    part.main_grad, part.grad_added_to_main_grad = torch.zeros_like(w), False
    y = fused(name)(x, part)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert not part.main_grad.any()
    y.sum().backward()
    assert_close(part.main_grad, dw.double(), what="main_grad")
    assert not flat.grad.any()


def test_create_graph_leaves_main_grad_without_a_graph(case):
    name, x, w, dx, dw = case
    y = fused(name)(x, w)
    (got,) = torch.autograd.grad(y.sum(), x, create_graph=True, retain_graph=True)
    assert not w.main_grad.any()
    torch.autograd.grad(y.sum(), (x, w), create_graph=True)
    assert w.main_grad.grad_fn is None
    assert not w.main_grad.requires_grad
    assert_close(w.main_grad, dw.double(), what="main_grad")
    assert torch.equal(got.detach(), dx)


@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_gradient_penalty_reaches_main_grad(device, trans_a, trans_b):
    """dx is a product of the weight, so the penalty's gradient of it goes where the others go."""
    x = torch.randn((32, 16) if trans_a else (16, 32), device=device, requires_grad=True)
    w = weight((48, 32) if trans_b else (32, 48), device=device)
    bias = torch.randn(48, device=device, requires_grad=True)
    y = turbo_gemm.gemm(x, w, trans_a, trans_b, None, "megatron", bias=bias)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    assert not w.main_grad.any()
    (y.mean() + dx.square().sum()).backward()

    x64, w64, bias64 = (t.detach().double().requires_grad_() for t in (x, w, bias))
    y64 = (x64.t() if trans_a else x64) @ (w64.t() if trans_b else w64) + bias64
    (dx64,) = torch.autograd.grad(y64.square().sum(), x64, create_graph=True)
    (y64.mean() + dx64.square().sum()).backward()
    for got, want, what in ((dx, dx64, "dx"), (x.grad, x64.grad, "x.grad"), (bias.grad, bias64.grad, "bias.grad")):
        assert_close(got, want.detach(), rtol=1e-4, atol=1e-2, what=what)
    assert_close(w.main_grad, w64.grad, rtol=1e-4, atol=2e-2, what="main_grad")
    assert not w.grad.any()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed(case, reentrant):
    name, x, w, dx, dw = case
    for _ in range(2):
        checkpoint(lambda x: fused(name)(x, w), x, use_reentrant=reentrant).sum().backward()
    assert_close(w.main_grad, 2 * dw.double(), what="main_grad")
    assert torch.equal(x.grad, 2 * dx)
    assert w.grad_added_to_main_grad


def test_checkpointed_gradient_of_x_alone(case):
    name, x, w, dx, _ = case
    (got,) = torch.autograd.grad(checkpoint(fused(name), x, w, use_reentrant=False).sum(), x)
    assert torch.equal(got, dx)
    assert not w.main_grad.any()


@pytest.mark.parametrize(("need_x", "need_bias"), [(False, False), (False, True), (True, False)])
def test_frozen_x_and_bias(case, need_x, need_bias):
    name, x, w, dx, dw = case
    x = x.detach().requires_grad_(need_x)
    bias = torch.zeros(48, device=x.device, requires_grad=need_bias)
    fused(name)(x, w, bias=bias).sum().backward()
    assert_close(w.main_grad, dw.double(), what="main_grad")
    assert x.grad is None if not need_x else torch.equal(x.grad, dx)
    assert bias.grad is None if not need_bias else torch.equal(bias.grad, torch.full_like(bias, 16))


def test_two_uses_of_one_weight(case):
    """Tied weights: one graph, two products."""
    name, x, w, dx, dw = case
    (fused(name)(x, w) + fused(name)(x, w)).sum().backward()
    assert_close(w.main_grad, 2 * dw.double(), what="main_grad")


def test_compiled_whole(case):
    """A compiled backward is one node, which computes every gradient."""
    name, x, w, dx, dw = case
    torch.compiler.reset()
    compiled = torch.compile(fused(name), fullgraph=True, backend="aot_eager")
    for _ in range(2):
        compiled(x, w).sum().backward()
    assert_close(w.main_grad, 2 * dw.double(), what="main_grad")
    assert_close(x.grad, 2 * dx.double(), what="dx")
    assert w.main_grad.grad_fn is None


def test_compiled_autograd(case):
    """A backward that is compiled by itself, after an eager forward."""
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    name, x, w, dx, dw = case
    y = fused(name)(x, w)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        y.sum().backward()
    assert_close(w.main_grad, dw.double(), what="main_grad")
    assert torch.equal(x.grad, dx)


def test_a_new_main_grad_between_forward_and_backward(case):
    """The buffer is the one that the weight has when the backward runs."""
    name, x, w, _, dw = case
    y = fused(name)(x, w)
    old, w.main_grad = w.main_grad, torch.zeros_like(w.main_grad)
    y.sum().backward()
    assert not old.any()
    assert_close(w.main_grad, dw.double(), what="main_grad")


def test_a_weight_written_between_forward_and_backward_is_an_error(device):
    x, w = torch.randn(16, 32, device=device, requires_grad=True), weight(device=device)
    y = turbo_gemm.gemm(x, w, trans_b=True, fuse_bgrad_accum_pattern="megatron")
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_empty_batch(case):
    name, x, w, _, _ = case
    fused(name)(x[:0], w).sum().backward()
    assert not w.main_grad.any()
    assert torch.equal(w.grad, torch.zeros_like(w))
    assert w.grad_added_to_main_grad


def test_empty_batch_of_a_quantised_weight(device):
    config = FP8_CONFIGS["blockwise-e4m3"]
    qt, qt_t = create_quantized_weight(torch.randn(48, 32, device=device), torch.float8_e4m3fn, config, True)
    qt.requires_grad_()
    qt.main_grad, qt.grad_added_to_main_grad = torch.zeros(48, 32, device=device), False
    x = torch.randn(0, 32, device=device, requires_grad=True)
    options = {"trans_b": True, "config": config, "fuse_bgrad_accum_pattern": "megatron"}
    turbo_gemm.gemm_fp8(x, QuantizedTensorPair(qt, qt_t), **options).sum().backward()
    assert torch.equal(qt.grad, torch.zeros(48, 32, device=device))
    assert x.grad.shape == (0, 32)


# --- autocast -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fuse", [True, False])
def test_only_the_16_bit_copy_is_saved_under_autocast(device, fuse):
    """Field case: the master weight in float32 saved beside, or instead of, what the backward reads."""
    x, w = torch.randn(16, 32, device=device, requires_grad=True), weight(device=device)
    saved = []
    keep = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    with keep, torch.autocast(device.type, torch.bfloat16):
        y = (fused if fuse else product)("gemm")(x, w)
    assert sorted((tuple(t.shape), t.dtype) for t in saved) == [((16, 32), torch.bfloat16), ((48, 32), torch.bfloat16)]
    y.float().sum().backward()
    got = w.main_grad if fuse else w.grad
    assert_close(got, x.detach().bfloat16().double().sum(0).expand(48, 32), dtype=torch.bfloat16, what="dw")


@pytest.mark.parametrize(("need_x", "need_w"), [(True, False), (False, True)])
def test_what_no_gradient_reads_is_not_saved(device, need_x, need_w):
    x, w = torch.randn(16, 32, device=device, requires_grad=need_x), torch.randn(48, 32, device=device)
    w.requires_grad_(need_w)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        y = product("gemm")(x, w)
    assert saved == [w.shape if need_x else x.shape]
    y.sum().backward()
    if need_x:
        assert_close(x.grad, w.double().sum(0).expand(16, 32))
    else:
        assert_close(w.grad, x.double().sum(0).expand(48, 32))


def test_autocast_of_every_product(case, device):
    """Operands are those of a call in 16 bits; main_grad gets float32 sums."""
    name, x, w, _, _ = case
    a, b = x.detach().bfloat16().requires_grad_(), w.detach().bfloat16().requires_grad_()
    want = product(name)(a, b)
    want.sum().backward()
    with torch.autocast(device.type, torch.bfloat16):
        y = fused(name)(x, w)
    assert torch.equal(y, want)
    y.sum().backward()
    assert torch.equal(x.grad, a.grad.float())
    assert_close(w.main_grad, b.grad.double(), dtype=torch.bfloat16, what="main_grad")


# --- what a refusal leaves behind -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((torch.ones(16, 31),), {}),
        ((torch.ones(16, 32, dtype=torch.float64),), {}),
        ((torch.ones(16, 32),), {"bias": torch.ones(47)}),
        ((torch.ones(16, 32),), {"out_dtype": torch.int8}),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_leaves_no_flag(name, arguments, options):
    w = weight()
    with pytest.raises(UnsupportedError):
        fused(name)(*arguments, w, **options)
    assert not w.grad_added_to_main_grad
    assert not w.main_grad.any()


@pytest.mark.parametrize("name", NAMES)
def test_nor_does_a_backend_that_cannot_run(name, monkeypatch):
    w = weight()
    for backend in (gemm_reference, gemm_fp8_reference):
        monkeypatch.setattr(backend, "why_not", lambda call: "not today")
    GlobalBackendManager.set_gemm_backend("torch")
    with pytest.raises(BackendUnavailableError, match="not today"):
        fused(name)(torch.ones(16, 32), w)
    assert not w.grad_added_to_main_grad


@pytest.mark.parametrize("name", NAMES)
def test_transforms_are_refused_by_name(name):
    w, x = weight(), torch.randn(16, 32)
    op = "gemm" if name == "gemm" else "gemm_fp4" if name == "mxfp4" else "gemm_fp8"
    with pytest.raises(UnsupportedError, match=f"{op}: fuse_bgrad_accum_pattern='megatron' under torch.func"):
        torch.func.grad(lambda x: fused(name)(x, w).sum())(x)
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(UnsupportedError, match=f"{op}: .* forward-mode differentiation"),
    ):
        fused(name)(torch.autograd.forward_ad.make_dual(x, x), w)
    assert not w.grad_added_to_main_grad
    assert not w.main_grad.any()


# --- the layers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
def test_layers_accumulate(device, name):
    options = {} if name == "gemm" else {"config": CONFIGS[name]}
    torch.manual_seed(0)
    layer = LAYERS[name](32, 48, device=device, fuse_wgrad_accumulation=True, **options)
    torch.manual_seed(0)
    plain = LAYERS[name](32, 48, device=device, **options)
    layer.weight.main_grad, layer.weight.grad_added_to_main_grad = torch.zeros(48, 32, device=device), False
    x = torch.randn(2, 8, 32, device=device)
    for module in (layer, plain):
        module(x).square().sum().backward()
    assert_close(layer.weight.main_grad, plain.weight.grad.double(), what="main_grad")
    assert not layer.weight.grad.any()
    assert torch.equal(layer.bias.grad, plain.bias.grad)
    assert "fuse_wgrad_accumulation=True" in repr(layer)
    assert "fuse_wgrad_accumulation" not in repr(plain)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_say_what_the_weight_lacks(name):
    layer = LAYERS[name](32, 48, fuse_wgrad_accumulation=True)
    x = torch.randn(16, 32)
    wanted = f"{type(layer).__name__}: fuse_wgrad_accumulation=True needs weight.main_grad .*grad_added_to_main_grad"
    with pytest.raises(UnsupportedError, match=wanted):
        layer(x)
    layer.weight.main_grad = torch.zeros(48, 32)
    with pytest.raises(UnsupportedError, match=wanted):
        layer(x)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_need_no_main_grad_where_nothing_is_added(name):
    layer = LAYERS[name](32, 48, fuse_wgrad_accumulation=True)
    plain = LAYERS[name](32, 48)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(16, 32)
    with torch.no_grad():
        assert torch.equal(layer(x), plain(x))
    layer.requires_grad_(False)
    assert torch.equal(layer(x), plain(x))
