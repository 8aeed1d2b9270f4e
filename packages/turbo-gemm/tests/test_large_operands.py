# SPDX-License-Identifier: MIT
"""Operands past 2**31 elements: a BLAS is not given them, and every backend's values are right in every role.

What decides is looked at with expanded and meta tensors; the values on a GPU, against float64 on a slice.
"""

import pytest
import torch

import turbo_gemm
from turbo_core import BackendType, BackendUnavailableError, GlobalBackendManager
from turbo_core.low_precision import Float8QuantConfig, ScalingGranularity
from turbo_gemm.calls import GemmCall, GemmFp8Call, Operand
from turbo_gemm.pytorch.kernels import gemm_blas, gemm_reference, scaled_mm
from turbo_gemm.pytorch.kernels.blas_settings import BLAS_REACH, reach, why_not_blas_sizes
from turbo_testing import references
from turbo_testing.metrics import assert_close, assert_snr
from turbo_testing.support_table import PLACES, standing_on

BF16 = torch.bfloat16


def meta(*shape, dtype=BF16, strides=None):
    """Memory that nobody has."""
    if strides is None:
        return torch.empty(shape, device="meta", dtype=dtype)
    return torch.empty_strided(shape, strides, device="meta", dtype=dtype)


@pytest.mark.parametrize(
    ("x", "elements"),
    [
        (meta(524289, 4096), 524289 * 4096),
        (meta(524289, 4096).t(), 524289 * 4096),
        (meta(3, 4), 12),
        (meta(0, 2**40), 0),
        (meta(524289, 4096)[:, :8], 524288 * 4096 + 8),  # a slice spans the rows that it came from
        (meta(524289, 4096)[::2, :8], 524288 * 4096 + 8),
        (meta(1, 1).expand(524289, 4096), 524289 * 4096),  # torch copies it to that many
        (meta(7, 5, strides=(2**30, 1)), 6 * 2**30 + 5),
    ],
)
def test_reach(x, elements):
    assert reach(x) == elements
    assert (why_not_blas_sizes(a=x) is None) is (elements <= BLAS_REACH)


def test_the_last_size_that_a_blas_gets():
    assert why_not_blas_sizes(a=meta(1, 2**31 - 1), b=meta(1, 1)) is None
    assert why_not_blas_sizes(a=meta(1, 1), b=meta(2**16, 2**15)) == (
        "b of shape [65536, 32768] and strides [32768, 1] spans 2147483648 elements; "
        "torch's BLAS is trusted with 2147483647"
    )


ROWS, WIDTH, NARROW = 524289, 4096, 64
X, W, G, SLICE = ((ROWS, WIDTH), None), ((NARROW, WIDTH), None), ((ROWS, NARROW), None), ((ROWS, NARROW), (WIDTH, 1))
LARGE = {
    "forward": (X, W, False, True, "a of shape"),
    "forward, transposed": (W, X, False, True, "b of shape"),
    "wgrad": (G, X, True, False, "b of shape"),
    "wgrad, transposed": (X, G, True, False, "a of shape"),
    "a slice": (SLICE, G, True, False, "a of shape"),
    "dgrad": (G, W, False, False, None),  # C alone is large
}


@pytest.mark.parametrize("what", LARGE)
@pytest.mark.parametrize("place", ["gfx942", "NVIDIA"])
def test_hipblaslt_is_not_given_them(place, what):
    *sides, trans_a, trans_b, complaint = LARGE[what]
    with standing_on(PLACES[place]) as where:
        a, b = (
            torch.empty_strided(shape, (shape[1], 1) if strides is None else strides, dtype=BF16, device=where)
            for shape, strides in sides
        )
        refused = gemm_blas.why_not(GemmCall(a, b, None, trans_a, trans_b, BF16))
    assert (refused is None) if complaint is None else refused.startswith(complaint)


@pytest.mark.parametrize("granularity", [ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE])
@pytest.mark.parametrize("which", ["a", "b"])
def test_nor_is_torchs_scaled_product(monkeypatch, which, granularity):
    monkeypatch.setattr(scaled_mm, "_hip_version", lambda: (7, 0))
    with standing_on(PLACES["NVIDIA"]) as where:
        fp8 = torch.float8_e4m3fn
        large, small = (torch.empty(shape, device=where, dtype=fp8) for shape in ((524304, 4096), (64, 4096)))
        a, b = (large, small) if which == "a" else (small, large)
        scales = [torch.empty((), device=where)] * 2
        if granularity is ScalingGranularity.ROWWISE:
            scales = [torch.empty(t.shape[0], 1, device=where) for t in (a, b)]
        x, y = Operand(a, scales[0]), Operand(b, scales[1], True)
        call = GemmFp8Call(x, y, None, granularity, 0, BF16)
        refused = scaled_mm.why_not(call)
        assert scaled_mm.why_not(call._replace(a=x._replace(data=small), b=y._replace(data=small))) is None
    assert refused is not None
    assert refused.startswith(f"{which} of shape [524304, 4096]")


@pytest.mark.parametrize("limit", [1, 7, 30, 64, 10**6])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 6, 33), (33, 5, 6), (5, 33, 6), (7, 7, 7), (1, 1, 40), (40, 1, 1)])
def test_the_reference_multiplies_large_matrices_in_halves(monkeypatch, m, n, k, limit):
    monkeypatch.setattr(gemm_reference, "BLAS_REACH", limit)
    bias, running = torch.randn(n), torch.randn(m, n)
    for dtype in (torch.float32, BF16):
        a, b = torch.randn(m, 2 * k).to(dtype)[:, ::2], torch.randn(n, k).to(dtype).t()
        want = references.gemm(a, b, False, False, bias)
        assert_close(gemm_reference.gemm_reference(a, b, bias, torch.float32), want)
        into = running.clone()
        assert gemm_reference.gemm_reference(a, b, bias, torch.float32, into) is into
        assert_close(into, want + running.double())


