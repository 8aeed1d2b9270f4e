# SPDX-License-Identifier: MIT
"""The HIP kernels of `scale_rows`: their numbers on a card or the simulator, and what the library launches."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
_C = pytest.importorskip("turbo_template.pytorch._C", reason="turbo-template is not built (pip install -e)")

from turbo_core import BackendUnavailableError, GlobalBackendManager  # noqa: E402
from turbo_template import scale_rows  # noqa: E402
from turbo_template.calls import ScaleRows, ScaleRowsBackward  # noqa: E402
from turbo_template.pytorch.kernels import native, scale_rows_native  # noqa: E402
from turbo_testing.cases import load_file  # noqa: E402
from turbo_testing.metrics import assert_close  # noqa: E402
from turbo_testing.native_device import native_device  # noqa: E402

cases = load_file(Path(__file__).with_name("cases.py"), "cases_of_turbo_template")
ARCHS = ["gfx942", "gfx950"]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]

# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=ARCHS)
def device(request):
    with native_device(request.param) as device:
        yield device


def check(x, scale, residual, dy):
    y = scale_rows_native.run(ScaleRows(x, scale, residual))
    wide = [None if part is None else part.double() for part in (x, scale, residual)]
    assert_close(y, cases.scale_rows(*wide), dtype=x.dtype, what="y")
    dx, dscale = scale_rows_native.run(ScaleRowsBackward(dy, x, scale, True))
    assert_close(dx, cases.scale_rows(dy.double(), wide[1]), dtype=x.dtype, what="dx")
    expected = (dy.double() * wide[0]).sum(-1)
    size = expected.abs().amax().clamp(min=1.0)
    assert_close(dscale.double() / size, expected / size, dtype=scale.dtype, what="dscale")


@pytest.mark.simulated
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 123), (1, 1), (9, 64), (3, 4096), (4, 1032)], ids=str)
def test_values(device, shape, dtype):
    x, residual, dy = (torch.randn(shape).to(device, dtype) for _ in range(3))
    for scale_dtype in DTYPES:
        check(x, torch.randn(shape[0]).to(device, scale_dtype), residual, dy)
    check(x, torch.randn(shape[0]).to(device), None, dy)


@pytest.mark.simulated
def test_strided_rows(device):
    """Rows that begin on 16 bytes, rows that do not, and one row for all."""
    wide = torch.randn(6, 272).to(device)
    scale = torch.randn(6).to(device)
    for x in (wide[:, :256], wide[:, 4:260], wide[:, 3:103], wide[:1, :256].expand(6, 256)):
        check(x, scale, wide[:, : x.shape[1]], x)


@pytest.mark.simulated
def test_what_is_not_wanted_is_not_computed(device):
    x, dy = torch.randn(2, 7, 64).to(device)
    scale = torch.randn(7).to(device)
    both = scale_rows_native.run(ScaleRowsBackward(dy, x, scale, True))
    only_dx = scale_rows_native.run(ScaleRowsBackward(dy, None, scale, True))
    only_dscale = scale_rows_native.run(ScaleRowsBackward(dy, x, scale, False))
    assert only_dx.dscale is None and torch.equal(only_dx.dx, both.dx)
    assert only_dscale.dx is None and torch.equal(only_dscale.dscale, both.dscale)


@pytest.mark.simulated
def test_it_is_the_default(device):
    x, dy = torch.randn(2, 7, 64).to(device)
    scale = torch.randn(7).to(device).requires_grad_()
    GlobalBackendManager.set_norm_act_backend("TURBO")
    y = scale_rows(x, scale)
    y.backward(dy)
    expected = scale_rows_native.run(ScaleRowsBackward(dy, x, scale.detach(), False))
    assert torch.equal(scale.grad, expected.dscale)


def test_on_another_device_it_says_why_not():
    if torch.cuda.is_available():
        pytest.skip("looks at the answer for a CPU")
    GlobalBackendManager.set_norm_act_backend("TURBO")
    with pytest.raises(BackendUnavailableError, match="the HIP kernels are for gfx942 and gfx950; cpu is cpu"):
        scale_rows(torch.ones(2, 3), torch.ones(2))


# --- what is launched -----------------------------------------------------------------------------------------------

CODES = {"fp32": _C.FLOAT32, "fp16": _C.FLOAT16, "bf16": _C.BFLOAT16}
X, SCALE, RESIDUAL, Y, DY, DX, DSCALE = (0x10000 * i for i in range(1, 8))
STREAM = 0x5EA


@pytest.fixture
def hip(fake_hip):
    native.reset()
    _C.reset()
    yield fake_hip
    native.reset()
    _C.reset()


def forward(rows, dim, dtype="bf16", scale_dtype="fp32", device=0, **changed):
    arguments = {"x": X, "x_stride": dim, "scale": SCALE, "residual": RESIDUAL, "residual_stride": dim, "y": Y}
    dtypes = {"dtype": CODES.get(dtype, dtype), "scale_dtype": CODES.get(scale_dtype, scale_dtype)}
    return _C.scale_rows_forward(device, STREAM, **{**arguments, "rows": rows, "dim": dim, **dtypes, **changed})


def backward(rows, dim, dtype="bf16", scale_dtype="fp32", device=0, **changed):
    arguments = {"dy": DY, "dy_stride": dim, "x": X, "x_stride": dim, "scale": SCALE, "dx": DX, "dscale": DSCALE}
    dtypes = {"dtype": CODES.get(dtype, dtype), "scale_dtype": CODES.get(scale_dtype, scale_dtype)}
    return _C.scale_rows_backward(device, STREAM, **{**arguments, "rows": rows, "dim": dim, **dtypes, **changed})


@pytest.mark.parametrize("device, dtype", list(itertools.product([0, 1], CODES)))
def test_kernels_and_grids(hip, device, dtype):
    assert forward(9, 64, dtype, device=device) == _C.OK, _C.last_error()
    assert backward(9, 64, dtype, device=device) == _C.OK, _C.last_error()
    assert forward(9, 63, dtype, device=device) == _C.OK, _C.last_error()
    assert [(launch.kernel, launch.grid, launch.block, launch.device) for launch in hip.launches] == [
        (f"scale_rows_{name}", (3, 1, 1), (256, 1, 1), device)
        for name in (f"forward_{dtype}_vector", f"backward_{dtype}_vector", f"forward_{dtype}_scalar")
    ]


@pytest.mark.parametrize(
    "changed", [{"x": X + 2}, {"y": Y + 8}, {"residual": RESIDUAL + 4}, {"x_stride": 65}, {"residual_stride": 100}]
)
def test_rows_that_do_not_begin_on_16_bytes(hip, changed):
    assert forward(9, 64, **changed) == _C.OK, _C.last_error()
    assert hip.launches[0].kernel == "scale_rows_forward_bf16_scalar"


def test_argument_bytes(hip):
    assert forward(5, 64, "fp16", "bf16", x_stride=128, residual=0, residual_stride=0) == _C.OK, _C.last_error()
    assert backward(5, 64, "fp32", "fp16", dy_stride=0, dx=0) == _C.OK, _C.last_error()
    first, second = (launch.arguments for launch in hip.launches)
    assert first == struct.pack("<4Q4qiI", X, SCALE, 0, Y, 5, 64, 128, 0, CODES["bf16"], 2)
    assert second == struct.pack("<5Q4qiI", DY, X, SCALE, 0, DSCALE, 5, 64, 0, 64, CODES["fp16"], 2)


def test_more_rows_than_a_grid_may_have(hip):
    assert forward(3 * 2**32, 8) == _C.OK, _C.last_error()
    (launch,) = hip.launches
    assert launch.grid[0] * launch.block[0] < 2**32
    assert struct.unpack_from("<q", launch.arguments, 32) == (3 * 2**32,)


@pytest.mark.parametrize(
    "run, message",
    [
        (lambda: forward(-1, 8), "scale_rows_forward: rows is -1"),
        (lambda: forward(1, 0), "scale_rows_forward: dim is 0; at least 1"),
        (lambda: forward(1, 8, 5), "dtype is 5, no turbo_dtype"),
        (lambda: forward(1, 8, scale_dtype=-1), "scale_dtype is -1"),
        (lambda: forward(1, 8, x=0), "x is NULL"),
        (lambda: forward(1, 8, y=0), "y is NULL"),
        (lambda: backward(1, 8, dy=0), "dy is NULL"),
        (lambda: backward(1, 8, scale=0), "scale is NULL"),
        (lambda: backward(1, 8, x=0), "x is NULL"),
    ],
)
def test_refusals_launch_nothing(hip, run, message):
    assert run() == _C.ERROR_ARGUMENT
    assert message in _C.last_error()
    assert hip.launches == []


def test_nothing_to_do_launches_nothing(hip):
    assert forward(0, 8) == backward(0, 8) == backward(4, 8, dx=0, dscale=0) == _C.OK
    assert hip.launches == []
