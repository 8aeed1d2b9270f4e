# SPDX-License-Identifier: MIT
"""What the native library launches: kernel, grid, work-group, argument bytes, as a HIP library recorded them."""

from __future__ import annotations

import itertools
import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
_C = pytest.importorskip("turbo_norm_act.pytorch._C", reason="turbo-norm-act is not built (pip install -e)")

from turbo_norm_act.pytorch.kernels import native  # noqa: E402

CODES = {"fp32": _C.FLOAT32, "fp16": _C.FLOAT16, "bf16": _C.BFLOAT16}
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
X, RESIDUAL, GAMMA, BETA, Y, S, MEAN, RSTD, DX, DGAMMA, DBETA, PARTIAL, DS, DY = (0x10000 * i for i in range(1, 15))
STREAM = 0x5EA


@pytest.fixture(autouse=True)
def forget_hip(fake_hip):
    native.reset()
    _C.reset()
    yield
    native.reset()
    _C.reset()


both_norms = pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])


def forward(rows, dim, dtype="bf16", *, norm="rmsnorm", x=X, residual=0, s=0, gamma=GAMMA, gamma_dtype="fp32", **more):
    return getattr(_C, f"{norm}_forward")(
        more.get("device", 0),
        STREAM,
        x=x,
        x_stride=more.get("stride", dim),
        residual=residual,
        residual_stride=more.get("residual_stride", dim if residual else 0),
        gamma=gamma,
        beta=more.get("beta", 0),
        y=Y,
        s=s,
        mean=more.get("mean", MEAN if norm == "layernorm" else 0),
        rstd=RSTD,
        rows=rows,
        dim=dim,
        dtype=CODES.get(dtype, dtype),
        gamma_dtype=CODES.get(gamma_dtype, gamma_dtype),
        beta_dtype=CODES.get(more.get("beta_dtype", "fp32"), -1),
        eps=more.get("eps", 1e-6),
        zero_centered=more.get("zero_centered", False),
    )


def backward(rows, dim, dtype="bf16", *, norm="rmsnorm", dy=DY, ds=0, gamma=GAMMA, dgamma=DGAMMA, **more):
    dbeta = more.get("dbeta", 0)
    partials = _C.norm_backward_partials(rows, dim, CODES[dtype]) if dgamma or dbeta else 0
    return getattr(_C, f"{norm}_backward")(
        more.get("device", 0),
        STREAM,
        dy=dy,
        dy_stride=more.get("stride", dim),
        ds=ds,
        ds_stride=dim if ds else 0,
        s=X,
        s_stride=dim,
        gamma=gamma,
        mean=more.get("mean", MEAN if norm == "layernorm" else 0),
        rstd=RSTD,
        dx=DX,
        dgamma=dgamma,
        dbeta=dbeta,
        partial=more.get("partial", PARTIAL if dgamma or dbeta else 0),
        partials=more.get("partials", partials),
        rows=rows,
        dim=dim,
        dtype=CODES[dtype],
        gamma_dtype=CODES["fp32"],
        beta_dtype=CODES.get(more.get("beta_dtype", "fp16"), -1),
        zero_centered=more.get("zero_centered", False),
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


def table_of(norm, direction, dtype):
    if direction == "forward":
        return TABLE
    return TABLE[:-1] if norm == "rmsnorm" or dtype == "fp32" else TABLE[:-2]


def expected_kernel(norm, direction, dtype, row_bytes, rows):
    """(name, blocks, threads) of a vector launch."""
    for limit, threads, chunks in table_of(norm, direction, dtype):
        if row_bytes <= limit:
            per_block = 4 if threads == 64 else 1
            return f"{norm}_{direction}_{dtype}_{threads}x{chunks}", -(-rows // per_block), max(threads, 256)
    return f"{norm}_{direction}_{dtype}_loop_vector", rows, 256


@both_norms
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("row_bytes", sorted({16, *LIMITS, *(limit + 16 for limit in LIMITS)}))
def test_the_first_kernel_that_holds_the_row(fake_hip, dtype, row_bytes, direction, norm):
    run = forward if direction == "forward" else backward
    assert run(7, row_bytes // BYTES[dtype], dtype, norm=norm) == _C.OK, _C.last_error()
    launch = fake_hip.launches[0]
    name, blocks, threads = expected_kernel(norm, direction, dtype, row_bytes, 7)
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
        dict(dim=4096, norm="layernorm", beta=BETA + 8),
    ],
    ids=str,
)
def test_forward_reads_single_elements_where_rows_are_not_aligned(fake_hip, case):
    assert forward(3, **case) == _C.OK, _C.last_error()
    assert fake_hip.launches[0].kernel == f"{case.get('norm', 'rmsnorm')}_forward_bf16_loop_scalar"


def test_an_aligned_row_stride_keeps_the_vector_kernel(fake_hip):
    assert forward(3, 4096, stride=4096 + 8) == _C.OK
    assert forward(3, 4096, stride=0) == _C.OK
    assert {launch.kernel for launch in fake_hip.launches} == {"rmsnorm_forward_bf16_256x2"}


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_more_rows_than_a_grid_may_have(fake_hip, direction):
    rows = 3 * 2**32 + 5
    assert (forward if direction == "forward" else backward)(rows, 8) == _C.OK, _C.last_error()
    first = fake_hip.launches[0]
    assert first.grid[0] * first.block[0] < 2**32
    assert struct.unpack_from("<q", first.arguments, {"forward": 48, "backward": 56}[direction]) == (rows,)


# --- argument bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero_centered, with_gamma", list(itertools.product([False, True], [False, True])))
@pytest.mark.parametrize("with_residual", [False, True])
def test_forward_arguments(fake_hip, zero_centered, with_gamma, with_residual):
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
        "<6Q3q2i2fIi2Q",
        *(X, residual, gamma, Y, s, RSTD),
        *(5, 128, 64 if with_residual else 0),
        *(64, CODES["bf16"]),
        *(0.5, offset),
        *(2, CODES["fp32"]),  # five rows, four a work-group
        *(0, 0),
    )


