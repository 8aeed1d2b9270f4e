# SPDX-License-Identifier: MIT
"""Numbers of the HIP kernels of RMSNorm and LayerNorm, forward and backward, against the formula in float64.

Needs a gfx942 or gfx950: a card, or a simulator that is active (it names its library in TURBO_HIP_LIBRARY and makes
CPU tensors stand for its architecture). Elsewhere the tests are skipped with the native library's own reason.
"""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("turbo_norm_act.pytorch._C", reason="turbo-norm-act is not built (pip install -e)")

from turbo_core.calls import unit_strides  # noqa: E402
from turbo_norm_act.calls import NormBackward, NormForward  # noqa: E402
from turbo_norm_act.pytorch.kernels import native  # noqa: E402
from turbo_testing.metrics import assert_close  # noqa: E402

pytestmark = pytest.mark.simulated

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
ROWS = [1, 3]
WIDTHS = [1, 33, 513, 4096, 8193]
# One width for each line of the kernel table, by bytes of a row, and one beyond it.
ROW_BYTES = [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 131088]


both_norms = pytest.mark.parametrize("center", [False, True], ids=["rmsnorm", "layernorm"])


@pytest.fixture
def native_device() -> torch.device:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reason = native.library.why_not(device)
    if reason is not None and os.environ.get("TURBO_HIP_LIBRARY"):
        pytest.fail(f"a simulator was asked for, but: {reason}")
    if reason is not None:
        pytest.skip(reason)
    return device


# --- the formula ------------------------------------------------------------------------------------------------------


def forward_reference(x, residual, gamma, beta=None, eps=1e-6, *, center, zero_centered=False):
    """y, s, mean, rstd in float64, from the s that is stored: x + residual, rounded to the dtype of x."""
    s = x if residual is None else (x.double() + residual.double()).to(x.dtype)
    mean = s.double().mean(-1) if center else s.new_zeros(s.shape[:1], dtype=torch.float64)
    y = s.double() - mean[:, None]
    rstd = (y.square().mean(-1) + eps).rsqrt()
    y = y * rstd[:, None]
    if gamma is not None:
        y = y * (gamma.double() + (1.0 if zero_centered else 0.0))
    return y if beta is None else y + beta.double(), s, mean, rstd


def backward_reference(dy, ds, s, gamma, eps=1e-6, *, center, zero_centered=False):
    """dx, dgamma and dbeta in float64, by autograd through the formula."""
    s64 = s.double().requires_grad_()
    gamma64 = torch.ones(s.shape[1], device=s.device) if gamma is None else gamma
    gamma64 = gamma64.double().requires_grad_()
    zero_centered = zero_centered and gamma is not None
    y = forward_reference(s64, None, gamma64, None, eps, center=center, zero_centered=zero_centered)[0]
    total = (y * dy.double()).sum()
    if ds is not None:
        total = total + (s64 * ds.double()).sum()
    dx, dgamma = torch.autograd.grad(total, [s64, gamma64])
    return dx, dgamma, dy.double().sum(0)


def forward(x, residual=None, gamma=None, beta=None, eps=1e-6, *, center, zero_centered=False):
    """y, s, mean, rstd of the kernels."""
    call = NormForward(x, residual, gamma, beta, eps, zero_centered, center)
    return native.run(unit_strides(call, "x", "residual", "gamma", "beta"))


def backward(dy, ds, s, gamma, mean, rstd, dbeta=None, eps=1e-6, zero_centered=False):
    """dx, dgamma (with a gamma) and dbeta (of the dtype ``dbeta``) of the kernels."""
    call = NormBackward(s, dy, ds, gamma, mean, rstd, eps, zero_centered, True, gamma is not None, dbeta)
    return native.run(unit_strides(call, "s", "dy", "ds", "gamma"))


def check_forward(x, residual, gamma, beta=None, eps=1e-6, *, center, zero_centered=False):
    options = dict(center=center, zero_centered=zero_centered)
    y, s, mean, rstd = forward(x, residual, gamma, beta, eps, **options)
    expected_y, expected_s, expected_mean, expected_rstd = forward_reference(x, residual, gamma, beta, eps, **options)
    assert (y.dtype, y.shape, rstd.dtype) == (x.dtype, x.shape, torch.float32)
    if residual is None:
        assert s is None
    else:
        assert torch.equal(s.nan_to_num(), expected_s.nan_to_num()), "s is x + residual, rounded once"
    if center:
        assert mean.dtype == torch.float32
        scale = expected_s.double().abs().mean(-1) + 1e-30
        assert_close(mean.double() / scale, expected_mean / scale, rtol=0, atol=1e-6, what="mean")
    else:
        assert mean is None
    assert_close(rstd.double(), expected_rstd, rtol=1e-5, atol=0, what="rstd")
    assert_close(y, expected_y, dtype=x.dtype, what="y")
    return y, s, rstd


