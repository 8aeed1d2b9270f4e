# SPDX-License-Identifier: MIT
"""`scale_rows` on every backend against float64: values, gradients, refusals, the choice of backend."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from turbo_core import (  # noqa: E402
    BackendUnavailableError,
    GlobalBackendManager,
    UnsupportedError,
    simulated_arch,
    trace_dispatch,
    why_no_triton,
)
from turbo_core.explain import explain_calls  # noqa: E402
from turbo_template import scale_rows  # noqa: E402
from turbo_template.pytorch.kernels.scale_rows_impl import ScaleRowsDispatcher  # noqa: E402
from turbo_template.pytorch.ops.scale_rows import SCALE_ROWS  # noqa: E402
from turbo_testing.cases import load_file  # noqa: E402
from turbo_testing.metrics import assert_close  # noqa: E402

cases = load_file(Path(__file__).with_name("cases.py"), "cases_of_turbo_template")
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(params=["torch", "triton"])
def backend(request, device):
    name = request.param.upper()
    if name == "TRITON" and (reason := why_no_triton(device)):
        pytest.skip(f"backend TRITON: {reason}")
    GlobalBackendManager.set_norm_act_backend(name)
    return name


def tensor(*shape, dtype, device):
    return torch.randn(shape).to(device, dtype).requires_grad_()


def check(x, scale, residual, dy):
    """Outputs and all gradients against the formula in float64."""
    leaves = [leaf for leaf in (x, scale, residual) if leaf is not None]
    y = scale_rows(x, scale, residual)
    assert (y.dtype, y.shape, y.is_contiguous()) == (x.dtype, x.shape, True)
    found = torch.autograd.grad(y, leaves, dy)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = cases.scale_rows(*wide)
    assert_close(y, expected, dtype=x.dtype, what="y")
    for name, leaf, actual, wanted in zip(
        ("dx", "dscale", "dresidual"), leaves, found, torch.autograd.grad(expected, wide, dy.double())
    ):
        assert actual.dtype == leaf.dtype
        size = wanted.abs().amax().clamp(min=1.0) if wanted.numel() else 1.0  # dscale: one rounding of a long sum
        assert_close(actual.double() / size, wanted / size, dtype=leaf.dtype, what=name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [pytest.param(cases.ODD_SHAPES[0], marks=pytest.mark.simulated), *cases.ODD_SHAPES[1:]]
)
def test_odd_shapes(backend, device, shape, dtype):
    scale_dtype = DTYPES[sum(shape) % 3]
    x, residual = (tensor(*shape, dtype=dtype, device=device) for _ in range(2))
    scale, dy = tensor(shape[0], dtype=scale_dtype, device=device), torch.randn(shape).to(device, dtype)
    check(x, scale, residual, dy)
    check(x, scale, None, dy)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_shapes_of_models(backend, device, shape):
    x, residual = (tensor(*shape, dtype=torch.bfloat16, device=device) for _ in range(2))
    scale = tensor(shape[0], dtype=torch.float32, device=device)
    check(x, scale, residual, torch.randn(shape, device=device, dtype=torch.bfloat16))


def test_strides(backend, device):
    wide = tensor(6, 9, 40, dtype=torch.float32, device=device)
    scale = tensor(9, 6, dtype=torch.float32, device=device).t()
    for x in (wide[:, :, 3:20], wide[:, :, ::2], wide.transpose(1, 2)[:, :9], wide[:, :, :1]):
        check(x, scale, None, torch.randn(x.shape, device=device))
        check(x, scale, x.detach().clone().requires_grad_(), torch.ones(1, device=device).expand(x.shape))
    one = tensor(8, dtype=torch.float32, device=device)
    other = tensor(8, dtype=torch.float32, device=device)
    check(one, tensor(dtype=torch.float32, device=device), other, torch.randn(8, device=device))


def test_second_derivatives(backend, device):
    """Of both gradients in everything that they depend on."""
    leaves = [tensor(*shape, dtype=torch.float32, device=device) for shape in ((5, 9), (5,), (5, 9))]
    seeds = [torch.randn(shape, device=device) for shape in ((5, 9), (5,))]

    def second(function, x, scale, dy, seeds):
        gradients = torch.autograd.grad(function(x, scale), [x, scale], dy, create_graph=True)
        return torch.autograd.grad(gradients, [x, scale, dy], seeds)

    found = second(scale_rows, *leaves, seeds)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = second(cases.scale_rows, *wide, [seed.double() for seed in seeds])
    for name, actual, wanted in zip(("x", "scale", "dy"), found, expected):
        assert_close(actual, wanted, dtype=torch.float32, what=f"in {name}")


@pytest.mark.deterministic
def test_repeats_are_bit_equal(backend, device):
    x, dy = torch.randn(2, 33, 515, device=device).bfloat16()
    x.requires_grad_()
    scale = tensor(33, dtype=torch.float32, device=device)
    first, second = ((y, *torch.autograd.grad(y, [x, scale], dy)) for y in (scale_rows(x, scale) for _ in range(2)))
    for one, other in zip(first, second):
        assert torch.equal(one, other)


@pytest.mark.gpu
def test_more_than_2_31_elements(backend, device):
    """Values behind the 2**31st element: a 32-bit offset would read and write elsewhere."""
    if torch.cuda.get_device_properties(device).total_memory < 60e9:
        pytest.skip("needs 60 GB of device memory")
    rows, D = 2**31 // 4096 + 1000, 4096
    x = torch.empty(rows, D, device=device, dtype=torch.bfloat16).normal_().requires_grad_()
    scale = torch.rand(rows, device=device).requires_grad_()
    y = scale_rows(x, scale)
    dx, dscale = torch.autograd.grad(y, [x, scale], x.detach())
    last = slice(rows - 500, rows)
    wide, factor = x.detach()[last].double(), scale.detach()[last].double()
    assert_close(y[last], wide * factor[:, None], dtype=x.dtype)
    assert_close(dx[last], wide * factor[:, None], dtype=x.dtype)
    assert_close(dscale[last], wide.square().sum(-1), rtol=1e-4, atol=1e-4)


# --- refusals -------------------------------------------------------------------------------------------------------

X, S = torch.ones(2, 3, 4), torch.ones(2, 3)
WRONG = [
    (lambda: scale_rows(None, S), "x is None"),
    (lambda: scale_rows(X[0, 0, 0], S), r"x is a tensor of shape \[\]"),
    (lambda: scale_rows(X.int(), S), "x is .*torch.int32"),
    (lambda: scale_rows(X, S.t()), r"scale is a tensor of shape \[3, 2\].*of shape \[2, 3\]"),
    (lambda: scale_rows(X, S.double()), "scale is .*torch.float64"),
    (lambda: scale_rows(X, 2.0), "scale is 2.0"),
    (lambda: scale_rows(X, S, X[:1]), r"residual is a tensor of shape \[1, 3, 4\]"),
    (lambda: scale_rows(X, S, X.half()), "residual is .*torch.float16"),
    (lambda: scale_rows(X, S, X.to("meta")), "residual is .*meta"),
]


@pytest.mark.parametrize("call, message", WRONG, ids=[message for _, message in WRONG])
def test_errors_name_the_argument(call, message):
    with pytest.raises(UnsupportedError, match=f"scale_rows: {message}"):
        call()


# --- torch.library and torch.compile --------------------------------------------------------------------------------


def test_opcheck(device):
    x, residual = (tensor(5, 16, dtype=torch.float32, device=device) for _ in range(2))
    scale = tensor(5, dtype=torch.float32, device=device)
    torch.library.opcheck(torch.ops.turbo_template.scale_rows, (x, scale, residual))
    torch.library.opcheck(torch.ops.turbo_template.scale_rows_backward, (residual, x, scale, True))
    torch.library.opcheck(torch.ops.turbo_template.scale_rows_backward, (residual, None, scale, True))


def test_compiled_as_eager(device):
    """Whole graph; values, strides and gradients as in eager mode."""
    compiled = torch.compile(scale_rows, fullgraph=True, backend="inductor" if device.type == "cuda" else "aot_eager")
    x = tensor(4, 3, 16, dtype=torch.float32, device=device)
    scale = tensor(4, 3, dtype=torch.float32, device=device)
    dy = torch.randn_like(x)
    for arguments in ((x, scale), (x.transpose(0, 1), scale.t(), x.transpose(0, 1))):
        expected, found = scale_rows(*arguments), compiled(*arguments)
        assert found.stride() == expected.stride()
        assert_close(found, expected)
        dy = dy.reshape(expected.shape)
        for a, b in zip(*(torch.autograd.grad(y, [x, scale], dy) for y in (expected, found))):
            assert_close(b, a)


# --- the choice of backend ------------------------------------------------------------------------------------------

ON_INSTINCT = "TRITON"
ON_INSTINCT = "TURBO"  # native only


def test_default_backends():
    call = SCALE_ROWS.calls(X, S)["forward"]
    assert ScaleRowsDispatcher.default_backend(call).name == "TORCH"
    for arch in ("gfx942", "gfx950"):
        with simulated_arch(arch):
            assert ScaleRowsDispatcher.default_backend(call).name == ON_INSTINCT


def test_explain_describes_the_calls_that_run(device):
    x, scale = X.to(device).requires_grad_(), S.to(device).requires_grad_()
    with trace_dispatch() as trace:
        y = scale_rows(x, scale)
        y.backward(torch.ones_like(y))
    explained = explain_calls(SCALE_ROWS, SCALE_ROWS.calls(x, scale))
    assert [(r.backend, r.call) for r in trace.records] == [(e.backend, e.call) for e in explained.entries]
    assert [record.call for record in trace.records] == [
        f"{role}, rows=6 D=4, float32, float32, {device}" for role in ("forward", "backward")
    ]
    for call in SCALE_ROWS.example(device).values():
        assert ScaleRowsDispatcher.answers(call)[ScaleRowsDispatcher.resolve(call).backend] is None


def test_calls_that_differ_have_different_tuning_keys():
    calls = [SCALE_ROWS.calls(*arguments) for arguments in ((X, S), (X, S, X), (X.half(), S), (X[1:], S[1:]))]
    keys = {ScaleRowsDispatcher.make_key(call) for roles in calls for call in roles.values()}
    assert len(keys) == 7, "a residual changes the forward alone"


def test_a_named_backend_that_cannot_is_an_error():
    GlobalBackendManager.set_norm_act_backend("CK")
    with pytest.raises(BackendUnavailableError, match="CK .*does not exist for this op"):
        scale_rows(X, S)
    assert scale_rows(X[:0], S[:0]).shape == (0, 3, 4), "where there is nothing to do no backend is asked"
