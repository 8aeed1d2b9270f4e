# SPDX-License-Identifier: MIT
"""gemm_fp8: forward and gradients against float64, of the inputs and of what is left of them once quantised."""

import pytest
import torch

import turbo_gemm
from turbo_core import BackendType, BackendUnavailableError, trace_dispatch
from turbo_core.low_precision import ScalingGranularity
from turbo_testing import references
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close, assert_snr
from turbo_testing.poison import poisoned_empty
from turbo_testing.quantised import FP8_CONFIGS, gate, product

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = [FP32, FP16, BF16]
CASES = load("turbo-gemm")
LAYOUTS = CASES.LAYOUTS
GRANULARITIES = ["tensorwise-e4m3", "rowwise-e4m3", "blockwise-hybrid", "mx-hybrid"]


def sizes(backend, device):
    if backend is BackendType.HIPBLASLT:  # torch multiplies multiples of 16 only
        return [shape for shape in CASES.QUANT_FULL[::11] if not any(size % 16 for size in shape)]
    if device.type == "cuda":
        return CASES.QUANT_CPU + CASES.QUANT_FULL[::11]
    return CASES.QUANT_INTERPRETED if backend is BackendType.TRITON else CASES.QUANT_CPU


def operands(m, n, k, trans_a, trans_b, dtype, device):
    """a, b, bias as leaves, and a gradient of C; random, scaled so that C is of order one."""
    scale = k**-0.25 if k else 1.0
    a = (torch.randn((k, m) if trans_a else (m, k), device=device) * scale).to(dtype).requires_grad_()
    b = (torch.randn((n, k) if trans_b else (k, n), device=device) * scale).to(dtype).requires_grad_()
    bias = torch.randn(n, device=device).to(dtype).requires_grad_()
    return a, b, bias, (torch.randn(m, n, device=device) / max(m, n, 1) ** 0.5).to(dtype)


def attempt(a, b, trans_a, trans_b, grad_out, config, *, bias=None, out_dtype=None):
    """out and the gradients; skipped with the reason if the vendor's BLAS has no such product."""
    try:
        out = turbo_gemm.gemm_fp8(a, b, trans_a, trans_b, out_dtype, config, bias=bias)
        return out, *torch.autograd.grad(out, [t for t in (a, b, bias) if t is not None], grad_out)
    except BackendUnavailableError as refusal:
        if "backend HIPBLASLT (set in code) cannot take this call" not in str(refusal):
            raise
        pytest.skip(str(refusal).split("this call: ")[1].split(". Call")[0])


def allowance(result):
    """Tolerances: those of the dtype, but Hopper's FP8 units (a development machine's) keep about 14 bits of a sum."""
    hopper = result.device.type == "cuda" and torch.version.hip is None
    return {"rtol": 1e-3, "atol": 1e-3} if hopper and result.dtype is FP32 else {}


def check(a, b, trans_a, trans_b, grad_out, config, *, bias=None, out_dtype=None, snr=True):
    """Forward and every gradient against both yardsticks, with dtypes and shapes."""
    out, *gradients = attempt(a, b, trans_a, trans_b, grad_out, config, bias=bias, out_dtype=out_dtype)
    assert out.dtype is (out_dtype or torch.promote_types(a.dtype, b.dtype))
    assert out.is_contiguous()
    exact = list(product(a, b, grad_out, trans_a, trans_b, config))
    inputs = a.detach(), b.detach()
    ideal = [references.gemm(*inputs, trans_a, trans_b)]
    ideal += references.gemm_backward(*inputs, grad_out, trans_a, trans_b)
    if bias is not None:
        exact[0] = exact[0] + bias.detach().double()
        ideal[0] = ideal[0] + bias.detach().double()
    for what, got, want, close, dtype in zip(
        ("out", "dA", "dB"), (out, *gradients), ideal, exact, (out.dtype, a.dtype, b.dtype)
    ):
        assert (got.dtype, got.shape) == (dtype, close.shape), what
        assert_close(got, close, what=f"{what} of the dequantised operands", **allowance(got))
        if snr:
            assert_snr(got.double(), want, gate(config), what=what)
    if bias is not None:
        assert_close(gradients[2], grad_out.double().sum(0), dtype=bias.dtype, what="dbias")


@pytest.mark.parametrize("config", GRANULARITIES)
def test_one_past_an_edge(quant_backend, device, config):
    if quant_backend is BackendType.HIPBLASLT:
        pytest.skip("backend HIPBLASLT takes multiples of 16")
    for m, n, k in CASES.EDGES[1::2] + CASES.EDGES[::6]:
        a, b, bias, grad_out = operands(m, n, k, False, True, BF16, device)
        with poisoned_empty():
            check(a, b, False, True, grad_out, FP8_CONFIGS[config], bias=bias)


