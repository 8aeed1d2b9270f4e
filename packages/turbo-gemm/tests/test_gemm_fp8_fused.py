# SPDX-License-Identifier: MIT
"""Gradient accumulation fused into the weight-gradient GEMM of gemm_fp8 and gemm_fp4."""

import pytest
import torch

import turbo_gemm
from turbo_core import BackendType, GlobalBackendManager, UnsupportedError, trace_dispatch
from turbo_core.low_precision import Float4QuantConfig
from turbo_quant import QuantizedTensorPair, create_quantized_weight
from turbo_testing.metrics import assert_close
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = ["tensorwise-e4m3", "rowwise-hybrid", "blockwise-e4m3", "mx-hybrid", "mxfp4"]
CONFIGS = {**FP8_CONFIGS, **FP4_CONFIGS}


def multiply(a, b, config, trans_a=False, trans_b=True, **options):
    function = turbo_gemm.gemm_fp4 if isinstance(config, Float4QuantConfig) else turbo_gemm.gemm_fp8
    return function(a, b, trans_a, trans_b, config=config, **options)


def weight(shape, dtype, main_grad_dtype, device):
    made = torch.nn.Parameter(torch.randn(shape).to(device, dtype))
    made.main_grad = torch.randn(shape).to(device, main_grad_dtype)
    made.grad_added_to_main_grad = False
    return made


