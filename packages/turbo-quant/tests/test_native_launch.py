# SPDX-License-Identifier: MIT
"""What the native library launches: kernel, grid, argument bytes, as a HIP library recorded them."""

from __future__ import annotations

import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
_C = pytest.importorskip("turbo_quant.pytorch._C", reason="turbo-quant is not built (pip install -e)")

from turbo_core import UnsupportedError, simulated_arch  # noqa: E402
from turbo_core.low_precision import ScalingGranularity  # noqa: E402
from turbo_quant.calls import (  # noqa: E402
    DequantizeFloatCall,
    DequantizeMxCall,
    MxDirection,
    QuantizeFloatCall,
    QuantizeMxCall,
)
from turbo_quant.pytorch.kernels import native  # noqa: E402

TENSORWISE, ROWWISE = ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE
BLOCKWISE = ScalingGranularity.BLOCKWISE
E4M3 = torch.float8_e4m3fn
X, ROW, ROW_SCALE, COLUMN, COLUMN_SCALE, SCRATCH, OFFS, PADDED = (0x10000 * i for i in range(1, 9))
STREAM = 0x5EA


@pytest.fixture(autouse=True)
def on_gfx942(fake_hip):
    native.reset()
    _C.reset()
    with simulated_arch("gfx942"):
        yield
    native.reset()
    _C.reset()


def quantize(rows, columns, granularity=_C.ROWWISE, *, x=X, strides=None, size=None, **more):
    size = size or (1, rows, columns)
    return _C.quantize_float(
        0,
        STREAM,
        x=x,
        strides=strides or (rows * columns, columns, 1),
        size=size,
        x_dtype=more.get("dtype", _C.BFLOAT16),
        out_dtype=more.get("out_dtype", _C.FLOAT8_E4M3),
        granularity=granularity,
        block_size=more.get("block", _C.BLOCK if granularity == _C.BLOCKWISE else 0),
        tile=more.get("tile", False),
        row=more.get("row", ROW),
        row_scale_inv=more.get("row_scale", ROW_SCALE),
        column=more.get("column", 0),
        column_scale_inv=COLUMN_SCALE,
        group_offs=more.get("offs", 0),
        group_offs_padded=PADDED,
        groups=more.get("groups", 0),
        scratch=more.get("scratch", SCRATCH),
    )


def quantize_mx(rows, columns, **more):
    return _C.quantize_mx(
        0,
        STREAM,
        x=X,
        strides=(rows * columns, columns, 1),
        size=(more.get("batches", 1), rows, columns),
        x_dtype=more.get("dtype", _C.BFLOAT16),
        format=more.get("format", 2),
        row=dict(payload=more.get("row", ROW), scale=ROW_SCALE, flags=more.get("row_flags", 0)),
        column=dict(payload=more.get("column", 0), scale=COLUMN_SCALE, flags=more.get("column_flags", 0)),
        sign_mask=0x1234,
        rng=more.get("rng", 0),
        group_offs=more.get("offs", 0),
        group_offs_padded=PADDED,
        groups=more.get("groups", 0),
    )


# --- the choice of kernel ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns, name, blocks, threads",
    [
        (512, "64x1", 2, 256),
        (520, "64x4", 2, 256),
        (2056, "256x4", 7, 256),
        (8200, "1024x4", 7, 1024),
        (32776, "loop_vector", 7, 256),
        (513, "loop_scalar", 7, 256),
    ],
)
def test_rows(fake_hip, columns, name, blocks, threads):
    assert quantize(7, columns) == _C.OK, _C.last_error()
    (launch,) = fake_hip.launches
    assert (launch.kernel, launch.grid, launch.block) == (
        f"quantize_rows_bf16_e4m3_{name}",
        (blocks, 1, 1),
        (threads, 1, 1),
    )
    assert launch.stream == STREAM


@pytest.mark.parametrize(
    "change, vector",
    [
        (dict(), True),
        (dict(x=X + 8), False),
        (dict(strides=(1 << 20, 1025, 1)), False),
        (dict(strides=(1 << 20, 1032, 1)), True),
        (dict(strides=(1, 2, 2048)), False),
        (dict(strides=((1 << 20) + 1, 1024, 1)), True),  # of a single batch
        (dict(strides=((1 << 20) + 1, 1024, 1), size=(2, 4, 1024)), False),
        (dict(row=ROW + 8), False),
    ],
    ids=str,
)
def test_what_decides_between_wide_and_single_accesses(fake_hip, change, vector):
    assert quantize(4, 1024, **change) == _C.OK, _C.last_error()
    assert fake_hip.launches[0].kernel.endswith("64x4" if vector else "loop_scalar")