@pytest.mark.covering(each="quant_backend")
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
@pytest.mark.parametrize("format", ["e4m3", "e5m2", "hybrid"])
@pytest.mark.parametrize("granularity", ["tensorwise", "rowwise", "blockwise", "mx"])
def test_forward_and_gradients(quant_backend, device, granularity, format, trans_a, trans_b, part):
    config = FP8_CONFIGS[f"{granularity}-{format}"]
    dtypes = (BF16, FP16)
    if quant_backend is BackendType.HIPBLASLT and config.granularity is not ScalingGranularity.TENSORWISE:
        dtypes = (BF16,)  # torch has no other there
    for m, n, k in sizes(quant_backend, device)[part::2]:
        for dtype in dtypes if m == 255 or device.type == "cuda" else (BF16,):
            a, b, bias, grad_out = operands(m, n, k, trans_a, trans_b, dtype, device)
            with poisoned_empty():
                check(a, b, trans_a, trans_b, grad_out, config, bias=bias, snr=min(m, n, k) > 1)
    if part == 0:
        check(a, b, trans_a, trans_b, grad_out, config, snr=min(m, n, k) > 1)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 7), (0, 5, 0), (0, 0, 0)])
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
@pytest.mark.parametrize("config", GRANULARITIES)
def test_zero_sizes(device, m, n, k, config, trans_a, trans_b, poisoned_allocations):
    a, b, bias, grad_out = operands(m, n, k, trans_a, trans_b, BF16, device)
    out = turbo_gemm.gemm_fp8(a, b, trans_a, trans_b, config=FP8_CONFIGS[config], bias=bias)
    gradients = torch.autograd.grad(out, (a, b, bias), grad_out)
    assert_close(out, references.gemm(a, b, trans_a, trans_b, bias))
    for gradient, leaf in zip(gradients, (a, b, bias)):
        assert (gradient.shape, gradient.dtype) == (leaf.shape, leaf.dtype)
        assert leaf is bias or not gradient.any()
    assert_close(gradients[2], grad_out.double().sum(0), what="dbias")


@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("config", GRANULARITIES)
def test_out_dtype(quant_backend, device, config, out_dtype):
    a, b, bias, grad_out = operands(48, 32, 64, False, True, BF16, device)
    check(a, b, False, True, grad_out.to(out_dtype), FP8_CONFIGS[config], bias=bias, out_dtype=out_dtype)


@pytest.mark.parametrize(("dtype_a", "dtype_b"), [(x, y) for x in DTYPES for y in DTYPES], ids=str)
@pytest.mark.parametrize("config", GRANULARITIES)
def test_gradients_have_the_dtypes_of_their_inputs(device, config, dtype_a, dtype_b):
    a, b, bias, grad_out = operands(17, 33, 40, False, False, FP32, device)
    a, b = a.detach().to(dtype_a).requires_grad_(), b.detach().to(dtype_b).requires_grad_()
    check(a, b, False, False, grad_out.to(torch.promote_types(dtype_a, dtype_b)), FP8_CONFIGS[config], bias=bias)


# --- awkward memory -------------------------------------------------------------------------------------------------