@pytest.mark.covering(each="quant_backend")
@pytest.mark.parametrize("main_grad_dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("config", NAMES)
def test_main_grad_takes_the_gradient(quant_backend, device, config, main_grad_dtype, trans_a, trans_b):
    config = CONFIGS[config]
    if quant_backend is BackendType.HIPBLASLT and config is not CONFIGS["tensorwise-e4m3"]:
        pytest.skip("backend HIPBLASLT accumulates TENSORWISE products only")
    m, n, k = 48, 80, 32
    a = torch.randn((k, m) if trans_a else (m, k)).to(device, torch.bfloat16).requires_grad_()
    w = weight((n, k) if trans_b else (k, n), torch.bfloat16, main_grad_dtype, device)
    grad_out = (torch.randn(m, n) / m**0.5).to(device, torch.bfloat16)
    plain = w.detach().float().requires_grad_()  # its gradient comes unrounded
    before = w.main_grad.double()

    out = multiply(a, w, config, trans_a, trans_b, fuse_bgrad_accum_pattern="megatron")
    assert torch.equal(w.main_grad.double(), before), "the forward must not touch main_grad"
    with trace_dispatch() as trace:
        grad_a, grad_w = torch.autograd.grad(out, (a, w), grad_out)

    want_a, want_w = torch.autograd.grad(
        multiply(a, plain, config, trans_a, trans_b, out_dtype=torch.bfloat16), (a, plain), grad_out
    )
    assert_close(grad_a, want_a, what="dA")
    assert_close(w.main_grad, before + want_w.double(), dtype=main_grad_dtype, what="main_grad")
    assert w.grad_added_to_main_grad
    assert grad_w.shape == w.shape
    assert not grad_w.any(), "what autograd gets adds nothing"
    products = [record for record in trace.records if record.op.startswith("gemm")]
    assert [record.role for record in products] == ["dgrad", "wgrad"]
    assert "accumulated" in products[1].call


@pytest.mark.parametrize("config", NAMES)
def test_micro_batches_interleave_into_a_strided_main_grad(device, config):
    config = CONFIGS[config]
    w = weight((16, 8), torch.float32, torch.float32, device)
    storage = torch.zeros(16, 19, device=device)
    w.main_grad = storage[:, 2:10]
    inputs = [torch.randn(5, 8).to(device) for _ in range(3)]
    expected = torch.zeros(16, 8, device=device, dtype=torch.float64)
    for x in inputs:
        plain = w.detach().clone().requires_grad_()
        multiply(x, plain, config).sum().backward()
        expected += plain.grad
    outputs = [multiply(x, w, config, fuse_bgrad_accum_pattern="megatron") for x in inputs[:2]]
    outputs[0].sum().backward()
    outputs.append(multiply(inputs[2], w, config, fuse_bgrad_accum_pattern="megatron"))
    outputs[1].sum().backward()
    outputs[2].sum().backward()
    assert_close(w.main_grad, expected, what="main_grad")
    assert not storage[:, :2].any()
    assert not storage[:, 10:].any()


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("auto_tune", ["global", "per op"])
@pytest.mark.parametrize("config", NAMES)
def test_tuning_never_writes_main_grad(device, config, auto_tune):
    """Field case: a plain call's winner must not serve, and tuning must not write, an accumulating call."""
    config = CONFIGS[config]
    x = torch.randn(5, 8).to(device)
    w = weight((16, 8), torch.float32, torch.float32, device)
    plain = w.detach().clone().requires_grad_()
    multiply(x, plain, config).sum().backward()
    w.main_grad.zero_()
    if auto_tune == "global":
        GlobalBackendManager.set_auto_tune(True)
    else:
        GlobalBackendManager.set_gemm_backend(auto_tune=True)
    tuned = w.detach().clone().requires_grad_()
    multiply(x, tuned, config).sum().backward()
    assert_close(tuned.grad, plain.grad.double())
    for _ in range(3):
        multiply(x, w, config, fuse_bgrad_accum_pattern="megatron").sum().backward()
    assert_close(w.main_grad, 3 * plain.grad.double(), what="main_grad")


def test_quantised_weight(device):
    """The main_grad of a pre-quantised weight belongs to the tensor that stands for it."""
    config = CONFIGS["blockwise-e4m3"]
    w = torch.randn(16, 8, device=device)
    qt, qt_t = create_quantized_weight(w, torch.float8_e4m3fn, config, True)
    qt.requires_grad_()
    qt.main_grad, qt.grad_added_to_main_grad = torch.zeros(16, 8, device=device), False
    x = torch.randn(5, 8, device=device)
    plain = w.clone().requires_grad_()
    multiply(x, plain, config).sum().backward()
    multiply(x, QuantizedTensorPair(qt, qt_t), config, fuse_bgrad_accum_pattern="megatron").sum().backward()
    assert_close(qt.main_grad, plain.grad.double())
    assert qt.grad_added_to_main_grad


@pytest.mark.parametrize("config", NAMES)
def test_compiles_whole(device, config):
    config = CONFIGS[config]
    w = weight((16, 8), torch.float32, torch.float32, device)
    w.main_grad.zero_()
    plain = w.detach().clone().requires_grad_()
    x = torch.randn(4, 8, device=device)
    multiply(x, plain, config).sum().backward()

    def loss(x):
        return multiply(x, w, config, fuse_bgrad_accum_pattern="megatron").sum()

    torch.compile(loss, fullgraph=True, backend="aot_eager")(x).backward()
    assert_close(w.main_grad, plain.grad.double())
    assert w.grad_added_to_main_grad


def test_hooks_run_and_a_frozen_weight_leaves_main_grad_alone(device):
    config = CONFIGS["mx-hybrid"]
    w = weight((16, 8), torch.float32, torch.float32, device)
    seen = []
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad_added_to_main_grad))
    x = torch.randn(5, 8).to(device).requires_grad_()
    multiply(x, w, config, fuse_bgrad_accum_pattern="megatron").sum().backward()
    assert seen == [True]
    w.grad_added_to_main_grad = False
    before = w.main_grad.clone()
    w.requires_grad_(False)
    multiply(x, w, config, fuse_bgrad_accum_pattern="megatron").sum().backward()
    with torch.no_grad():
        multiply(x, w.requires_grad_(), config, fuse_bgrad_accum_pattern="megatron")
    assert torch.equal(w.main_grad, before)
    assert not w.grad_added_to_main_grad


@pytest.mark.parametrize("pattern", ["fused", "megatron"])
@pytest.mark.parametrize("config", NAMES)
def test_refusals(config, pattern):
    complaint = "accepted are None and 'megatron'" if pattern == "fused" else "needs b.main_grad"
    with pytest.raises(UnsupportedError, match=f"gemm_fp[84]: .*{complaint}"):
        multiply(torch.randn(5, 8), torch.randn(16, 8), CONFIGS[config], fuse_bgrad_accum_pattern=pattern)