def test_two_passes(fake_hip):
    assert quantize(1000, 5000, _C.TENSORWISE, out_dtype=_C.FLOAT8_E5M2_FNUZ, dtype=_C.FLOAT32) == _C.OK
    assert quantize(300, 5000, row=0, column=COLUMN, dtype=_C.FLOAT16) == _C.OK, _C.last_error()
    assert [(launch.kernel, launch.grid[0]) for launch in fake_hip.launches] == [
        ("tensor_amax_fp32", 8 * 40),
        ("quantize_tensor_fp32_e5m2_fnuz", 8 * 40),
        ("column_amax_fp16", 3 * 40),
        ("quantize_columns_fp16_e4m3", 3 * 40),
    ]
    assert quantize(10000, 10000, _C.TENSORWISE) == _C.OK
    first, second = fake_hip.launches[4:]
    tiles = 79 * 79
    for launch, blocks in ((first, 1024), (second, 4096)):
        assert launch.grid[0] == blocks
        assert struct.unpack_from("<3I", launch.arguments, 136) == (tiles, blocks, 1024)


@pytest.mark.parametrize("batches, shuffled", [(1, 0), (3, 8)])
def test_mx(fake_hip, batches, shuffled):
    assert quantize_mx(100, 300, batches=batches, column=COLUMN, column_flags=shuffled) == _C.OK, _C.last_error()
    assert quantize_mx(100, 300, batches=batches, format=0, dtype=_C.FLOAT32) == _C.OK
    assert quantize_mx(100, 300, batches=batches, format=1, row_flags=2) == _C.OK
    assert [(launch.kernel, launch.grid[0]) for launch in fake_hip.launches] == [
        ("quantize_mx_e2m1_bf16_basic", 3 * batches),
        ("quantize_mx_e4m3_fp32_rows", 6 * batches),  # a tile of float32 has 64 columns
        ("quantize_mx_e5m2_bf16_special", 3 * batches),
    ]
    scale_batch, pitch = (512 * 8, 8) if shuffled else (300 * 4, 4)
    assert fake_hip.launches[0].arguments[80:192] == struct.pack(
        "<2Q3q2i2Q3q2iQ2i",
        *(ROW, ROW_SCALE, 100, 384, 100 * 12, 12, 0),
        *(COLUMN, COLUMN_SCALE, 300, 128, scale_batch, pitch, shuffled),
        *(0, 0x1234, 0),
    )


def test_groups(fake_hip):
    """Tiles are those of the padded column copy; row tiles of 32 rows need those of x, and a launch of their own."""
    assert quantize_mx(300, 100, column=COLUMN, offs=OFFS, groups=3) == _C.OK, _C.last_error()
    assert quantize_mx(300, 100, column=COLUMN, offs=OFFS, groups=3, row_flags=1) == _C.OK
    assert quantize(300, 100, _C.BLOCKWISE, column=COLUMN, offs=OFFS, groups=3) == _C.OK
    assert [launch.grid[0] for launch in fake_hip.launches] == [6, 3, 6, 6]
    for launch, groups in zip(fake_hip.launches, (3, 0, 3, 3)):
        expected = (groups, OFFS, PADDED) if groups else (0, 0, 0)
        assert struct.unpack_from("<i2Q", launch.arguments, 60) == expected


# --- argument bytes ---------------------------------------------------------------------------------------------------


def test_tensors_become_addresses(fake_hip):
    x = torch.zeros(2, 260, 200, dtype=torch.float16).transpose(1, 2)
    out = native.run(QuantizeFloatCall(x, E4M3, BLOCKWISE, 128, True, True))
    (launch,) = fake_hip.launches
    assert launch.kernel == "quantize_blocks_fp16_e4m3"
    assert launch.arguments == struct.pack(
        "<Q5q2I2i2Q5Q2q3Ii",
        *(x.data_ptr(), 260 * 200, 1, 200, 200, 260),
        *(2, 3, 0, 0, 0, 0),
        *(t.data_ptr() for t in out),
        *(0, 200, 400),
        *(2 * 2 * 3, 0, 0, 0),
    )
    assert (out.row_scale_inv.shape, out.column_scale_inv.shape) == ((2, 200, 3), (2, 2, 260))


def test_dequantize_arguments(fake_hip):
    q, scale = torch.zeros(2, 30, 40, dtype=torch.uint8).view(E4M3), torch.zeros(2, 2, 40)
    out = native.run(DequantizeFloatCall(q, scale, BLOCKWISE, 20, 1, torch.bfloat16))
    codes, byte = torch.zeros(1, 33, 64, dtype=torch.uint8), torch.zeros(1, 33, 4, dtype=torch.uint8)
    back = native.run(DequantizeMxCall(codes, byte, "e2m1", 100, True, True, 7, torch.float32))
    first, second = fake_hip.launches
    assert (first.kernel, second.kernel) == ("dequantize_float_bf16_e4m3", "dequantize_mx_e2m1_fp32")
    assert first.arguments[80:] == struct.pack("<2Q2q2I", scale.data_ptr(), out.data_ptr(), 80, 40, 20, 1)
    assert second.grid[0] == 2
    assert second.arguments == struct.pack(
        "<3Q6q2I4i",
        *(codes.data_ptr(), byte.data_ptr(), back.data_ptr()),
        *(33 * 64, 64, 1, 33, 128, 100),
        *(1, 2, 1, 1, 1, 7),
    )


