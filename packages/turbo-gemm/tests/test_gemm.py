# SPDX-License-Identifier: MIT
"""gemm: forward and gradients of every backend against float64, at odd and zero sizes and on awkward memory."""

import pytest
import torch

import turbo_gemm
from turbo_core import BackendType, GlobalBackendManager, trace_dispatch
from turbo_testing import references
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close, get_tolerances
from turbo_testing.poison import poisoned_empty

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CASES = load("turbo-gemm")
LAYOUTS = CASES.LAYOUTS


def sizes(backend, device):
    """The whole matrix on a GPU; on a CPU a thinned one, and of that a third in Triton's interpreter."""
    if backend is BackendType.TORCH:
        return CASES.CPU
    return CASES.FULL if device.type == "cuda" else CASES.CPU[::3]


def operands(m, n, k, trans_a, trans_b, dtype, device):
    """a, b, bias as leaves, and a gradient of C; random, scaled so that C is of order one."""
    scale = k**-0.25 if k else 1.0
    a = (torch.randn((k, m) if trans_a else (m, k), device=device) * scale).to(dtype).requires_grad_()
    b = (torch.randn((n, k) if trans_b else (k, n), device=device) * scale).to(dtype).requires_grad_()
    bias = torch.randn(n, device=device).to(dtype).requires_grad_()
    return a, b, bias, (torch.randn(m, n, device=device) / max(m, n, 1) ** 0.5).to(dtype)


def check(a, b, trans_a, trans_b, grad_out, *, bias=None, out_dtype=None):
    """Forward and every gradient against float64, with dtypes and shapes."""
    out = turbo_gemm.gemm(a, b, trans_a, trans_b, out_dtype, bias=bias)
    wanted = [t for t in (a, b, bias) if t is not None]
    gradients = torch.autograd.grad(out, wanted, grad_out)
    expected = references.gemm(a.detach(), b.detach(), trans_a, trans_b, None if bias is None else bias.detach())
    grad_a, grad_b = references.gemm_backward(a.detach(), b.detach(), grad_out, trans_a, trans_b)
    assert out.dtype is (out_dtype or torch.promote_types(a.dtype, b.dtype))
    assert out.is_contiguous()
    coarsest = max((a.dtype, b.dtype, out.dtype), key=lambda dtype: get_tolerances(dtype)["rtol"])
    assert_close(out, expected, dtype=coarsest, what="out")
    assert_close(gradients[0], grad_a, dtype=coarsest, what="dA")
    assert_close(gradients[1], grad_b, dtype=coarsest, what="dB")
    if bias is not None:
        assert_close(gradients[2], grad_out.double().sum(0), dtype=coarsest, what="dbias")
    for tensor, gradient in zip(wanted, gradients):
        assert (gradient.dtype, gradient.shape) == (tensor.dtype, tensor.shape)


@pytest.mark.simulated
@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
def test_forward_and_gradients(backend, device, dtype, trans_a, trans_b, part):
    for m, n, k in sizes(backend, device)[part::4]:
        a, b, bias, grad_out = operands(m, n, k, trans_a, trans_b, dtype, device)
        with poisoned_empty():
            check(a, b, trans_a, trans_b, grad_out, bias=bias)
    if part == 0:
        check(a, b, trans_a, trans_b, grad_out)


@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, True), pytest.param(True, False, marks=pytest.mark.full)])
def test_one_past_an_edge(backend, device, trans_a, trans_b):
    for m, n, k in CASES.EDGES:
        a, b, bias, grad_out = operands(m, n, k, trans_a, trans_b, torch.float32, device)
        with poisoned_empty():
            check(a, b, trans_a, trans_b, grad_out, bias=bias)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 7), (0, 5, 0), (0, 0, 0)])
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
def test_zero_sizes(backend, device, m, n, k, trans_a, trans_b, poisoned_allocations):
    a, b, bias, grad_out = operands(m, n, k, trans_a, trans_b, torch.bfloat16, device)
    check(a, b, trans_a, trans_b, grad_out)
    check(a, b, trans_a, trans_b, grad_out, bias=bias)
    if k == 0:
        assert not turbo_gemm.gemm(a, b, trans_a, trans_b).any()


@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_dtype(backend, device, dtype, out_dtype):
    if backend is BackendType.HIPBLASLT and out_dtype not in (dtype, torch.float32):
        pytest.skip(f"backend HIPBLASLT has no {dtype} x {dtype} -> {out_dtype}")
    a, b, bias, grad_out = operands(33, 17, 65, False, True, dtype, device)
    check(a, b, False, True, grad_out.to(out_dtype), bias=bias, out_dtype=out_dtype)


