# SPDX-License-Identifier: MIT
"""What the native library launches: kernel, grid, work-group, argument bytes, as a HIP library recorded them."""

from __future__ import annotations

import itertools
import struct

import pytest

from turbo_testing.fake_hip import fake_hip, fake_hip_library  # noqa: F401

torch = pytest.importorskip("torch", reason="torch is not installed")
_C = pytest.importorskip("turbo_norm_act.pytorch._C", reason="turbo-norm-act is not built (pip install -e)")

from turbo_core import BackendUnavailableError, UnsupportedError, simulated_arch  # noqa: E402
from turbo_norm_act.pytorch.kernels import native  # noqa: E402

CODES = {"fp32": _C.FLOAT32, "fp16": _C.FLOAT16, "bf16": _C.BFLOAT16}
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
X, RESIDUAL, GAMMA, Y, S, RSTD, DX, DGAMMA, PARTIAL, DS, DY = (0x10000 * i for i in range(1, 12))
STREAM = 0x5EA


@pytest.fixture(autouse=True)
def forget_hip(fake_hip):  # noqa: F811
    native.reset()
    _C.reset()
    yield
    native.reset()
    _C.reset()


def forward(
    rows, dim, dtype="bf16", *, x=X, residual=0, s=0, gamma=GAMMA, gamma_dtype="fp32", stride=None, device=0, **more
):
    stride = dim if stride is None else stride
    return _C.rmsnorm_forward(
        x,
        stride,
        residual,
        more.get("residual_stride", dim if residual else 0),
        gamma,
        Y,
        s,
        RSTD,
        rows,
        dim,
        CODES[dtype],
        CODES[gamma_dtype],
        more.get("eps", 1e-6),
        more.get("zero_centered", False),
        device,
        STREAM,
    )


def backward(rows, dim, dtype="bf16", *, dy=DY, ds=0, gamma=GAMMA, dgamma=DGAMMA, stride=None, partials=None, **more):
    stride = dim if stride is None else stride
    if partials is None:
        partials = _C.rmsnorm_backward_partials(rows, dim, CODES[dtype]) if dgamma else 0
    return _C.rmsnorm_backward(
        dy,
        stride,
        ds,
        dim if ds else 0,
        X,
        dim,
        gamma,
        RSTD,
        DX,
        dgamma,
        PARTIAL if dgamma else 0,
        partials,
        rows,
        dim,
        CODES[dtype],
        CODES["fp32"],
        more.get("zero_centered", False),
        more.get("device", 0),
        STREAM,
    )


# --- the choice of kernel ---------------------------------------------------------------------------------------------

# bytes of a row (up to and including), threads of a row, chunks
TABLE = [
    (1024, 64, 1),
    (2048, 64, 2),
    (4096, 64, 4),
    (8192, 256, 2),
    (16384, 256, 4),
    (32768, 1024, 2),
    (65536, 1024, 4),
    (131072, 1024, 8),
]
LIMITS = [limit for limit, _, _ in TABLE]