def test_an_unused_stride_may_be_anything(fake_hip):
    x = torch.zeros(1, 1, 4097, dtype=torch.bfloat16)[:, :, :4096]
    native.run(QuantizeFloatCall(x, E4M3, ROWWISE, 0, True, False))
    assert fake_hip.launches[0].kernel == "quantize_rows_bf16_e4m3_256x4"


def test_only_what_the_kernels_leave_out_is_cleared(fake_hip, poisoned_allocations):
    """Nothing runs here, so what is zero was cleared: shuffled scales with padding, and those alone."""
    shuffled = MxDirection(shuffle_scale=True)
    for rows, columns, cleared in ((256, 1024, False), (255, 1024, True), (256, 128, True)):
        x = torch.zeros(1, rows, columns)
        scale = native.run(QuantizeMxCall(x, "e4m3", shuffled, None)).row_scale.view(torch.uint8)
        assert bool((scale == 0).all()) is cleared
        assert (native.run(QuantizeMxCall(x, "e4m3", MxDirection(), None)).row_scale.view(torch.uint8) != 0).any()


# --- nothing to do, or not accepted -----------------------------------------------------------------------------------


def test_nothing_is_launched_for_nothing(fake_hip):
    assert quantize(0, 64) == quantize(64, 0, _C.BLOCKWISE) == quantize(3, 3, row=0) == _C.OK
    assert quantize_mx(0, 64) == quantize_mx(64, 64, row=0) == _C.OK
    assert fake_hip.launches == []


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: quantize(-1, 64), "size is 1 x -1 x 64"),
        (lambda: quantize(1, 2**31), "each must be 0 to 2**31 - 1"),
        (lambda: quantize(2**30, 2**10), "more than 2**24 tiles"),
        (lambda: quantize(1, 64, dtype=7), "x_dtype is 7"),
        (lambda: quantize(1, 64, out_dtype=_C.BFLOAT16), "out_dtype is 2, no FP8 type"),
        (lambda: quantize(1, 64, 3), "granularity is 3"),
        (lambda: quantize(1, 64, _C.BLOCKWISE, block=64), "block_size is 64; 128 is accepted"),
        (lambda: quantize(1, 64, _C.TENSORWISE, column=COLUMN), "no column copy"),
        (lambda: quantize(1, 64, _C.BLOCKWISE, tile=True, column=COLUMN), "tile is for BLOCKWISE and the row copy"),
        (lambda: quantize(1, 64, offs=OFFS, groups=1), "groups are for BLOCKWISE"),
        (lambda: quantize(1, 64, _C.BLOCKWISE, size=(2, 1, 64), offs=OFFS, groups=1), "B is 2"),
        (lambda: quantize(1, 64, x=0), "x is NULL"),
        (lambda: quantize(1, 64, row_scale=0), "row_scale_inv is NULL"),
        (lambda: quantize(1, 64, row=ROW + 4), "a payload is not aligned to 8 bytes"),
        (lambda: quantize(1, 64, _C.TENSORWISE, scratch=0), "scratch is NULL"),
        (lambda: quantize_mx(1, 64, format=3), "format is 3"),
        (lambda: quantize_mx(1, 64, row_flags=3), "a rotation has no 32 x 32 tiles"),
        (lambda: quantize_mx(1, 64, row_flags=4), "row is rounded stochastically, and rng is NULL"),
        (lambda: quantize_mx(1, 64, row_flags=16), "row has 1 lines; a shuffled payload needs a multiple of 16"),
        (lambda: quantize_mx(1, 64, row=ROW + 8), "row.payload is not aligned to 16 bytes"),
    ],
)
def test_bad_arguments(fake_hip, call, text):
    assert call() == _C.ERROR_ARGUMENT
    assert text in _C.last_error()
    assert fake_hip.launches == []


def test_tensors_of_other_types(fake_hip):
    with pytest.raises(UnsupportedError, match="x.dtype=torch.float64"):
        native.run(QuantizeFloatCall(torch.zeros(1, 1, 1).double(), E4M3, ROWWISE, 0, True, False))
    with pytest.raises(UnsupportedError, match="out_dtype=torch.int8"):
        native.run(QuantizeFloatCall(torch.zeros(1, 1, 1), torch.int8, ROWWISE, 0, True, False))
    assert fake_hip.launches == []