def strided(tensor, how):
    """The same values in other memory."""
    rows, columns = tensor.shape
    if how == "every second column":
        return torch.stack([tensor, torch.full_like(tensor, torch.nan)], 2).view(rows, 2 * columns)[:, ::2]
    if how == "column slice":
        return torch.cat([tensor, torch.full_like(tensor, torch.nan)], 1)[:, :columns]
    if how == "transposed":
        return tensor.t().contiguous().t()
    # field case: a view at an odd offset whose row stride is a multiple of 16
    stride = -(-columns // 16) * 16
    storage = torch.full((3 + rows * stride,), torch.nan, dtype=tensor.dtype, device=tensor.device)
    return storage.as_strided((rows, columns), (stride, 1), 3).copy_(tensor)


HOW = ["every second column", "column slice", "transposed", "odd offset"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
@pytest.mark.parametrize("config", GRANULARITIES)
def test_views_equal_their_copies_bit_for_bit(device, config, how, trans_a, trans_b):
    a, b, bias, grad_out = operands(48, 64, 32, trans_a, trans_b, BF16, device)
    expected = attempt(a, b, trans_a, trans_b, grad_out, FP8_CONFIGS[config], bias=bias)
    view_a, view_b = (strided(t.detach(), how).requires_grad_() for t in (a, b))
    got = attempt(view_a, view_b, trans_a, trans_b, strided(grad_out, how), FP8_CONFIGS[config], bias=bias)
    for what, one, other in zip(("out", "dA", "dB"), got, expected):
        assert torch.equal(one, other), f"{what} of {how}"


@pytest.mark.parametrize("shape", [(1, 1), (1, 64), (48, 1)], ids=["scalar", "row", "column"])
@pytest.mark.parametrize("config", GRANULARITIES)
def test_expanded_gradient(device, config, shape):
    """Field case: the gradient of ``out.sum()`` has stride 0."""
    a, b, bias, _ = operands(48, 64, 32, False, True, BF16, device)
    grad_out = torch.randn(shape, device=device).to(BF16).expand(48, 64)
    got = attempt(a, b, False, True, grad_out, FP8_CONFIGS[config], bias=bias)
    expected = attempt(a, b, False, True, grad_out.contiguous(), FP8_CONFIGS[config], bias=bias)
    for what, one, other in zip(("out", "dA", "dB", "dbias"), got, expected):
        assert torch.equal(one, other), what


# --- the rest of what is promised -----------------------------------------------------------------------------------


@pytest.mark.parametrize("config", GRANULARITIES)
def test_nan_stays_where_it_belongs(device, config):
    """A NaN of A reaches its row of C, of TENSORWISE all of it; never fewer elements than in plain arithmetic."""
    a, b, _, _ = operands(40, 32, 64, False, True, BF16, device)
    a = a.detach()
    a[5, 7] = torch.nan
    out = turbo_gemm.gemm_fp8(a, b, trans_b=True, config=FP8_CONFIGS[config])
    assert out[5].isnan().all()
    others = torch.cat([out[:5], out[6:]])
    assert others.isnan().all() if config.startswith("tensorwise") else others.isfinite().all()


@pytest.mark.parametrize("config", GRANULARITIES)
def test_zeros_and_a_spike(device, config):
    a = torch.zeros(40, 256, device=device, dtype=BF16)
    b = torch.randn(24, 256, device=device, dtype=BF16)
    assert not turbo_gemm.gemm_fp8(a, b, trans_b=True, config=FP8_CONFIGS[config]).any()
    a[39, 255] = 100.0
    out = turbo_gemm.gemm_fp8(a, b, trans_b=True, config=FP8_CONFIGS[config])
    assert_close(out[39], 100 * b[:, 255].double(), rtol=0.13, atol=0.1)  # half an ulp of 3 bits on either side
    assert not out[:39].any()


@pytest.mark.deterministic
@pytest.mark.parametrize("config", FP8_CONFIGS.values(), ids=FP8_CONFIGS)
def test_bit_equal_from_run_to_run(quant_backend, device, config):
    m, n, k = (1032, 512, 1024) if device.type == "cuda" else (65, 48, 80)
    a, b, bias, grad_out = operands(m, n, k, False, True, BF16, device)
    first = attempt(a, b, False, True, grad_out, config, bias=bias)
    for _ in range(10 if device.type == "cuda" else 2):
        for what, one, other in zip(
            ("out", "dA", "dB"), first, attempt(a, b, False, True, grad_out, config, bias=bias)
        ):
            assert torch.equal(one, other), f"{what} differs between runs"


@pytest.mark.parametrize("needed", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("config", GRANULARITIES)
def test_only_wanted_gradients_and_copies_are_made(device, config, needed):
    a, b, bias, _ = operands(4, 5, 6, False, False, BF16, device)
    a, b = a.detach().requires_grad_(needed[0]), b.detach().requires_grad_(needed[1])
    with trace_dispatch() as trace:
        turbo_gemm.gemm_fp8(a, b, config=FP8_CONFIGS[config], bias=bias).sum().backward()
    products = [record.role for record in trace.records if record.op == "gemm_fp8"]
    assert products == ["forward"] + ["dgrad"] * needed[0] + ["wgrad"] * needed[1]
    quantised = [record.call for record in trace.records if record.op == "quantize"]
    assert len(quantised) == 2 + any(needed), "one pass over each matrix"
    if config.startswith(("rowwise", "mx")):
        both = [("row" in call and "column" in call) for call in quantised]
        assert both == [needed[1], needed[0], *[needed == (True, True)] * any(needed)]


@pytest.mark.parametrize("name", GRANULARITIES)
def test_nothing_is_saved_but_8_bit_copies(device, name):
    a, b, _, _ = operands(64, 96, 128, False, True, BF16, device)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        turbo_gemm.gemm_fp8(a, b, trans_b=True, config=FP8_CONFIGS[name])
    assert max(t.element_size() for t in saved if t.numel() >= 64 * 96) == 1


@pytest.mark.parametrize("config", GRANULARITIES)
def test_one_tensor_on_both_sides(device, config):
    a = torch.randn(40, 24, device=device, requires_grad=True)
    twin = a.detach().clone().requires_grad_()
    other = a.detach().clone().requires_grad_()
    options = {"trans_b": True, "config": FP8_CONFIGS[config]}
    turbo_gemm.gemm_fp8(a, a, **options).square().sum().backward()
    turbo_gemm.gemm_fp8(twin, other, **options).square().sum().backward()
    assert_close(a.grad, twin.grad.double() + other.grad.double())


@pytest.mark.parametrize("enabled", [True, False])
def test_autocast(device, enabled):
    """Operands are cast to autocast's dtype before they are quantised, as those of any product."""
    a, b, bias, _ = operands(8, 16, 32, False, True, FP32, device)
    dtype = BF16 if enabled else FP32
    plain = turbo_gemm.gemm_fp8(a.detach().to(dtype), b.detach().to(dtype), trans_b=True, bias=bias.detach())
    with torch.autocast(device.type, BF16, enabled=enabled):
        out = turbo_gemm.gemm_fp8(a, b, trans_b=True, bias=bias)
    assert out.dtype is dtype
    assert torch.equal(out, plain)
    out.float().sum().backward()
    assert a.grad.dtype is b.grad.dtype is bias.grad.dtype is FP32