def expected_kernel(direction, dtype, row_bytes, rows):
    """(name, blocks, threads) of a vector launch."""
    table = TABLE if direction == "forward" else TABLE[:-1]
    for limit, threads, chunks in table:
        if row_bytes <= limit:
            per_block = 4 if threads == 64 else 1
            return f"rmsnorm_{direction}_{dtype}_{threads}x{chunks}", -(-rows // per_block), max(threads, 256)
    return f"rmsnorm_{direction}_{dtype}_loop_vector", rows, 256


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("row_bytes", sorted({16, *LIMITS, *(limit + 16 for limit in LIMITS)}))
def test_forward_takes_the_first_kernel_that_holds_the_row(fake_hip, dtype, row_bytes):  # noqa: F811
    assert forward(7, row_bytes // BYTES[dtype], dtype) == _C.OK, _C.last_error()
    (launch,) = fake_hip.launches
    name, blocks, threads = expected_kernel("forward", dtype, row_bytes, 7)
    assert (launch.kernel, launch.grid, launch.block) == (name, (blocks, 1, 1), (threads, 1, 1))
    assert (launch.lds, launch.stream, launch.device) == (0, STREAM, 0)


@pytest.mark.parametrize(
    "case",
    [
        dict(dim=4097),
        dict(dim=4096, stride=4097),
        dict(dim=4096, x=X + 2),
        dict(dim=4096, gamma=GAMMA + 4),
        dict(dim=4096, residual=RESIDUAL + 8, s=S),
        dict(dim=4096, residual=RESIDUAL, s=S + 8),
        dict(dim=4096, residual=RESIDUAL, s=S, residual_stride=4100),
    ],
    ids=str,
)
def test_forward_reads_single_elements_where_rows_are_not_aligned(fake_hip, case):  # noqa: F811
    assert forward(3, **case) == _C.OK, _C.last_error()
    assert fake_hip.launches[0].kernel == "rmsnorm_forward_bf16_loop_scalar"


def test_an_aligned_row_stride_keeps_the_vector_kernel(fake_hip):  # noqa: F811
    assert forward(3, 4096, stride=4096 + 8) == _C.OK
    assert forward(3, 4096, stride=0) == _C.OK
    assert {launch.kernel for launch in fake_hip.launches} == {"rmsnorm_forward_bf16_256x2"}


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_more_rows_than_a_grid_may_have(fake_hip, direction):  # noqa: F811
    rows = 3 * 2**32 + 5
    assert (forward if direction == "forward" else backward)(rows, 8) == _C.OK, _C.last_error()
    first = fake_hip.launches[0]
    assert first.grid[0] * first.block[0] < 2**32
    assert struct.unpack_from("<q", first.arguments, {"forward": 48, "backward": 56}[direction]) == (rows,)


# --- argument bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero_centered, with_gamma", list(itertools.product([False, True], [False, True])))
@pytest.mark.parametrize("with_residual", [False, True])
def test_forward_arguments(fake_hip, zero_centered, with_gamma, with_residual):  # noqa: F811
    residual, s = (RESIDUAL, S) if with_residual else (0, 0)
    gamma = GAMMA if with_gamma else 0
    status = forward(
        5,
        64,
        "fp16",
        stride=128,
        gamma=gamma,
        gamma_dtype="bf16",
        residual=residual,
        s=s,
        eps=0.5,
        zero_centered=zero_centered,
    )
    assert status == _C.OK, _C.last_error()
    offset = 1.0 if zero_centered and with_gamma else 0.0
    assert fake_hip.launches[0].arguments == struct.pack(
        "<6Q3q2i2f2I",
        *(X, residual, gamma, Y, s, RSTD),
        *(5, 128, 64 if with_residual else 0),
        *(64, CODES["bf16"]),
        *(0.5, offset),
        *(2, 0),  # five rows, four a work-group
    )


@pytest.mark.parametrize("with_ds, with_dgamma", list(itertools.product([False, True], [False, True])))
def test_backward_arguments(fake_hip, with_ds, with_dgamma):  # noqa: F811
    ds, dgamma = (DS if with_ds else 0), (DGAMMA if with_dgamma else 0)
    assert backward(3000, 4096, stride=0, ds=ds, dgamma=dgamma, zero_centered=True) == _C.OK, _C.last_error()
    first, *rest = fake_hip.launches
    assert first.kernel == "rmsnorm_backward_bf16_256x2"
    assert first.grid == (1024, 1, 1)
    assert first.arguments == struct.pack(
        "<7Q4q2ifI",
        *(DY, ds, X, GAMMA, RSTD, DX, PARTIAL if with_dgamma else 0),
        *(3000, 0, 4096 if with_ds else 0, 4096),
        *(4096, CODES["fp32"]),
        *(1.0, 1024),
    )
    if not with_dgamma:
        assert rest == []
        return
    (second,) = rest
    assert (second.kernel, second.grid, second.block) == ("rmsnorm_gamma_sum", (64, 1, 1), (256, 1, 1))
    assert second.arguments == struct.pack("<2Q4i", PARTIAL, DGAMMA, 1024, 4096, CODES["fp32"], 0)


@pytest.mark.parametrize(
    "rows, dim, dtype, partials",
    [
        (1, 8, "bf16", 1),
        (5, 2048, "bf16", 2),
        (10**6, 2048, "bf16", 1024),
        (5, 2049, "bf16", 5),
        (10**6, 8192, "bf16", 1024),
        (10**6, 8200, "bf16", 512),
        (10**6, 8192, "fp32", 512),
        (10**6, 65536, "bf16", 64),
        (0, 64, "bf16", 0),
    ],
)
def test_partials(rows, dim, dtype, partials):
    assert _C.rmsnorm_backward_partials(rows, dim, CODES[dtype]) == partials


@pytest.mark.parametrize(
    "dim, dtype, flavour", [(65536, "bf16", "vector"), (32768, "fp32", "vector"), (513, "fp16", "scalar")]
)
def test_backward_of_rows_that_leave_the_registers(fake_hip, dim, dtype, flavour):  # noqa: F811
    assert backward(100, dim, dtype) == _C.OK, _C.last_error()
    loop, columns, total = fake_hip.launches
    lines = _C.rmsnorm_backward_partials(100, dim, CODES[dtype])
    assert (loop.kernel, loop.grid) == (f"rmsnorm_backward_{dtype}_loop_{flavour}", (100, 1, 1))
    assert (columns.kernel, columns.grid) == (f"rmsnorm_gamma_partial_{dtype}", (-(-dim // 64), lines, 1))
    assert struct.unpack_from("<I", columns.arguments, 100) == (lines,)
    assert (total.kernel, total.grid) == ("rmsnorm_gamma_sum", (-(-dim // 64), 1, 1))


# --- nothing to do, or not accepted -----------------------------------------------------------------------------------


def test_without_rows_only_dgamma_is_written(fake_hip):  # noqa: F811
    assert forward(0, 64) == _C.OK
    assert fake_hip.launches == []
    assert backward(0, 64) == _C.OK
    (launch,) = fake_hip.launches
    assert launch.kernel == "rmsnorm_gamma_sum"
    assert struct.unpack_from("<i", launch.arguments, 16) == (0,)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: forward(-1, 64), "rows is -1"),
        (lambda: forward(1, 0), "dim is 0; accepted are 1 to 2**29"),
        (lambda: forward(1, 2**29 + 1), "dim is 536870913"),
        (lambda: forward(1, 64, x=0), "x is NULL"),
        (lambda: forward(1, 64, residual=RESIDUAL), "s is NULL"),
        (lambda: backward(1, 64, dy=0), "dy is NULL"),
        (lambda: backward(1, 64, gamma=0), "gamma is NULL"),
        (lambda: backward(100, 64, partials=3), "partials is 3; turbo_rmsnorm_backward_partials says 25"),
        (lambda: _C.rmsnorm_forward(X, 8, 0, 0, 0, Y, 0, RSTD, 1, 8, 7, 0, 0.0, False, 0, 0), "dtype is 7"),
        (lambda: _C.rmsnorm_forward(X, 8, 0, 0, GAMMA, Y, 0, RSTD, 1, 8, 0, -1, 0.0, False, 0, 0), "gamma_dtype is -1"),
        (lambda: forward(1, 64, device=-1), "device -1"),
        (lambda: forward(1, 64, device=256), "device 256"),
    ],
)
def test_bad_arguments(fake_hip, call, text):  # noqa: F811
    assert call() == _C.ERROR_ARGUMENT
    assert text in _C.last_error()
    assert fake_hip.launches == []


# --- tensors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_tensors_become_addresses(fake_hip, arch):  # noqa: F811
    fake_hip.set_arch(0, arch)
    x = torch.zeros(6, 4096, dtype=torch.bfloat16)[::2]
    residual = torch.zeros(3, 4096, dtype=torch.bfloat16)
    gamma = torch.zeros(4096)
    with simulated_arch(arch):
        assert native.why_not(x.device) is None
        y, s, rstd = native.rmsnorm_forward(x, residual, gamma, 1e-5, True)
    (launch,) = fake_hip.launches
    assert launch.arguments == struct.pack(
        "<6Q3q2i2f2I",
        *(t.data_ptr() for t in (x, residual, gamma, y, s, rstd)),
        *(3, 8192, 4096),
        *(4096, _C.FLOAT32),
        *(1e-5, 1.0),
        *(3, 0),
    )
    assert (y.shape, y.dtype, s.dtype, rstd.dtype, rstd.shape) == (x.shape, x.dtype, x.dtype, torch.float32, (3,))


def test_one_row_needs_no_aligned_stride(fake_hip):  # noqa: F811
    x = torch.zeros(1, 4097, dtype=torch.bfloat16)[:, :4096]
    with simulated_arch("gfx942"):
        _, s, _ = native.rmsnorm_forward(x, None, None, 1e-5, False)
    assert s is x
    assert fake_hip.launches[0].kernel == "rmsnorm_forward_bf16_256x2"


def test_backward_of_tensors(fake_hip):  # noqa: F811
    s = torch.zeros(3, 64)
    gamma = torch.zeros(64, dtype=torch.float16)
    dy = torch.zeros(()).expand(3, 64)  # what out.sum().backward() hands over
    with simulated_arch("gfx942"):
        dx, dgamma = native.rmsnorm_backward(dy, None, s, gamma, torch.zeros(3), False)
        assert (dx.shape, dgamma.shape, dgamma.dtype) == (s.shape, gamma.shape, gamma.dtype)
        assert [launch.kernel for launch in fake_hip.launches] == ["rmsnorm_backward_fp32_64x1", "rmsnorm_gamma_sum"]
        _, dgamma = native.rmsnorm_backward(dy, s, s, gamma, torch.zeros(3), False, want_dgamma=False)
        assert dgamma is None
        _, dgamma = native.rmsnorm_backward(dy, s, s, None, torch.zeros(3), False)
        assert dgamma is None
        assert len(fake_hip.launches) == 4


def test_empty_tensors_launch_nothing(fake_hip):  # noqa: F811
    with simulated_arch("gfx942"):
        for shape in ((0, 64), (3, 0)):
            x = torch.zeros(shape)
            gamma = torch.zeros(shape[1])
            y, s, rstd = native.rmsnorm_forward(x, None, gamma, 1e-5, False)
            dx, dgamma = native.rmsnorm_backward(y, None, s, gamma, rstd, False)
            assert (y.shape, dx.shape, rstd.shape) == (shape, shape, shape[:1])
            assert torch.equal(dgamma, gamma)
    assert fake_hip.launches == []


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(residual=torch.zeros(2, 64)), r"residual is \(2, 64\)"),
        (dict(residual=torch.zeros(3, 64, dtype=torch.float64)), "torch.float64 on cpu; .*float32 on cpu is needed"),
        (dict(gamma=torch.zeros(65)), r"gamma is \(65,\)"),
        (dict(x=torch.zeros(3, 64, dtype=torch.int32)), "x.dtype=torch.int32: accepted are"),
    ],
    ids=["shape", "dtype", "gamma", "integers"],
)
def test_tensors_that_do_not_fit(fake_hip, change, text):  # noqa: F811
    arguments = dict(x=torch.zeros(3, 64), residual=None, gamma=torch.zeros(64)) | change
    with simulated_arch("gfx942"), pytest.raises(UnsupportedError, match=text):
        native.rmsnorm_forward(**arguments, eps=1e-5, zero_centered=False)
    assert fake_hip.launches == []


def test_a_failed_launch_is_an_error(fake_hip):  # noqa: F811
    fake_hip.fail("hipModuleLaunchKernel", 719)
    with simulated_arch("gfx942"), pytest.raises(RuntimeError) as caught:
        native.rmsnorm_forward(torch.zeros(9, 64), None, None, 1e-5, False)
    text = str(caught.value)
    assert "hipModuleLaunchKernel of rmsnorm_forward_fp32_64x1 on device 0 (gfx942), 3 x 1 work-groups of 256" in text
    assert "unspecified launch failure (hipError_t 719)" in text
    assert fake_hip.last_error == 0, "HIP's own last error would surface at somebody else's next check"


# --- may it run -------------------------------------------------------------------------------------------------------


def test_why_not(fake_hip, monkeypatch):  # noqa: F811
    cpu = torch.device("cpu")
    assert native.why_not(cpu) == "the HIP kernels are for gfx942 and gfx950; cpu is cpu"
    with simulated_arch("gfx942"):
        assert native.why_not(cpu) is None
    with simulated_arch("gfx950"):
        assert native.why_not(cpu) == "the HIP library reports gfx942 for device 0, torch gfx950"
        fake_hip.set_arch(0, "gfx950")
        native.reset()
        assert native.why_not(cpu) is None
        monkeypatch.delenv("TURBO_HIP_LIBRARY")
        assert "no simulator is active (TURBO_HIP_LIBRARY is not set)" in native.why_not(cpu)
        monkeypatch.setenv("TURBO_HIP_LIBRARY", "/nowhere/libamdhip64.so")
        assert "/nowhere/libamdhip64.so" in native.why_not(cpu)
        with pytest.raises(BackendUnavailableError, match="nowhere"):
            native.rmsnorm_forward(torch.zeros(9, 64), None, None, 1e-5, False)


def test_a_simulator_may_change_its_architecture(fake_hip):  # noqa: F811
    for arch in ("gfx942", "gfx950", "gfx942"):
        fake_hip.set_arch(0, arch)
        with simulated_arch(arch):
            assert native.why_not(torch.device("cpu")) is None
            native.rmsnorm_forward(torch.zeros(9, 64), None, None, 1e-5, False)
    assert len(fake_hip.loaded) == 3


def test_the_widest_row_stays_within_a_grid(fake_hip):  # noqa: F811
    assert forward(1, 2**29, "fp32") == _C.OK, _C.last_error()
    assert backward(1, 2**29, "fp32") == _C.OK, _C.last_error()
    for launch in fake_hip.launches:
        assert launch.grid[0] * launch.block[0] < 2**32 and launch.grid[1] < 2**16