@pytest.mark.parametrize("beta", [0, BETA])
def test_forward_arguments_of_layernorm(fake_hip, beta):
    assert forward(5, 64, "fp16", norm="layernorm", beta=beta, beta_dtype="bf16") == _C.OK, _C.last_error()
    (launch,) = fake_hip.launches
    assert launch.kernel == "layernorm_forward_fp16_64x1"
    assert struct.unpack_from("<i2Q", launch.arguments, 92) == (CODES["bf16"], beta, MEAN)


@pytest.mark.parametrize("with_ds, with_dgamma", list(itertools.product([False, True], [False, True])))
def test_backward_arguments(fake_hip, with_ds, with_dgamma):
    ds, dgamma = (DS if with_ds else 0), (DGAMMA if with_dgamma else 0)
    assert backward(3000, 4096, stride=0, ds=ds, dgamma=dgamma, zero_centered=True) == _C.OK, _C.last_error()
    first, *rest = fake_hip.launches
    assert first.kernel == "rmsnorm_backward_bf16_256x2"
    assert first.grid == (1024, 1, 1)
    assert first.arguments == struct.pack(
        "<7Q4q2ifI2Q",
        *(DY, ds, X, GAMMA, RSTD, DX, PARTIAL if with_dgamma else 0),
        *(3000, 0, 4096 if with_ds else 0, 4096),
        *(4096, CODES["fp32"]),
        *(1.0, 1024),
        *(0, 0),
    )
    if not with_dgamma:
        assert rest == []
        return
    (second,) = rest
    assert (second.kernel, second.grid, second.block) == ("norm_parameter_sum", (64, 1, 1), (256, 1, 1))
    assert second.arguments[:36] == struct.pack("<3Q3i", PARTIAL, DGAMMA, 0, 1024, 4096, CODES["fp32"])


@pytest.mark.parametrize("with_dgamma, with_dbeta", list(itertools.product([False, True], [False, True])))
def test_backward_arguments_of_layernorm(fake_hip, with_dgamma, with_dbeta):
    """The lines of dbeta follow those of dgamma, or are the only ones; one launch sums both."""
    dgamma, dbeta = (DGAMMA if with_dgamma else 0), (DBETA if with_dbeta else 0)
    assert backward(3000, 4096, norm="layernorm", dgamma=dgamma, dbeta=dbeta) == _C.OK, _C.last_error()
    first, *rest = fake_hip.launches
    assert first.kernel == "layernorm_backward_bf16_256x2"
    dbeta_partial = PARTIAL + (1024 * 4096 * 4 if with_dgamma else 0)
    assert struct.unpack_from("<Q", first.arguments, 48) == (PARTIAL if with_dgamma else 0,)
    assert struct.unpack_from("<2Q", first.arguments, 104) == (MEAN, dbeta_partial if with_dbeta else 0)
    gradients = [(DGAMMA, CODES["fp32"])] * with_dgamma + [(DBETA, CODES["fp16"])] * with_dbeta
    assert [launch.kernel for launch in rest] == ["norm_parameter_sum"] * (len(gradients) > 0)
    if gradients:
        assert rest[0].grid == (64, len(gradients), 1)
        found = struct.unpack("<3Q4i", rest[0].arguments)
        assert (found[0], found[3:5]) == (PARTIAL, (1024, 4096))
        assert list(zip(found[1:3], found[5:7]))[: len(gradients)] == gradients


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
    assert _C.norm_backward_partials(rows, dim, CODES[dtype]) == partials


