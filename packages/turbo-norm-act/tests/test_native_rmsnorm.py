# SPDX-License-Identifier: MIT
"""Numbers of the HIP kernels of RMSNorm, forward and backward, against the formula in float64.

Needs a gfx942 or gfx950: a card, or a simulator that is active (it names its library in TURBO_HIP_LIBRARY and makes
CPU tensors stand for its architecture). Elsewhere the tests are skipped with the native library's own reason.
"""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("turbo_norm_act.pytorch._C", reason="turbo-norm-act is not built (pip install -e)")

from turbo_norm_act.pytorch.kernels import native  # noqa: E402
from turbo_testing.metrics import assert_close  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
ROWS = [1, 3]
WIDTHS = [1, 33, 513, 4096, 8193]
# One width for each line of the kernel table, by bytes of a row, and one beyond it.
ROW_BYTES = [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 131088]


@pytest.fixture
def native_device() -> torch.device:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reason = native.why_not(device)
    if reason is not None and os.environ.get("TURBO_HIP_LIBRARY"):
        pytest.fail(f"a simulator was asked for, but: {reason}")
    if reason is not None:
        pytest.skip(reason)
    return device


# --- the formula ------------------------------------------------------------------------------------------------------


def forward_reference(x, residual, gamma, eps, zero_centered):
    """y, s, rstd in float64, from the s that is stored: x + residual, rounded to the dtype of x."""
    s = x if residual is None else (x.double() + residual.double()).to(x.dtype)
    rstd = (s.double().square().mean(-1) + eps).rsqrt()
    y = s.double() * rstd[:, None]
    if gamma is not None:
        y = y * (gamma.double() + (1.0 if zero_centered else 0.0))
    return y, s, rstd


def backward_reference(dy, ds, s, gamma, eps, zero_centered):
    """dx and dgamma in float64, by autograd through the formula."""
    s64 = s.double().requires_grad_()
    gamma64 = torch.ones(s.shape[1], device=s.device) if gamma is None else gamma
    gamma64 = gamma64.double().requires_grad_()
    y, _, _ = forward_reference(s64, None, gamma64, eps, zero_centered and gamma is not None)
    total = (y * dy.double()).sum()
    if ds is not None:
        total = total + (s64 * ds.double()).sum()
    dx, dgamma = torch.autograd.grad(total, [s64, gamma64])
    return dx, None if gamma is None else dgamma


def check_forward(x, residual, gamma, eps=1e-6, zero_centered=False):
    y, s, rstd = native.rmsnorm_forward(x, residual, gamma, eps, zero_centered)
    expected_y, expected_s, expected_rstd = forward_reference(x, residual, gamma, eps, zero_centered)
    assert (y.dtype, y.shape, rstd.dtype) == (x.dtype, x.shape, torch.float32)
    assert torch.equal(s.nan_to_num(), expected_s.nan_to_num()), "s is x + residual, rounded once"
    assert_close(rstd.double(), expected_rstd, rtol=1e-5, atol=0, what="rstd")
    assert_close(y, expected_y, dtype=x.dtype, what="y")
    return y, s, rstd


def check_backward(dy, ds, s, gamma, eps=1e-6, zero_centered=False):
    rstd = forward_reference(s, None, None, eps, False)[2].float()
    dx, dgamma = native.rmsnorm_backward(dy, ds, s, gamma, rstd, zero_centered)
    expected_dx, expected_dgamma = backward_reference(dy, ds, s, gamma, eps, zero_centered)
    assert (dx.dtype, dx.shape) == (s.dtype, s.shape)
    assert_close(dx, expected_dx, dtype=s.dtype, what="dx")
    if gamma is None:
        assert dgamma is None
    else:
        assert (dgamma.dtype, dgamma.shape) == (gamma.dtype, gamma.shape)
        # Sums of float32 products, rounded once to gamma's dtype: what remains is that rounding.
        scale = max(1.0, float(expected_dgamma.abs().max()))
        assert_close(dgamma.double() / scale, expected_dgamma / scale, dtype=gamma.dtype, what="dgamma")
    return dx, dgamma


def rand(rows, dim, dtype, device, scale=1.0):
    return (torch.randn(rows, dim) * scale).to(dtype).to(device)