def test_the_reference_gives_a_blas_no_more_than_the_limit(monkeypatch):
    """Sizes and strides of what is multiplied."""
    seen = []
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: seen.append(max(map(reach, (a, b)))) or matmul(a, b))
    monkeypatch.setattr(gemm_reference, "BLAS_REACH", 50)
    wide = torch.randn(20, 100)
    gemm_reference.gemm_reference(wide[:, :9], wide[:9, :11], None, torch.float32)
    assert seen
    assert max(seen) <= 50


# --- on a GPU -------------------------------------------------------------------------------------------------------


def needs(gib, device):
    if torch.cuda.get_device_properties(device).total_memory < gib << 30:
        pytest.skip(f"needs {gib} GiB of GPU memory")


def on(backend, function):
    """The result, or None where the backend says that it does not take such operands."""
    GlobalBackendManager.set_gemm_backend(backend)
    try:
        return function()
    except BackendUnavailableError as refusal:
        assert "torch's BLAS is trusted with" in str(refusal)
        assert backend == "HIPBLASLT"
        return None
    finally:
        GlobalBackendManager.set_gemm_backend(None)


@pytest.mark.gpu
@pytest.mark.parametrize("chosen", [None, "HIPBLASLT", "TRITON", "TORCH"])
def test_values_of_every_role(device, chosen):
    """Forward, dgrad and wgrad of x [524289, 4096], the last contracted over its rows."""
    needs(60, device)
    torch.manual_seed(1)
    x = torch.randn(ROWS, WIDTH, device=device, dtype=BF16)
    w = torch.randn(NARROW, WIDTH, device=device, dtype=BF16) / 64
    grad_out = torch.randn(ROWS, NARROW, device=device, dtype=BF16) / 512

    def gemm(*arguments):
        return on(chosen, lambda: turbo_gemm.gemm(*arguments))

    part = [slice(0, 32), slice(ROWS - 32, ROWS)]
    if (y := gemm(x, w, False, True)) is not None:
        for rows in part:
            assert_close(y[rows], x[rows].double() @ w.double().t(), dtype=BF16, what=f"forward, rows {rows}")
    if (dx := gemm(grad_out, w)) is not None:
        assert dx.numel() > 2**31
        for rows in part:
            assert_close(dx[rows], grad_out[rows].double() @ w.double(), dtype=BF16, what=f"dgrad, rows {rows}")
    columns = slice(WIDTH - 32, WIDTH)
    want = sum(grad_out[i : i + 65536].double().t() @ x[i : i + 65536, columns].double() for i in range(0, ROWS, 65536))
    for what, arguments, turn in (
        ("wgrad", (grad_out, x, True, False), False),
        ("wgrad, transposed", (x, grad_out, True, False), True),
        ("wgrad to float32", (grad_out, x, True, False, torch.float32), False),
    ):
        if (dw := gemm(*arguments)) is not None:
            assert_snr((dw.t() if turn else dw)[:, columns], want, 50, what)
    main_grad = torch.ones(NARROW, WIDTH, device=device)
    weight = torch.nn.Parameter(w)
    weight.main_grad, weight.grad_added_to_main_grad = main_grad, False

    def accumulate():
        turbo_gemm.gemm(x, weight, trans_b=True, fuse_bgrad_accum_pattern="megatron").backward(grad_out)
        return main_grad

    if on(chosen, accumulate) is not None:
        assert_snr(main_grad[:, columns] - 1, want, 50, "main_grad")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "HIPBLASLT", "TRITON"])
def test_fp8_values_of_every_role(device, backend):
    needs(80, device)
    torch.manual_seed(1)
    rows = 524304
    x = torch.randn(rows, WIDTH, device=device, dtype=BF16)
    w = (torch.randn(NARROW, WIDTH, device=device, dtype=BF16) / 64).requires_grad_()
    grad_out = torch.randn(rows, NARROW, device=device, dtype=BF16) / 512
    y = on(backend, lambda: turbo_gemm.gemm_fp8(x, w, trans_b=True, config=Float8QuantConfig()))
    if y is None:
        return
    assert_snr(y[-64:].detach(), x[-64:].double() @ w.detach().double().t(), 25, "forward")
    (dw,) = torch.autograd.grad(y, w, grad_out)
    columns = slice(WIDTH - 32, WIDTH)
    want = sum(grad_out[i : i + 65536].double().t() @ x[i : i + 65536, columns].double() for i in range(0, rows, 65536))
    assert_snr(dw[:, columns], want, 25, "wgrad")


@pytest.mark.gpu
def test_hipblaslt_takes_the_last_size_and_the_default_is_another_past_it(device):
    needs(30, device)
    x, one = torch.ones(1, 1, device=device, dtype=BF16), torch.float32
    call = GemmCall(x.expand(524287, 4096), x.expand(4096, 64), None, False, False, one)
    assert gemm_blas.why_not(call) is None
    past = call._replace(a=x.expand(524288, 4096))
    assert gemm_blas.why_not(past) is not None
    from turbo_gemm.pytorch.kernels.gemm_impl import GemmDispatcher

    assert GemmDispatcher.resolve(past).backend is BackendType.TRITON