@both_norms
@pytest.mark.parametrize(
    "dim, dtype, flavour", [(65536, "bf16", "vector"), (32768, "fp32", "vector"), (513, "fp16", "scalar")]
)
def test_backward_of_rows_that_leave_the_registers(fake_hip, dim, dtype, flavour, norm):
    assert backward(100, dim, dtype, norm=norm) == _C.OK, _C.last_error()
    loop, columns, total = fake_hip.launches
    lines = _C.norm_backward_partials(100, dim, CODES[dtype])
    assert (loop.kernel, loop.grid) == (f"{norm}_backward_{dtype}_loop_{flavour}", (100, 1, 1))
    assert (columns.kernel, columns.grid) == (f"{norm}_parameter_partial_{dtype}", (-(-dim // 64), lines, 1))
    assert struct.unpack_from("<I", columns.arguments, 100) == (lines,)
    assert (total.kernel, total.grid) == ("norm_parameter_sum", (-(-dim // 64), 1, 1))


# --- nothing to do, or not accepted -----------------------------------------------------------------------------------


def test_without_rows_only_dgamma_is_written(fake_hip):
    assert forward(0, 64) == _C.OK
    assert fake_hip.launches == []
    assert backward(0, 64) == _C.OK
    (launch,) = fake_hip.launches
    assert launch.kernel == "norm_parameter_sum"
    assert struct.unpack_from("<i", launch.arguments, 24) == (0,)
    assert backward(0, 64, norm="layernorm", dbeta=DBETA) == _C.OK
    assert fake_hip.launches[1].grid == (1, 2, 1)


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
        (lambda: backward(100, 64, partials=3), "partials is 3; turbo_norm_backward_partials says 25"),
        (lambda: forward(1, 8, 7), "rmsnorm_forward: dtype is 7"),
        (lambda: forward(1, 8, gamma_dtype=-1), "gamma_dtype is -1"),
        (lambda: forward(1, 8, beta=BETA), "rmsnorm_forward: there is no beta"),
        (lambda: forward(1, 8, mean=MEAN), "there is no mean"),
        (lambda: backward(1, 8, dbeta=DBETA), "there is no dbeta"),
        (lambda: backward(1, 8, mean=MEAN), "there is no mean"),
        (lambda: forward(1, 8, norm="layernorm", mean=0), "layernorm_forward: mean is NULL"),
        (lambda: backward(1, 8, norm="layernorm", mean=0), "layernorm_backward: mean is NULL"),
        (lambda: backward(1, 8, norm="layernorm", dgamma=0, dbeta=DBETA, partial=0), "partial is NULL"),
        (lambda: forward(1, 8, norm="layernorm", beta=BETA, beta_dtype="int"), "beta_dtype is -1"),
        (lambda: backward(1, 8, norm="layernorm", dbeta=DBETA, beta_dtype="int"), "beta_dtype is -1"),
        (lambda: forward(1, 64, device=-1), "device -1"),
        (lambda: forward(1, 64, device=256), "device 256"),
    ],
)
def test_bad_arguments(fake_hip, call, text):
    assert call() == _C.ERROR_ARGUMENT
    assert text in _C.last_error()
    assert fake_hip.launches == []


@pytest.mark.parametrize(
    "change, text",
    [
        ({"eps": None}, "eps cannot be None"),
        ({"rows": 1.5}, "rows cannot be 1.5"),
        ({"x": "there"}, "x cannot be 'there'"),
        ({"gama": 1}, "there is no gama"),
        ({"eps": ...}, "missing: eps"),
        ({"eps": ..., "epsilon": 1e-6}, "missing: eps"),
    ],
    ids=str,
)
def test_each_field_has_its_name(change, text):
    fields = dict(
        x=X, x_stride=8, residual=0, residual_stride=0, gamma=0, beta=0, y=Y, s=0, mean=0, rstd=RSTD, rows=0, dim=8,
        dtype=0, gamma_dtype=0, beta_dtype=0, eps=1e-6, zero_centered=True,
    )  # fmt: skip
    assert _C.rmsnorm_forward(0, STREAM, **fields) == _C.OK
    changed = {name: value for name, value in {**fields, **change}.items() if value is not ...}
    with pytest.raises(TypeError, match=text):
        _C.rmsnorm_forward(0, STREAM, **changed)


@both_norms
def test_the_widest_row_stays_within_a_grid(fake_hip, norm):
    assert forward(1, 2**29, "fp32", norm=norm) == _C.OK, _C.last_error()
    assert backward(1, 2**29, "fp32", norm=norm) == _C.OK, _C.last_error()
    for launch in fake_hip.launches:
        assert launch.grid[0] * launch.block[0] < 2**32 and launch.grid[1] < 2**16
