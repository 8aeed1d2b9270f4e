# SPDX-License-Identifier: MIT
"""gemm_fp4: forward and gradients against float64, trans flags, rotation, stochastic rounding, preshuffled operands."""

import pytest
import torch

import turbo_gemm
import turbo_quant
from turbo_core import BackendType, trace_dispatch
from turbo_core.low_precision import Float4QuantConfig
from turbo_gemm.pytorch.ops.gemm_fp8_quantize import SIGN_MASK
from turbo_testing import references
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close, assert_snr, compute_snr
from turbo_testing.poison import poisoned_empty
from turbo_testing.quantised import FP4_CONFIGS, gate, product, round_trip

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CASES = load("turbo-gemm")
LAYOUTS = CASES.LAYOUTS


def operands(m, n, k, trans_a, trans_b, dtype, device):
    scale = k**-0.25 if k else 1.0
    a = (torch.randn((k, m) if trans_a else (m, k), device=device) * scale).to(dtype).requires_grad_()
    b = (torch.randn((n, k) if trans_b else (k, n), device=device) * scale).to(dtype).requires_grad_()
    bias = torch.randn(n, device=device).to(dtype).requires_grad_()
    return a, b, bias, (torch.randn(m, n, device=device) / max(m, n, 1) ** 0.5).to(dtype)


def run(a, b, trans_a, trans_b, grad_out, config=None, bias=None, out_dtype=None):
    out = turbo_gemm.gemm_fp4(a, b, trans_a, trans_b, out_dtype, config, bias=bias)
    return out, *torch.autograd.grad(out, [t for t in (a, b, bias) if t is not None], grad_out)


def rotate(x, axis):
    """The rotation of the wgrad's operands, along ``axis``, in float32; zeros fill the last blocks."""
    along_last = x.float().movedim(axis, -1)
    padded = torch.nn.functional.pad(along_last, (0, -along_last.shape[-1] % 128))
    return turbo_quant.hadamard_transform(padded, SIGN_MASK).movedim(-1, axis)


def check(a, b, trans_a, trans_b, grad_out, config, bias=None, snr=True):
    out, *gradients = run(a, b, trans_a, trans_b, grad_out, config, bias)
    inputs = a.detach(), b.detach()
    ideal = [references.gemm(*inputs, trans_a, trans_b, None if bias is None else bias.detach())]
    ideal += references.gemm_backward(*inputs, grad_out, trans_a, trans_b)
    exact = list(product(*inputs, grad_out, trans_a, trans_b, config, rotate))
    if bias is not None:
        exact[0] = exact[0] + bias.detach().double()
        assert_close(gradients[2], grad_out.double().sum(0), dtype=bias.dtype, what="dbias")
    assert out.is_contiguous()
    for what, got, want, close in zip(("out", "dA", "dB"), (out, *gradients), ideal, exact):
        if what == "out" or not config.use_gradient_sr:
            assert_close(got, close, what=f"{what} of the dequantised operands")
        if snr:
            assert_snr(got.double(), want, gate(config), what=what)
    assert [g.dtype for g in gradients[:2]] == [a.dtype, b.dtype]


@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
@pytest.mark.parametrize("config", FP4_CONFIGS.values(), ids=FP4_CONFIGS)
def test_forward_and_gradients(quant_backend, device, config, trans_a, trans_b):
    if config.use_preshuffle and quant_backend is not BackendType.TORCH:
        pytest.skip("preshuffled operands are for AITER and TORCH")
    if quant_backend is BackendType.HIPBLASLT:
        pytest.skip("torch multiplies MXFP4 on gfx950 only")
    small = quant_backend is BackendType.TRITON and device.type == "cpu"
    for m, n, k in CASES.QUANT_INTERPRETED if small else CASES.QUANT_CPU:
        if config.use_preshuffle:
            m, n, k = (size + -size % 16 for size in (m, n, k))
        a, b, bias, grad_out = operands(m, n, k, trans_a, trans_b, BF16, device)
        with poisoned_empty():
            # one product of FP4 values has no averaging to lean on
            check(a, b, trans_a, trans_b, grad_out, config, bias, snr=min(m, n, k) > 16)


def test_one_past_an_edge(quant_backend, device):
    if quant_backend is BackendType.HIPBLASLT:
        pytest.skip("torch multiplies MXFP4 on gfx950 only")
    for m, n, k in CASES.EDGES[1::2] + CASES.EDGES[::6]:
        a, b, bias, grad_out = operands(m, n, k, False, True, BF16, device)
        with poisoned_empty():
            check(a, b, False, True, grad_out, Float4QuantConfig(), bias, snr=False)


@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
def test_other_dtypes(device, dtype):
    a, b, bias, grad_out = operands(70, 90, 130, False, True, dtype, device)
    check(a, b, False, True, grad_out, Float4QuantConfig(), bias)


