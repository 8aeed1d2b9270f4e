# SPDX-License-Identifier: MIT
"""The products inside what training loops wrap around them: checkpoints, offload, autocast, frozen inputs, meta."""

import functools
import itertools

import pytest
import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import turbo_gemm
from turbo_core import UnsupportedError, explain, trace_dispatch
from turbo_core.low_precision import Float4QuantConfig
from turbo_testing import references
from turbo_testing.metrics import assert_close, assert_snr
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS, gate

CONFIGS = {"gemm": None, **FP8_CONFIGS, **FP4_CONFIGS}
NAMES = ["gemm", "tensorwise-e4m3", "rowwise-hybrid", "blockwise-e4m3", "mx-hybrid", "mxfp4"]
LAYERS = {
    "Linear": turbo_gemm.Linear,
    "Float8Linear": turbo_gemm.Float8Linear,
    "Float8Linear-mx": functools.partial(turbo_gemm.Float8Linear, config=FP8_CONFIGS["mx-hybrid"]),
    "Float4Linear": turbo_gemm.Float4Linear,
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def product(name, **options):
    """x w^T (+ bias) by one of the ops."""
    if name == "gemm":
        return lambda x, w, bias=None: turbo_gemm.gemm(x, w, trans_b=True, bias=bias, **options)
    config = CONFIGS[name]
    function = turbo_gemm.gemm_fp4 if isinstance(config, Float4QuantConfig) else turbo_gemm.gemm_fp8
    return lambda x, w, bias=None: function(x, w, trans_b=True, config=config, bias=bias, **options)


def leaves(device, dtype=torch.float32, m=24, n=48, k=32):
    torch.manual_seed(7)
    return [torch.randn(s, device=device).to(dtype).requires_grad_() for s in ((m, k), (n, k), (n,))]


def step(function, *inputs):
    """y and the gradients of sum(y^2)."""
    y = function(*inputs)
    return y, *torch.autograd.grad(y.float().square().sum(), [t for t in inputs if t.requires_grad])


def assert_same(got, want):
    for one, other in zip(got, want, strict=True):
        assert one.dtype is other.dtype
        assert torch.equal(one, other)


# --- checkpoints and offload ----------------------------------------------------------------------------------------


def selective(*ops):
    policy = CheckpointPolicy.MUST_SAVE
    contexts = functools.partial(
        create_selective_checkpoint_contexts,
        lambda ctx, op, *a, **k: policy if op in ops else CheckpointPolicy.PREFER_RECOMPUTE,
    )
    return {"use_reentrant": False, "context_fn": contexts}


WAYS = {
    "non-reentrant": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "selective, the products": selective(
        torch.ops.turbo_gemm.gemm.default, torch.ops.turbo_gemm.gemm_fp8.default, torch.ops.turbo_gemm.gemm_fp4.default
    ),
    "selective, nothing": selective(),
    "without early stop": {"use_reentrant": False},
}


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("name", NAMES)
def test_checkpointed(device, name):
    """Field case: the default checkpoint raised, since a backward unpacked its saved tensors twice."""
    check_checkpointed(device, name, "non-reentrant")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_checkpointed_in_every_way(device, name, way):
    check_checkpointed(device, name, way)


def check_checkpointed(device, name, way):
    inputs = leaves(device)

    def block(x, w, bias):
        return product(name)(torch.relu(x), w, bias).relu()

    want = step(block, *inputs)
    y, *_ = want
    with set_checkpoint_early_stop(way != "without early stop"):
        got = checkpoint(block, *inputs, **WAYS[way])
        got.square().sum().backward()
    assert_same((got, *(t.grad for t in inputs)), (y, *want[1:]))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_checkpointed_layer(device, layer):
    module = LAYERS[layer](32, 48, device=device)
    x = torch.randn(2, 5, 32, device=device, requires_grad=True)
    want = step(lambda x, *_: module(x), x, *module.parameters())
    got = step(lambda x, *_: checkpoint(module, x, use_reentrant=False), x, *module.parameters())
    assert_same(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_saved_tensors_are_unpacked_once_each(device, name):
    inputs = leaves(device)
    packed, unpacked = [], []

    def pack(t):
        packed.append(t)
        return len(packed) - 1

    def unpack(index):
        unpacked.append(index)
        return packed[index]

    want = step(product(name), *inputs)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = product(name)(*inputs)
    got = torch.autograd.grad(y.square().sum(), inputs)
    assert_same(got, want[1:])
    assert sorted(unpacked) == list(range(len(packed)))


@pytest.mark.parametrize("name", NAMES)
def test_save_on_cpu(device, name):
    inputs = leaves(device)
    want = step(product(name), *inputs)
    with torch.autograd.graph.save_on_cpu():
        got = product(name)(*inputs)
    assert_same(torch.autograd.grad(got.square().sum(), inputs), want[1:])


# --- autocast -------------------------------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("cast_to", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_autocast_is_the_call_in_16_bits(device, name, cast_to):
    """Whatever the inputs are: a and b are cast at the door, and autocast does nothing inside."""
    x, w, bias = leaves(device, m=9, n=20)
    cast = [t.detach().to(cast_to).requires_grad_() for t in (x, w)]
    want = product(name)(*cast, bias)
    expected = torch.autograd.grad(want.float().square().sum(), (*cast, bias))
    for dtype_x, dtype_w in ((torch.float32, torch.float32), (cast_to, torch.float32)):
        inputs = [x.detach().to(dtype_x).requires_grad_(), w.detach().to(dtype_w).requires_grad_(), bias]
        with torch.autocast(device.type, cast_to):
            y = product(name)(*inputs)
            inside = torch.autograd.grad(y.float().square().sum(), inputs, retain_graph=True)
        outside = torch.autograd.grad(y.float().square().sum(), inputs)
        assert_same([y], [want])
        for gradients in (inside, outside):
            assert_same(gradients, [exact.to(leaf.dtype) for leaf, exact in zip(inputs, expected)])


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("name", NAMES)
def test_float32_results_are_not_rounded_inside_autocast(device, name):
    """Field case: out_dtype=float32 under autocast came from products rounded to 16 bits, forward and backward."""
    x, w, bias = leaves(device, torch.bfloat16, 17, 9, 33)
    bias = bias.detach().float().requires_grad_()
    multiply = product(name, out_dtype=torch.float32)
    want = multiply(x, w, bias)
    grad_out = torch.randn_like(want)
    expected = torch.autograd.grad(want, (x, w, bias), grad_out)
    with torch.autocast(device.type, torch.bfloat16):
        y = multiply(x, w, bias)
        gradients = torch.autograd.grad(y, (x, w, bias), grad_out)
    assert_same((y, *gradients), (want, *expected))
    if name == "gemm":
        assert_close(y, references.gemm(x.detach(), w.detach(), False, True, bias.detach()), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_float64_is_refused_under_autocast_too(device, name):
    x, w, _ = leaves(device)
    with torch.autocast(device.type, torch.bfloat16), pytest.raises(UnsupportedError, match="a.dtype=torch.float64"):
        product(name)(x.double(), w)


@pytest.mark.parametrize("name", ["gemm", "tensorwise-e4m3", "mxfp4"])
def test_explain_tells_what_runs_under_autocast(device, name, capsys):
    """Field case: it told float32 where bf16 ran."""
    inputs = leaves(device)
    config = CONFIGS[name]
    op = {"gemm": "gemm", "tensorwise-e4m3": "gemm_fp8", "mxfp4": "gemm_fp4"}[name]
    options = {} if config is None else {"config": config}
    with torch.autocast(device.type, torch.bfloat16):
        with trace_dispatch() as trace:
            y = product(name)(*inputs)
        told = explain(op, inputs[0], inputs[1], trans_b=True, bias=inputs[2], **options)
    with trace_dispatch() as backward:
        y.float().sum().backward()
    ran = [r for r in trace.records + backward.records if r.op == op]
    assert [entry.call for entry in told.entries] == [record.call for record in ran]
    assert "-> bfloat16" in told.entries[0].call
    capsys.readouterr()


# --- which inputs need gradients ------------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("needed", list(itertools.product((True, False), repeat=3))[:-1], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_choice_of_frozen_inputs(device, name, needed):
    """Field case: the bias got no gradient once the weight, or both operands, were frozen."""
    inputs = leaves(device)
    for leaf, need in zip(inputs, needed):
        leaf.requires_grad_(need)
    grad_out = torch.randn(24, 48, device=device)
    y = product(name)(*inputs)
    y.backward(grad_out)
    x, w, bias = (t.detach() for t in inputs)
    dx, dw = references.gemm_backward(x, w, grad_out, False, True)
    for leaf, want in zip(inputs, (dx, dw, grad_out.double().sum(0))):
        if not leaf.requires_grad:
            assert leaf.grad is None
        elif name == "gemm" or leaf is inputs[2]:
            assert_close(leaf.grad, want)
        else:
            assert_snr(leaf.grad, want, gate(CONFIGS[name]))


@pytest.mark.parametrize("needed", [(True, False, True), (False, True, True), (False, False, True)], ids=str)
@pytest.mark.parametrize("name", ["gemm", "mxfp4"])
def test_frozen_inputs_compiled(device, name, needed):
    inputs = leaves(device)
    for leaf, need in zip(inputs, needed):
        leaf.requires_grad_(need)
    want = step(product(name), *inputs)
    torch.compiler.reset()
    got = step(torch.compile(product(name), fullgraph=True, backend="aot_eager"), *inputs)
    assert_same(got, want)


# --- strides of the bias, zero sizes --------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["every third", "expanded", "offset by one"])
@pytest.mark.parametrize("name", ["gemm", "tensorwise-e4m3", "rowwise-hybrid", "mx-hybrid", "mxfp4"])
def test_bias_in_any_memory(device, name, how, dtype):
    x, w, _ = (t.detach() for t in leaves(device))
    storage = torch.randn(3 * 48 + 1, device=device).to(dtype).requires_grad_()
    views = {
        "every third": lambda t: t[1::3],
        "expanded": lambda t: t[5:6].expand(48),
        "offset by one": lambda t: t[1:49],
    }
    bias = views[how](storage)
    y = product(name)(x, w, bias)
    want = product(name)(x, w).double() + bias.detach().double()
    assert_close(y, want, what="out", rtol=1e-5, atol=1e-5)
    grad_out = torch.randn_like(y)
    (got,) = torch.autograd.grad(y, storage, grad_out)
    exact = storage.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(views[how](exact), exact, grad_out.double().sum(0))
    assert_close(got, expected, dtype=dtype, what="dbias", atol=5e-2 if how == "expanded" else None)


@pytest.mark.parametrize("out_dtype", [None, *DTYPES], ids=str)
@pytest.mark.parametrize("sizes", [(0, 48, 32), (24, 0, 32), (24, 48, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_out_dtype_where_a_size_is_zero(device, name, sizes, out_dtype):
    """Field case: it was forgotten there."""
    inputs = leaves(device, torch.bfloat16, *sizes)
    y = product(name, out_dtype=out_dtype)(*inputs)
    assert y.dtype is (out_dtype or torch.bfloat16)
    assert torch.equal(y, inputs[2].detach().to(y.dtype).expand(sizes[:2]))
    gradients = torch.autograd.grad(y, inputs, torch.ones_like(y))
    for leaf, gradient in zip(inputs[:2], gradients):
        assert torch.equal(gradient, torch.zeros_like(leaf))
    assert torch.equal(gradients[2], torch.full_like(inputs[2], sizes[0]))


# --- meta and fake tensors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_on_meta(layer, autocast):
    """Field case: "unknown device type for autocast"."""
    module = LAYERS[layer](64, 32, device="meta", dtype=torch.bfloat16)
    x = torch.empty(2, 4, 64, device="meta", dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        y = module(x)
    assert (y.shape, y.dtype, y.device.type) == ((2, 4, 32), torch.bfloat16, "meta")
    y.sum().backward()
    for leaf in (x, *module.parameters()):
        assert (leaf.grad.shape, leaf.grad.dtype, leaf.grad.device.type) == (leaf.shape, torch.bfloat16, "meta")


@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=str)
@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("name", NAMES)
def test_products_on_meta(name, trans_a, trans_b, out_dtype):
    a = torch.empty((32, 24) if trans_a else (24, 32), device="meta", dtype=torch.float16)
    b = torch.empty((48, 32) if trans_b else (32, 48), device="meta", dtype=torch.bfloat16)
    config = CONFIGS[name]
    function = turbo_gemm.gemm if config is None else turbo_gemm.gemm_fp4 if "fp4" in name else turbo_gemm.gemm_fp8
    options = {} if config is None else {"config": config}
    y = function(a, b, trans_a, trans_b, out_dtype, **options)
    real = function(*(torch.ones(t.shape, dtype=t.dtype) for t in (a, b)), trans_a, trans_b, out_dtype, **options)
    assert (y.shape, y.dtype, y.stride()) == (real.shape, real.dtype, real.stride())
    assert y.device.type == "meta"