# --- forward ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward(native_device, dtype, rows, dim):
    x, gamma = rand(rows, dim, dtype, native_device), rand(1, dim, dtype, native_device)[0]
    check_forward(x, None, gamma)


@pytest.mark.parametrize("row_bytes", ROW_BYTES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward_of_each_kernel_of_the_table(native_device, dtype, row_bytes):
    dim = row_bytes // dtype.itemsize
    for width in {dim, dim - 16 // dtype.itemsize}:  # full, and with the last access of a lane missing
        x, residual = (rand(5, width, dtype, native_device) for _ in range(2))
        check_forward(x, residual, rand(1, width, torch.float32, native_device)[0])


@pytest.mark.parametrize("dim", [33, 512, 4096, 8193])
@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("gamma_dtype", [None, *DTYPES], ids=str)
def test_forward_options(native_device, gamma_dtype, with_residual, zero_centered, dim):
    x = rand(3, dim, torch.bfloat16, native_device)
    residual = rand(3, dim, torch.bfloat16, native_device) if with_residual else None
    gamma = None if gamma_dtype is None else rand(1, dim, gamma_dtype, native_device)[0]
    check_forward(x, residual, gamma, zero_centered=zero_centered)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strided_rows(native_device, dtype):
    for dim, pitch, offset in [(4096, 4160, 0), (512, 1024, 512), (100, 113, 0), (512, 1024, 3)]:
        x = rand(5, pitch, dtype, native_device)[::2, offset : offset + dim]
        residual = rand(3, dim, dtype, native_device)
        y, s, _ = check_forward(x, residual, rand(1, dim, dtype, native_device)[0])
        assert y.is_contiguous() and s.is_contiguous()
    one_row = rand(1, 512, dtype, native_device).expand(3, 512)
    check_forward(one_row, None, None)


@pytest.mark.parametrize("dim", [513, 4096])
@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-2, 10.0])
def test_eps(native_device, eps, dim):
    check_forward(rand(3, dim, torch.float32, native_device, 0.1), None, None, eps)


@pytest.mark.parametrize("dim", [33, 4096])
def test_tiny_rows_keep_their_precision(native_device, dim):
    """The mean of squares is a subnormal float: v_rsq_f32 alone would see 0 and give infinity."""
    x = rand(3, dim, torch.float32, native_device, 1.0).sign() * 2.0**-66
    _, _, rstd = native.rmsnorm_forward(x, None, None, 0.0, False)
    assert_close(rstd, torch.full_like(rstd, 2.0**66), rtol=1e-5, atol=0, what="rstd")