def test_float32_output_is_not_rounded_to_16_bits(backend, device):
    a, b, _, _ = operands(16, 16, 64, False, False, torch.bfloat16, device)
    out = turbo_gemm.gemm(a, b, out_dtype=torch.float32)
    assert_close(out, references.gemm(a.detach(), b.detach(), False, False), dtype=torch.float32)


@pytest.mark.simulated
@pytest.mark.parametrize(("dtype_a", "dtype_b"), [(x, y) for x in DTYPES for y in DTYPES if x != y], ids=str)
def test_operands_of_two_dtypes(backend, device, dtype_a, dtype_b):
    if backend is BackendType.HIPBLASLT:
        pytest.skip("backend HIPBLASLT takes operands of one dtype")
    a, b, bias, grad_out = operands(17, 33, 31, False, False, torch.float32, device)
    a, b = a.detach().to(dtype_a).requires_grad_(), b.detach().to(dtype_b).requires_grad_()
    check(a, b, False, False, grad_out.to(torch.promote_types(dtype_a, dtype_b)), bias=bias)


def strided(tensor, how):
    """The same values in other memory."""
    rows, columns = tensor.shape
    if how == "column slice":
        return torch.cat([tensor, torch.full_like(tensor, torch.nan)], 1)[:, :columns]
    if how == "every second row":
        return torch.stack([tensor, torch.full_like(tensor, torch.nan)], 1).view(2 * rows, columns)[::2]
    if how == "every second column":
        return torch.stack([tensor, torch.full_like(tensor, torch.nan)], 2).view(rows, 2 * columns)[:, ::2]
    if how == "transposed":
        return tensor.t().contiguous().t()
    # field case: a view at an odd offset whose row stride is a multiple of 16
    stride = -(-columns // 16) * 16
    storage = torch.full((3 + rows * stride,), torch.nan, dtype=tensor.dtype, device=tensor.device)
    view = storage.as_strided((rows, columns), (stride, 1), 3)
    return view.copy_(tensor)


HOW = ["column slice", "every second row", "every second column", "transposed", "odd offset"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
def test_views_equal_their_copies(backend, device, how, trans_a, trans_b):
    a, b, bias, grad_out = operands(48, 64, 32, trans_a, trans_b, torch.bfloat16, device)
    expected = turbo_gemm.gemm(a, b, trans_a, trans_b, bias=bias)
    wanted = torch.autograd.grad(expected, (a, b, bias), grad_out)
    view_a, view_b = (strided(t.detach(), how).requires_grad_() for t in (a, b))
    for _ in range(3):
        out = turbo_gemm.gemm(view_a, view_b, trans_a, trans_b, bias=bias)
        assert_close(out, expected, what=f"out of {how}")
    for name, got, want in zip(
        ("dA", "dB", "dbias"), torch.autograd.grad(out, (view_a, view_b, bias), grad_out), wanted
    ):
        assert_close(got, want, what=f"{name} of {how}")


@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
def test_expanded_inputs_and_strided_bias(backend, device, trans_a, trans_b):
    a = torch.randn(1, 32).to(device, torch.float16).expand(32, 32)
    b = torch.randn(32, 1).to(device, torch.float16).expand(32, 32)
    bias = torch.randn(64).to(device, torch.float16)[::2]
    out = turbo_gemm.gemm(a, b, trans_a, trans_b, bias=bias)
    assert_close(out, references.gemm(a, b, trans_a, trans_b, bias), what="out")


@pytest.mark.parametrize("how", [*HOW, "expanded scalar", "expanded row", "expanded column"])
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
def test_gradient_of_c_in_any_memory(backend, device, how, trans_a, trans_b):
    m, n, k = 48, 32, 64
    a, b, bias, grad_out = operands(m, n, k, trans_a, trans_b, torch.bfloat16, device)
    if how.startswith("expanded"):
        shape = {"expanded scalar": (1, 1), "expanded row": (1, n), "expanded column": (m, 1)}[how]
        grad_out = (torch.randn(shape) / 8).to(device, torch.bfloat16).expand(m, n)
        check(a, b, trans_a, trans_b, grad_out, bias=bias)
    else:
        check(a, b, trans_a, trans_b, strided(grad_out, how), bias=bias)


def test_backward_of_a_sum(backend, device):
    a, b, bias, _ = operands(16, 32, 8, False, True, torch.float32, device)
    turbo_gemm.gemm(a, b, trans_b=True, bias=bias).sum().backward()
    assert_close(a.grad, b.detach().double().sum(0).expand(16, 8), what="dA")
    assert_close(bias.grad, torch.full((32,), 16.0, dtype=torch.float64), what="dbias")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_inf_stay_where_they_belong(backend, device, value):
    a, b, _, _ = operands(33, 17, 40, False, False, torch.bfloat16, device)
    a, b = a.detach().abs() + 0.5, b.detach().abs() + 0.5
    a[5, 7] = value
    out = turbo_gemm.gemm(a, b)
    assert_close(out, references.gemm(a, b, False, False), what="out")
    assert out[:5].isfinite().all()
    assert out[6:].isfinite().all()


@pytest.mark.deterministic
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bit_equal_from_run_to_run(backend, device, dtype):
    m, n, k = (1024, 1024, 2048) if device.type == "cuda" else (65, 63, 130)
    a, b, bias, grad_out = operands(m, n, k, False, True, dtype, device)

    def once():
        out = turbo_gemm.gemm(a, b, trans_b=True, bias=bias)
        return out, *torch.autograd.grad(out, (a, b, bias), grad_out)

    first = once()
    for _ in range(10 if device.type == "cuda" else 3):
        for name, one, other in zip(("out", "dA", "dB", "dbias"), first, once()):
            assert torch.equal(one, other), f"{name} differs between runs"


@pytest.mark.parametrize("needed", [(True, False), (False, True), (False, False)])
def test_only_wanted_gradients_are_computed(device, needed):
    a, b, _, _ = operands(4, 5, 6, False, False, torch.float32, device)
    a.requires_grad_(needed[0])
    b.requires_grad_(needed[1])
    bias = torch.zeros(5, device=device, requires_grad=True)
    with trace_dispatch() as trace:
        turbo_gemm.gemm(a, b, bias=bias).sum().backward()
    roles = [record.role for record in trace.records]
    assert roles == ["forward"] + ["dgrad"] * needed[0] + ["wgrad"] * needed[1]


def test_second_derivatives():
    GlobalBackendManager.set_gemm_backend("torch")
    a, b, bias = (torch.randn(shape, dtype=torch.float32, requires_grad=True) for shape in ((3, 4), (5, 4), (5,)))
    out = (turbo_gemm.gemm(a, b, trans_b=True, bias=bias) ** 2).sum()
    (grad_a,) = torch.autograd.grad(out, a, create_graph=True)
    second = torch.autograd.grad(grad_a.sum(), (a, b, bias))
    a64, b64, bias64 = (t.detach().double().requires_grad_() for t in (a, b, bias))
    out64 = ((a64 @ b64.t() + bias64) ** 2).sum()
    (grad_a64,) = torch.autograd.grad(out64, a64, create_graph=True)
    for got, want in zip(second, torch.autograd.grad(grad_a64.sum(), (a64, b64, bias64))):
        assert_close(got, want)


@pytest.mark.parametrize("enabled", [True, False])
def test_autocast(device, enabled):
    a, b, bias, _ = operands(8, 16, 32, False, True, torch.float32, device)
    with torch.autocast(device.type, torch.bfloat16, enabled=enabled), trace_dispatch() as trace:
        out = turbo_gemm.gemm(a, b, trans_b=True, bias=bias)
    assert out.dtype is (torch.bfloat16 if enabled else torch.float32)
    assert ("bfloat16 x bfloat16" in trace.records[0].call) is enabled
    out.float().sum().backward()
    assert a.grad.dtype is b.grad.dtype is bias.grad.dtype is torch.float32


@pytest.mark.gpu
def test_more_than_2_to_31_elements(backend, device):
    """C has 2**31 + 2**16 elements: the values past the wrap are right."""
    if torch.cuda.get_device_properties(device).total_memory < 30 << 30:
        pytest.skip("needs 30 GiB of GPU memory")
    m, n, k = 32769, 65536, 16
    a, b = (
        torch.randn(m, k, device=device, dtype=torch.bfloat16),
        torch.randn(n, k, device=device, dtype=torch.bfloat16),
    )
    out = turbo_gemm.gemm(a, b, trans_b=True)
    for rows in (slice(0, 8), slice(m - 8, m)):
        assert_close(out[rows], a[rows].double() @ b.double().t(), dtype=torch.bfloat16, what=f"rows {rows}")
    if backend is BackendType.HIPBLASLT:
        return  # which is not given an operand of that size
    wide = torch.randn(2, m * n // 2, device=device, dtype=torch.bfloat16)  # K past the wrap
    ones = torch.ones(1, m * n // 2, device=device, dtype=torch.bfloat16)
    ones[:, :-1000] = 0
    expected = wide[:, -1000:].double().sum(1, keepdim=True)
    assert_close(turbo_gemm.gemm(wide, ones, trans_b=True), expected, rtol=2e-2, atol=0.5)