def statistics(s, eps=1e-6, *, center):
    """mean (None of RMSNorm) and rstd of a forward, in float32."""
    mean, rstd = forward_reference(s, None, None, None, eps, center=center)[2:]
    return mean.float() if center else None, rstd.float()


def check_backward(dy, ds, s, gamma, eps=1e-6, *, center, zero_centered=False, beta_dtype=torch.float32):
    mean, rstd = statistics(s, eps, center=center)
    found = backward(dy, ds, s, gamma, mean, rstd, beta_dtype if center else None, eps, zero_centered)
    expected = backward_reference(dy, ds, s, gamma, eps, center=center, zero_centered=zero_centered)
    assert (found.dx.dtype, found.dx.shape) == (s.dtype, s.shape)
    assert_close(found.dx, expected[0], dtype=s.dtype, what="dx")
    dtypes = None if gamma is None else gamma.dtype, beta_dtype if center else None
    for name, dtype, gradient, value in zip(("dgamma", "dbeta"), dtypes, found[1:], expected[1:]):
        if dtype is None:
            assert gradient is None
            continue
        assert (gradient.dtype, gradient.shape) == (dtype, s.shape[1:])
        # Sums of float32 terms, rounded once to the parameter's dtype: what remains is that rounding.
        scale = max(1.0, float(value.abs().max()))
        assert_close(gradient.double() / scale, value / scale, dtype=dtype, what=name)
    return found


def rand(rows, dim, dtype, device, scale=1.0):
    return (torch.randn(rows, dim) * scale).to(dtype).to(device)


def parameter(dim, dtype, device):
    """A gamma or beta; None is one, too."""
    return None if dtype is None else rand(1, dim, dtype, device)[0]


# --- forward ----------------------------------------------------------------------------------------------------------


@both_norms
@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward(native_device, dtype, rows, dim, center):
    x, gamma, beta = rand(rows, dim, dtype, native_device), *(parameter(dim, dtype, native_device) for _ in range(2))
    check_forward(x, None, gamma, beta if center else None, center=center)