@pytest.mark.parametrize("dim", [33, 4096, 70000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_infinity_stay_in_their_row(native_device, dtype, dim):
    x = rand(4, dim, dtype, native_device)
    x[1, dim // 2] = float("nan")
    x[2, dim - 1] = float("inf")
    gamma = rand(1, dim, dtype, native_device)[0]
    y, _, rstd = native.rmsnorm_forward(x, None, gamma, 1e-6, False)
    expected, _, expected_rstd = forward_reference(x, None, gamma, 1e-6, False)
    assert_close(y, expected, dtype=dtype, what="y")
    assert y[1].isnan().all()
    assert y[2, dim - 1].isnan() and (y[2, : dim - 1] == 0).all(), "rstd is 0, and inf * 0 is NaN"
    assert rstd[1].isnan() and rstd[2] == 0
    assert_close(rstd[[0, 3]].double(), expected_rstd[[0, 3]], rtol=1e-5, atol=0, what="rstd")


def test_no_rows_and_no_columns(native_device):
    for shape in ((0, 64), (3, 0)):
        x, gamma = torch.zeros(shape, device=native_device), torch.ones(shape[1], device=native_device)
        y, s, rstd = native.rmsnorm_forward(x, None, gamma, 1e-6, False)
        dx, dgamma = native.rmsnorm_backward(x, None, s, gamma, rstd, False)
        assert (y.shape, dx.shape) == (shape, shape)
        assert torch.equal(dgamma, torch.zeros_like(gamma))


# --- backward ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward(native_device, dtype, rows, dim):
    dy, s = (rand(rows, dim, dtype, native_device) for _ in range(2))
    check_backward(dy, None, s, rand(1, dim, dtype, native_device)[0])


@pytest.mark.parametrize("row_bytes", ROW_BYTES[:8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward_of_each_kernel_of_the_table(native_device, dtype, row_bytes):
    dim = row_bytes // dtype.itemsize
    for width in {dim, dim - 16 // dtype.itemsize}:
        dy, ds, s = (rand(5, width, dtype, native_device) for _ in range(3))
        check_backward(dy, ds, s, rand(1, width, torch.float32, native_device)[0])


@pytest.mark.parametrize("dim", [33, 512, 4096, 8193])
@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("with_ds", [False, True])
@pytest.mark.parametrize("gamma_dtype", [None, *DTYPES], ids=str)
def test_backward_options(native_device, gamma_dtype, with_ds, zero_centered, dim):
    dy, s = (rand(3, dim, torch.bfloat16, native_device) for _ in range(2))
    ds = rand(3, dim, torch.bfloat16, native_device) if with_ds else None
    gamma = None if gamma_dtype is None else rand(1, dim, gamma_dtype, native_device)[0]
    check_backward(dy, ds, s, gamma, zero_centered=zero_centered)


@pytest.mark.parametrize(
    "dtype, dim", [(torch.bfloat16, 24), (torch.float32, 8), (torch.bfloat16, 2056), (torch.bfloat16, 33)], ids=str
)
def test_more_rows_than_work_groups(native_device, dtype, dim):
    """Each work-group takes several rows, and the last ones fewer than the others."""
    rows = 1100 if dim > 2048 else 4 * 1024 + 5
    dy, s = (rand(rows, dim, dtype, native_device) for _ in range(2))
    check_backward(dy, None, s, rand(1, dim, torch.float32, native_device)[0])


def test_gradients_of_any_stride(native_device):
    s, gamma = rand(6, 512, torch.float32, native_device), rand(1, 512, torch.float32, native_device)[0]
    expanded = torch.tensor(1.0, device=native_device).expand(6, 512)  # of y.sum()
    transposed = rand(512, 6, torch.float32, native_device).t()
    pitched = rand(6, 700, torch.float32, native_device)[:, 13:525]
    one_row = rand(1, 512, torch.float32, native_device).expand(6, 512)
    for gradient in (expanded, transposed, pitched, one_row):
        check_backward(gradient, gradient, s, gamma)


@pytest.mark.deterministic
@pytest.mark.parametrize("dim", [24, 513, 4096])
def test_equal_inputs_give_equal_bits(native_device, dim):
    dy, ds, s = (rand(1030, dim, torch.bfloat16, native_device) for _ in range(3))
    gamma, rstd = rand(1, dim, torch.float32, native_device)[0], torch.rand(1030, device=native_device)
    first = native.rmsnorm_backward(dy, ds, s, gamma, rstd, False)
    for _ in range(2):
        again = native.rmsnorm_backward(dy, ds, s, gamma, rstd, False)
        assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_dgamma_of_many_rows_is_precise(native_device):
    """Sums in the gradient's dtype would lose most of their bits: relative error of the whole vector under 3e-3."""
    rows, dim = (32768, 2048) if native_device.type == "cuda" else (2048, 128)
    dy, s = (rand(rows, dim, torch.bfloat16, native_device) for _ in range(2))
    gamma = torch.ones(dim, dtype=torch.bfloat16, device=native_device)
    rstd = forward_reference(s, None, None, 1e-6, False)[2].float()
    _, dgamma = native.rmsnorm_backward(dy, None, s, gamma, rstd, False)
    _, expected = backward_reference(dy, None, s, gamma, 1e-6, False)
    error = (dgamma.double() - expected).norm() / expected.norm()
    assert error < 3e-3, f"{error:.2e}"


def test_unwritten_memory_does_not_show(native_device, poisoned_allocations):
    """Partial sums and outputs are allocated uninitialised; what was in that memory must not matter."""
    for dim in (24, 513, 4096):
        dy, ds, s = (rand(3, dim, torch.bfloat16, native_device) for _ in range(3))
        check_backward(dy, ds, s, rand(1, dim, torch.bfloat16, native_device)[0])
        check_forward(s, ds, None)