def test_the_flags_are_honoured(device):
    """Field case: with square matrices a product that ignores them goes unnoticed."""
    a, b = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)
    for trans_a, trans_b in LAYOUTS:
        out = turbo_gemm.gemm_fp4(a, b, trans_a, trans_b)
        for flags in LAYOUTS:
            snr = compute_snr(references.gemm(a, b, *flags), out.double())
            assert (snr > 10) is (flags == (trans_a, trans_b)), (trans_a, trans_b, flags, snr)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 16, 32), (16, 0, 32), (16, 32, 0)])
def test_zero_sizes(device, m, n, k, poisoned_allocations):
    a, b, bias, grad_out = operands(m, n, k, False, True, BF16, device)
    out, grad_a, grad_b, grad_bias = run(a, b, False, True, grad_out, bias=bias)
    assert_close(out, bias.detach().double().expand(m, n))
    assert (grad_a.shape, grad_b.shape) == (a.shape, b.shape)
    assert not grad_a.any()
    assert not grad_b.any()


def test_views_equal_their_copies_bit_for_bit(device):
    a, b, bias, grad_out = operands(48, 64, 96, False, True, BF16, device)
    expected = run(a, b, False, True, grad_out, bias=bias)
    views = [t.detach().t().contiguous().t() for t in (a, b, grad_out)]
    got = run(views[0].requires_grad_(), views[1].requires_grad_(), False, True, views[2], bias=bias)
    for what, one, other in zip(("out", "dA", "dB", "dbias"), got, expected):
        assert torch.equal(one, other), what


# --- rotation -------------------------------------------------------------------------------------------------------


def test_rotation_spreads_an_outlier(device):
    """An outlier of a takes the bits of its whole block; rotated, dB loses less of the others."""
    a, b, _, grad_out = operands(128, 64, 96, False, True, FP32, device)
    with torch.no_grad():
        a[7] *= 30
    grad_b = run(a, b, False, True, grad_out)[2]
    without = product(a, b, grad_out, False, True, Float4QuantConfig())[2]
    ideal = references.gemm_backward(a, b, grad_out, False, True)[1]
    assert (ideal - grad_b).norm() < 0.9 * (ideal - without).norm()


# --- stochastic rounding --------------------------------------------------------------------------------------------


def test_stochastic_gradients_follow_the_seed_and_are_unbiased(device):
    a, b, _, grad_out = operands(64, 64, 64, False, True, FP32, device)
    config = Float4QuantConfig(use_gradient_sr=True)

    def gradients(seed):
        torch.manual_seed(seed)
        return run(a, b, False, True, grad_out, config)[1:]

    for one, same, other in zip(gradients(1), gradients(1), gradients(2)):
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
    nearest = run(a, b, False, True, grad_out, Float4QuantConfig())[1]
    mean = sum(gradients(seed)[0].double() for seed in range(200)) / 200
    ideal = grad_out.double() @ round_trip(b.detach(), Float4QuantConfig(), "b", 0)
    assert compute_snr(ideal, mean) > compute_snr(ideal, nearest.double()) + 10, "the mean of 200 has no bias left"


def test_forward_is_not_stochastic(device):
    a, b, _, _ = operands(32, 32, 64, False, True, BF16, device)
    config = Float4QuantConfig(use_gradient_sr=True)
    assert torch.equal(turbo_gemm.gemm_fp4(a, b, trans_b=True, config=config), turbo_gemm.gemm_fp4(a, b, trans_b=True))


# --- preshuffled ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
def test_preshuffled_gives_the_same_bits(device, trans_a, trans_b):
    a, b, bias, grad_out = operands(48, 80, 304, trans_a, trans_b, BF16, device)
    plain = run(a, b, trans_a, trans_b, grad_out, bias=bias)
    with trace_dispatch() as trace:
        shuffled = run(a, b, trans_a, trans_b, grad_out, Float4QuantConfig(use_preshuffle=True), bias)
    assert all("preshuffled" in r.call for r in trace.records if r.op == "gemm_fp4")
    for what, one, other in zip(("out", "dA", "dB", "dbias"), shuffled, plain):
        assert torch.equal(one, other), what


@pytest.mark.deterministic
def test_bit_equal_from_run_to_run(quant_backend, device):
    if quant_backend is BackendType.HIPBLASLT:
        pytest.skip("torch multiplies MXFP4 on gfx950 only")
    a, b, bias, grad_out = operands(65, 48, 80, False, True, BF16, device)
    first = run(a, b, False, True, grad_out, bias=bias)
    for _ in range(3):
        assert all(torch.equal(x, y) for x, y in zip(first, run(a, b, False, True, grad_out, bias=bias)))