@both_norms
@pytest.mark.parametrize("row_bytes", ROW_BYTES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward_of_each_kernel_of_the_table(native_device, dtype, row_bytes, center):
    dim = row_bytes // dtype.itemsize
    for width in {dim, dim - 16 // dtype.itemsize}:  # full, and with the last access of a lane missing
        x, residual = (rand(5, width, dtype, native_device) for _ in range(2))
        gamma, beta = (parameter(width, torch.float32, native_device) for _ in range(2))
        check_forward(x, residual, gamma, beta if center else None, center=center)


@both_norms
@pytest.mark.parametrize("dim", [33, 512, 4096, 8193])
@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("gamma_dtype", [None, *DTYPES], ids=str)
def test_forward_options(native_device, gamma_dtype, with_residual, zero_centered, dim, center):
    x = rand(3, dim, torch.bfloat16, native_device)
    residual = rand(3, dim, torch.bfloat16, native_device) if with_residual else None
    gamma = parameter(dim, gamma_dtype, native_device)
    check_forward(x, residual, gamma, center=center, zero_centered=zero_centered)


@pytest.mark.parametrize("dim", [33, 512, 80000])
@pytest.mark.parametrize("gamma_dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("beta_dtype", [None, *DTYPES], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_beta_of_any_type(native_device, dtype, beta_dtype, gamma_dtype, dim):
    x = rand(2, dim, dtype, native_device)
    gamma, beta = parameter(dim, gamma_dtype, native_device), parameter(dim, beta_dtype, native_device)
    check_forward(x, None, gamma, beta, center=True)


@both_norms
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strided_rows(native_device, dtype, center):
    for dim, pitch, offset in [(4096, 4160, 0), (512, 1024, 512), (100, 113, 0), (512, 1024, 3)]:
        x = rand(5, pitch, dtype, native_device)[::2, offset : offset + dim]
        residual = rand(3, dim, dtype, native_device)
        y, s, _ = check_forward(x, residual, parameter(dim, dtype, native_device), center=center)
        assert y.is_contiguous() and s.is_contiguous()
    one_row = rand(1, 512, dtype, native_device).expand(3, 512)
    check_forward(one_row, None, None, center=center)


@both_norms
@pytest.mark.parametrize("dim", [513, 4096])
@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-2, 10.0])
def test_eps(native_device, eps, dim, center):
    check_forward(rand(3, dim, torch.float32, native_device, 0.1), None, None, None, eps, center=center)


@both_norms
@pytest.mark.parametrize("dim", [32, 4096])
def test_tiny_rows_keep_their_precision(native_device, dim, center):
    """The mean of squares is a subnormal float: v_rsq_f32 alone would see 0 and give infinity."""
    signs = rand(3, dim // 2, torch.float32, native_device).sign()
    x = torch.cat([signs, -signs], 1) * 2.0**-66  # of mean 0
    rstd = forward(x, eps=0.0, center=center).rstd
    assert_close(rstd, torch.full_like(rstd, 2.0**66), rtol=1e-5, atol=0, what="rstd")


@pytest.mark.parametrize("dim", [33, 513, 4096, 40000, 70000])
@pytest.mark.parametrize("offset", [-3e3, 1e4])
def test_a_large_mean_costs_no_precision(native_device, offset, dim):
    """A difference of mean(s^2) and mean(s)^2 would leave nothing of a variance of 1 here. mean itself is rounded."""
    x = rand(3, dim, torch.float32, native_device) + offset
    x[1] = offset  # a constant row, whose variance is 0
    x[2, 0] = 0.0  # the first element is no measure for the others
    y, _, mean, rstd = forward(x, center=True)
    expected, _, expected_mean, expected_rstd = forward_reference(x, None, None, center=True)
    assert_close(mean.double(), expected_mean, rtol=3e-7, atol=0, what="mean")
    assert_close(rstd[[0, 2]].double(), expected_rstd[[0, 2]], rtol=1e-4, atol=0, what="rstd")
    assert_close(y[[0, 2]].double(), expected[[0, 2]], rtol=0, atol=4e-3, what="y")


@both_norms
@pytest.mark.parametrize("dim", [33, 4096, 70000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_infinity_stay_in_their_row(native_device, dtype, dim, center):
    x = rand(4, dim, dtype, native_device)
    x[1, dim // 2] = float("nan")
    x[2, dim - 1] = float("inf")
    gamma = parameter(dim, dtype, native_device)
    y, _, mean, rstd = forward(x, gamma=gamma, center=center)
    expected, _, _, expected_rstd = forward_reference(x, None, gamma, center=center)
    assert_close(y, expected, dtype=dtype, what="y")
    assert y[1].isnan().all() and rstd[1].isnan()
    if center:
        assert y[2].isnan().all() and rstd[2].isnan() and not mean[1:3].isfinite().any()
    else:
        assert y[2, dim - 1].isnan() and (y[2, : dim - 1] == 0).all(), "rstd is 0, and inf * 0 is NaN"
        assert rstd[2] == 0
    assert_close(rstd[[0, 3]].double(), expected_rstd[[0, 3]], rtol=1e-5, atol=0, what="rstd")


# --- backward ---------------------------------------------------------------------------------------------------------


@both_norms
@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward(native_device, dtype, rows, dim, center):
    dy, s = (rand(rows, dim, dtype, native_device) for _ in range(2))
    check_backward(dy, None, s, parameter(dim, dtype, native_device), center=center, beta_dtype=dtype)


@both_norms
@pytest.mark.parametrize("row_bytes", ROW_BYTES[:8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward_of_each_kernel_of_the_table(native_device, dtype, row_bytes, center):
    dim = row_bytes // dtype.itemsize
    for width in {dim, dim - 16 // dtype.itemsize}:
        dy, ds, s = (rand(5, width, dtype, native_device) for _ in range(3))
        check_backward(dy, ds, s, parameter(width, torch.float32, native_device), center=center)


@both_norms
@pytest.mark.parametrize("dim", [33, 512, 4096, 8193])
@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("with_ds", [False, True])
@pytest.mark.parametrize("gamma_dtype", [None, *DTYPES], ids=str)
def test_backward_options(native_device, gamma_dtype, with_ds, zero_centered, dim, center):
    dy, s = (rand(3, dim, torch.bfloat16, native_device) for _ in range(2))
    ds = rand(3, dim, torch.bfloat16, native_device) if with_ds else None
    gamma = parameter(dim, gamma_dtype, native_device)
    check_backward(dy, ds, s, gamma, center=center, zero_centered=zero_centered)


@pytest.mark.parametrize("dim", [33, 512, 4096, 24576])
@pytest.mark.parametrize("beta_dtype", [None, *DTYPES], ids=str)
@pytest.mark.parametrize("with_gamma", [False, True])
def test_dgamma_and_dbeta_are_independent(native_device, with_gamma, beta_dtype, dim):
    dy, s = (rand(6, dim, torch.bfloat16, native_device) for _ in range(2))
    gamma = parameter(dim, torch.float16 if with_gamma else None, native_device)
    check_backward(dy, None, s, gamma, center=True, beta_dtype=beta_dtype)


def test_gradients_of_a_large_mean(native_device):
    for dim in (33, 4096, 40000):
        dy, s = rand(3, dim, torch.float32, native_device), rand(3, dim, torch.float32, native_device) + 256.0
        mean, rstd = statistics(s, center=True)
        dx = backward(dy, None, s, None, mean, rstd).dx
        assert_close(dx.double(), backward_reference(dy, None, s, None, center=True)[0], rtol=0, atol=1e-3, what="dx")


@both_norms
@pytest.mark.parametrize(
    "dtype, dim", [(torch.bfloat16, 24), (torch.float32, 8), (torch.bfloat16, 2056), (torch.bfloat16, 33)], ids=str
)
def test_more_rows_than_work_groups(native_device, dtype, dim, center):
    """Each work-group takes several rows, and the last ones fewer than the others."""
    rows = 1100 if dim > 2048 else 4 * 1024 + 5
    dy, s = (rand(rows, dim, dtype, native_device) for _ in range(2))
    check_backward(dy, None, s, parameter(dim, torch.float32, native_device), center=center)


@both_norms
def test_gradients_of_any_stride(native_device, center):
    s, gamma = rand(6, 512, torch.float32, native_device), parameter(512, torch.float32, native_device)
    expanded = torch.tensor(1.0, device=native_device).expand(6, 512)  # of y.sum()
    transposed = rand(512, 6, torch.float32, native_device).t()
    pitched = rand(6, 700, torch.float32, native_device)[:, 13:525]
    one_row = rand(1, 512, torch.float32, native_device).expand(6, 512)
    for gradient in (expanded, transposed, pitched, one_row):
        check_backward(gradient, gradient, s, gamma, center=center)


@both_norms
@pytest.mark.deterministic
@pytest.mark.parametrize("dim", [24, 513, 4096])
def test_equal_inputs_give_equal_bits(native_device, dim, center):
    dy, ds, s = (rand(1030, dim, torch.bfloat16, native_device) for _ in range(3))
    gamma, rstd = parameter(dim, torch.float32, native_device), torch.rand(1030, device=native_device)
    mean = torch.rand(1030, device=native_device) if center else None
    arguments = dy, ds, s, gamma, mean, rstd, torch.bfloat16 if center else None
    first = backward(*arguments)
    for _ in range(2):
        again = backward(*arguments)
        assert all(torch.equal(a, b) for a, b in zip(first, again) if a is not None)


@both_norms
def test_dgamma_of_many_rows_is_precise(native_device, center):
    """Sums in the gradient's dtype would lose most of their bits: relative error of the whole vector under 3e-3."""
    rows, dim = (32768, 2048) if native_device.type == "cuda" else (2048, 128)
    dy, s = (rand(rows, dim, torch.bfloat16, native_device) for _ in range(2))
    gamma = torch.ones(dim, dtype=torch.bfloat16, device=native_device)
    mean, rstd = statistics(s, center=center)
    found = backward(dy, None, s, gamma, mean, rstd, torch.bfloat16 if center else None)
    expected = backward_reference(dy, None, s, gamma, center=center)
    for gradient, value in zip(found[1 : 2 + center], expected[1:]):
        error = (gradient.double() - value).norm() / value.norm()
        assert error < 3e-3, f"{error:.2e}"


@both_norms
def test_unwritten_memory_does_not_show(native_device, poisoned_allocations, center):
    """Partial sums and outputs are allocated uninitialised; what was in that memory must not matter."""
    for dim in (24, 513, 4096):
        dy, ds, s = (rand(3, dim, torch.bfloat16, native_device) for _ in range(3))
        check_backward(dy, ds, s, parameter(dim, torch.bfloat16, native_device), center=center)
        check_forward(s, ds, None, center=center)
