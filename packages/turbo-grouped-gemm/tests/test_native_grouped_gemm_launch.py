# SPDX-License-Identifier: MIT
"""What the native library launches (kernel, grid, argument bytes, as a HIP library recorded them) and refuses."""

from __future__ import annotations

import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
_C = pytest.importorskip("turbo_grouped_gemm.pytorch._C", reason="turbo-grouped-gemm is not built (pip install -e)")

from turbo_core import simulated_arch  # noqa: E402
from turbo_core.low_precision import ScalingGranularity  # noqa: E402
from turbo_grouped_gemm.calls import (  # noqa: E402
    GroupedGemmFp8Call,
    GroupedOperand,
    GroupedWgradFp8Call,
    Groups,
)
from turbo_grouped_gemm.pytorch.kernels import grouped_native, native  # noqa: E402

A, B, A_SCALE, B_SCALE, C, BIAS, LENS, OFFS, COUNTER = (0x10000 * i for i in range(1, 10))
STREAM = 0x5EA
GFX942, GFX950 = 0, 1  # devices of the fake library
UNITS = 256
FORMATS = _C.MX_FORMATS
OCP = {"e4m3": _C.FLOAT8_E4M3, "e5m2": _C.FLOAT8_E5M2}
FNUZ = {"e4m3": _C.FLOAT8_E4M3_FNUZ, "e5m2": _C.FLOAT8_E5M2_FNUZ}
TILES = {"chosen": _C.TILE_CHOSEN, "large": _C.TILE_LARGE, "small": _C.TILE_SMALL}
ARGUMENTS = "<6Q7q11i4x12q2Q6iQ"  # GroupedGemmArgs


@pytest.fixture(autouse=True)
def forget_hip(fake_hip):
    native.reset()
    _C.reset()
    yield
    native.reset()
    _C.reset()


def problem(m, n, k, groups=4, tile="chosen", columns=False, packed=1, **more):
    """Groups one after the other, unless ``offs`` is given; ``packed`` elements to a byte."""
    row_bytes = k // packed
    operands = {
        name: dict(
            data=more.get(f"{name}_data", data),
            stride=more.get(f"{name}_stride", row_bytes),
            scale=scale,
            scale_stride=more.get(f"{name}_scale_stride", 4),
            scale_step=more.get(f"{name}_step", 0),
            scale_rows=more.get(f"{name}_rows", 1),
        )
        for name, data, scale in (("a", A, A_SCALE), ("b", B, B_SCALE))
    }
    output = dict(
        data=more.get("c", C),
        stride=more.get("c_stride", n),
        bias=more.get("bias", 0),
        dtype=more.get("dtype", _C.BFLOAT16),
        bias_dtype=more.get("bias_dtype", 0),
        accumulate=more.get("accumulate", False),
    )
    where = dict(
        count=groups,
        lens=0 if columns else more.get("lens", LENS),
        offs=more.get("offs", OFFS if columns else 0),
        lens_bits=more.get("lens_bits", 64),
        offs_bits=more.get("offs_bits", 64),
    )
    steps = {name: more.get(name, 0) for name in ("a_scale_group", "b_scale_group", "bias_group")}
    return dict(
        **operands,
        c=output,
        m=m,
        n=n,
        k=k,
        groups=where,
        b_group=more.get("b_group", 0 if columns else n * row_bytes),
        c_group=more.get("c_group", m * n if columns else 0),
        tile=TILES.get(tile, tile),
        compute_units=more.get("compute_units", UNITS),
        most_units=more.get("most_units", 0),
        counter=more.get("counter", 0),
        **steps,
    )


def fp8(m, n, k, a="e4m3", b="e4m3", block=0, device=GFX942, **more):
    types = more.pop("types", FNUZ if device == GFX942 else OCP)
    return _C.grouped_gemm_fp8(
        device, STREAM, problem=problem(m, n, k, **more), dtype_a=types[a], dtype_b=types[b], block=block
    )


def mx(m, n, k, a="e4m3", b="e4m3", device=GFX950, **more):
    packed = 2 if a == "e2m1" else 1
    return _C.grouped_gemm_mx(
        device,
        STREAM,
        problem=problem(m, n, k, packed=packed, **more),
        format_a=FORMATS.get(a, a),
        format_b=FORMATS.get(b, b),
    )


def half(m, n, k, dtype="bf16", device=GFX942, **more):
    codes = {"bf16": _C.BFLOAT16, "fp16": _C.FLOAT16}
    given = problem(m, n, 2 * k, **more) | {"k": k}
    for name in "ab":
        given[name] |= dict(scale=0, scale_stride=0)
    return _C.grouped_gemm_half(device, STREAM, problem=given, dtype=codes.get(dtype, dtype))


# --- which kernel, which grid ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile, size, threads", [("large", "256x256", 512), ("small", "128x128", 256)])
@pytest.mark.parametrize(
    "a, b", [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2"), ("e2m1", "e2m1")]
)
@pytest.mark.parametrize("columns", [False, True])
def test_every_mx_kernel(fake_hip, columns, a, b, tile, size, threads):
    assert mx(300, 200, 256, a, b, tile=tile, columns=columns) == _C.OK, _C.last_error()
    (launch,) = fake_hip.launches
    assert (launch.kernel, launch.block) == (f"grouped_gemm_mx_{a}_{b}_{size}", (threads, 1, 1))
    assert (launch.lds, launch.stream, launch.device) == (0, STREAM, GFX950)


@pytest.mark.parametrize(
    "block, b_rows, kind, tile, size, threads",
    [
        (0, 1, "row", "large", "256x256", 512),
        (0, 1, "row", "small", "128x128", 256),
        (128, 1, "block_row", "large", "256x128", 512),
        (128, 1, "block_row", "small", "128x128", 512),
        (128, 128, "block_tile", "large", "256x128", 512),
        (128, 128, "block_tile", "small", "128x128", 512),
    ],
)
@pytest.mark.parametrize("a", OCP)
@pytest.mark.parametrize("b", OCP)
@pytest.mark.parametrize("device", [GFX942, GFX950])
def test_every_fp8_kernel(fake_hip, device, a, b, block, b_rows, kind, tile, size, threads):
    assert fp8(300, 200, 256, a, b, block, device, tile=tile, b_rows=b_rows) == _C.OK, _C.last_error()
    (launch,) = fake_hip.launches
    assert (launch.kernel, launch.block) == (f"grouped_gemm_fp8_{kind}_{a}_{b}_{size}", (threads, 1, 1))


@pytest.mark.parametrize("tile, size, threads", [("large", "256x256", 512), ("small", "128x128", 256)])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("device", [GFX942, GFX950])
def test_every_kernel_of_16_bits(fake_hip, device, dtype, tile, size, threads):
    assert half(300, 200, 40, dtype, device, tile=tile) == _C.OK, _C.last_error()
    (launch,) = fake_hip.launches
    assert (launch.kernel, launch.block) == (f"grouped_gemm_half_{dtype}_{dtype}_{size}", (threads, 1, 1))
    values = struct.unpack(ARGUMENTS, launch.arguments)
    assert values[2:4] == (0, 0) and values[6:8] == (80, 80) and values[13:16] == (300, 200, 80)


@pytest.mark.parametrize(
    "arguments, work_groups",
    [
        # rows: 300 in tiles of 256, one more for each of 4 groups and for the tail; x 1 tile of n
        (dict(m=300, n=200, tile="large"), 6),
        # and for each of 5 gaps
        (dict(m=300, n=200, tile="large", offs=OFFS), 10),
        # as many as run at a time
        (dict(m=100000, n=2048, tile="large"), UNITS),
        (dict(m=100000, n=2048, tile="small"), 2 * UNITS),
        (dict(m=100000, n=2048, tile="large", most_units=100), 100),
        (dict(m=100000, n=2048, tile="small", most_units=1000), 2 * UNITS),
        # columns: each tile of each group
        (dict(m=300, n=200, tile="large", columns=True), 8),
        (dict(m=3000, n=2000, groups=64, tile="small", columns=True), 64 * 24 * 16),
        (dict(m=3000, n=2000, groups=64, tile="small", columns=True, most_units=7), 14),
        (dict(m=3000, n=2000, groups=64, tile="small", columns=True, counter=COUNTER), 2 * UNITS),
    ],
)
def test_the_grid(fake_hip, arguments, work_groups):
    assert fp8(k=256, **arguments) == _C.OK, _C.last_error()
    (launch,) = fake_hip.launches
    assert launch.grid == (work_groups, 1, 1)
    assert struct.unpack(ARGUMENTS, launch.arguments)[-2] == work_groups


@pytest.mark.parametrize(
    "m, n, groups, columns, tile",
    [
        (8192, 4096, 8, False, "256x256"),
        (8192, 4096, 64, False, "128x128"),  # 128 rows a group
        (32768, 4096, 64, False, "256x256"),  # 512 rows a group
        (4096, 2048, 8, True, "256x256"),
        (1408, 2048, 4, True, "128x128"),
    ],
)
def test_the_tile_for_groups(fake_hip, m, n, groups, columns, tile):
    assert mx(m, n, 256, groups=groups, columns=columns) == _C.OK, _C.last_error()
    assert fake_hip.launches[0].kernel.endswith(tile)


def test_nothing_to_do_is_not_launched(fake_hip):
    for run in (fp8, mx):
        assert run(0, 5, 128) == _C.OK
        assert run(5, 0, 128) == _C.OK
        assert run(5, 5, 128, groups=0, columns=True) == _C.OK
    assert fake_hip.launches == []


# --- argument bytes -------------------------------------------------------------------------------------------------


def test_arguments_of_rows(fake_hip):
    given = dict(
        a_stride=288, a_scale_stride=1, a_step=300, b_scale_stride=3, b_step=1, b_rows=128, b_group=80000,
        b_scale_group=6, bias=BIAS, bias_dtype=_C.FLOAT32, bias_group=256, c_stride=264, lens_bits=32, offs=OFFS,
        counter=COUNTER,
    )  # fmt: skip
    assert fp8(300, 256, 272, block=128, tile="large", **given) == _C.OK, _C.last_error()
    assert fake_hip.launches[0].arguments == struct.pack(
        ARGUMENTS,
        *(A, B, A_SCALE, B_SCALE, BIAS, C),
        *(288, 272, 1, 3, 300, 1, 264),
        *(300, 256, 272),
        *(0, 7),
        *(_C.BFLOAT16, _C.FLOAT32, 0, 1),
        *(2, 2),
        *(0, 288),  # a
        *(80000, 0),  # b
        *(0, 4),  # scales of a
        *(24, 0),  # scales of b
        *(1024, 0),  # bias
        *(0, 528),  # C
        *(LENS, OFFS),
        *(0, 1),
        *(4, 300, 0, 20),
        COUNTER,
    )


@pytest.mark.parametrize(
    "c, c_group, n, vector",
    [(C, 300 * 72, 72, 1), (C, 300 * 72 + 4, 72, 0), (C + 8, 300 * 72, 72, 0), (C, 300 * 70, 70, 0)],
)
def test_arguments_of_columns(fake_hip, c, c_group, n, vector):
    given = dict(a_scale_stride=24, b_scale_stride=28, c=c, c_group=c_group, accumulate=True, offs_bits=32)
    status = mx(300, n, 768, "e2m1", "e2m1", tile="small", columns=True, **given)
    assert status == _C.OK, _C.last_error()
    assert fake_hip.launches[0].arguments == struct.pack(
        ARGUMENTS,
        *(A, B, A_SCALE, B_SCALE, 0, c),
        *(384, 384, 24, 28, 0, 0, n),
        *(300, n, 384),
        *(0, 0),
        *(_C.BFLOAT16, 0, 1, vector),
        *(3, 1),
        *(0, 64),  # a, of 128 columns
        *(0, 64),
        *(0, 4),
        *(0, 4),
        *(0, 0),
        *(2 * c_group, 0),
        *(0, OFFS),
        *(1, 0),
        *(4, 768, 1, 12),
        0,
    )


def test_tensors_become_addresses(fake_hip):
    """Scales stored along the other dimension, and a strided out."""
    fake_hip.set_arch(0, "gfx950")
    x, y = (torch.zeros(rows, 512, dtype=torch.float8_e4m3fn) for rows in (130, 48))
    x_scale, y_scale = torch.ones(4, 130).t(), torch.ones(4, 48).t()
    out, offs = torch.zeros(3, 130, 64)[:, :, :48], torch.tensor([0, 128, 128, 512])
    blocks = ScalingGranularity.BLOCKWISE
    call = GroupedWgradFp8Call(
        GroupedOperand(x, x_scale), GroupedOperand(y, y_scale), offs, blocks, 128, torch.float32, out, num_cu=2
    )
    with simulated_arch("gfx950"):
        assert grouped_native.run(call, tile="small") is out
    assert fake_hip.launches[0].kernel == "grouped_gemm_fp8_block_row_e4m3_e4m3_128x128"
    assert fake_hip.launches[0].arguments == struct.pack(
        ARGUMENTS,
        *(t.data_ptr() for t in (x, y, x_scale, y_scale)),
        *(0, out.data_ptr()),
        *(512, 512, 1, 1, 130, 48, 64),
        *(130, 48, 512),
        *(0, 0),
        *(_C.FLOAT32, 0, 1, 1),
        *(2, 1),
        *(0, 128, 0, 128, 0, 4 * 130, 0, 4 * 48, 0, 0, 4 * 130 * 64, 0),
        *(0, offs.data_ptr()),
        *(0, 1),
        *(3, 512, 0, 2),
        0,
    )


def test_scales_of_groups_and_rows(fake_hip):
    """ROWWISE: one a group and row of x and y, one a row of a, one a group and row of b."""
    row = ScalingGranularity.ROWWISE
    fnuz = torch.float8_e4m3fnuz
    a, b = torch.zeros(50, 64, dtype=fnuz), torch.zeros(3, 40, 64, dtype=fnuz)
    lens, bias = torch.tensor([10, 0, 40], dtype=torch.int32), torch.zeros(3, 40)
    rows = GroupedGemmFp8Call(
        GroupedOperand(a, torch.ones(50, 1)), GroupedOperand(b, torch.ones(3, 40, 1)), bias, Groups(lens, None), row, 0,
        torch.bfloat16, None, None, 50,
    )  # fmt: skip
    x = torch.zeros(40, 128, dtype=fnuz)
    columns = GroupedWgradFp8Call(
        GroupedOperand(x, torch.ones(2, 40)), GroupedOperand(x, torch.ones(2, 40)), torch.tensor([0, 0, 128]), row, 0,
        torch.bfloat16,
    )  # fmt: skip
    with simulated_arch("gfx942"):
        grouped_native.run(rows)
        grouped_native.run(columns)
    of_rows, of_columns = (struct.unpack(ARGUMENTS, launch.arguments) for launch in fake_hip.launches)
    assert of_rows[8:12] == (1, 1, 0, 0)
    assert of_rows[24:36] == (0, 64, 40 * 64, 0, 0, 4, 160, 0, 160, 0, 0, 80)
    assert of_columns[8:12] == (1, 1, 0, 0)
    assert of_columns[24:36] == (0, 128, 0, 128, 160, 0, 160, 0, 0, 0, 2 * 1600, 0)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(k=24), "k is 24; multiples of 16 are accepted"),
        (dict(k=144, columns=True), "k is 144; multiples of 128 are accepted"),
        (dict(block=64), "block is 64; 0 and 128 are accepted"),
        (dict(groups=-1), "-1 groups"),
        (dict(groups=2**20 + 1), "1048577 groups; at most 1048576"),
        (dict(columns=True, offs=0), "neither lens nor offs is given"),
        (dict(lens_bits=16), "values of lens have 16 bits"),
        (dict(offs=OFFS + 4), "offs is at 0x80004"),
        (dict(b_group=40), "groups of b are 40 bytes apart; a multiple of 16 is needed"),
        (dict(b_scale_group=-4), "groups of scales of b are -16 bytes apart"),
        (dict(accumulate=True), "groups of rows are not added to C"),
        (dict(columns=True, bias=BIAS), "groups of columns have no bias"),
        (dict(a_rows=128, block=128), "128 rows of a share a scale; 1 is accepted"),
        (dict(a_data=A + 8), "a is at 0x10008; a 16-byte aligned address"),
        (dict(c=0), "c is at (nil)"),
        (dict(tile=3), "tile is 3"),
        (dict(compute_units=0), "compute_units is 0"),
        (dict(most_units=-1), "most_units is -1"),
        (dict(counter=COUNTER + 2), "counter is at 0x90002"),
        (dict(types=OCP), "dtype of a is 3; matrix units of gfx942 take the FNUZ types"),
        (dict(m=2**30, n=2**21, tile="small"), "tiles; less than 2147483648 are accepted"),
    ],
    ids=str,
)
def test_fp8_refusals(fake_hip, arguments, text):
    assert fp8(**(dict(m=4, n=4, k=128) | arguments)) == _C.ERROR_ARGUMENT
    assert text in _C.last_error() and _C.last_error().startswith("grouped_gemm_fp8: ")
    assert fake_hip.launches == []


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(k=12), "k is 12; multiples of 8 are accepted"),
        (dict(dtype=0), "dtype is 0; float16 and bfloat16 are accepted"),
        (dict(columns=True), "groups of 16 bits are rows"),
    ],
    ids=str,
)
def test_refusals_of_16_bits(fake_hip, arguments, text):
    assert half(**(dict(m=4, n=4, k=64) | arguments)) == _C.ERROR_ARGUMENT
    assert text in _C.last_error() and _C.last_error().startswith("grouped_gemm_half: ")
    assert fake_hip.launches == []


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(k=96), "k is 96; multiples of 128 are accepted"),
        (dict(b="e2m1"), "e4m3 and e5m2 go with each other, e2m1 with itself"),
        (dict(a_scale_group=6), "groups of scales of a are 6 bytes apart; a multiple of 4"),
    ],
    ids=str,
)
def test_mx_refusals(fake_hip, arguments, text):
    assert mx(**(dict(m=4, n=4, k=128) | arguments)) == _C.ERROR_ARGUMENT
    assert text in _C.last_error() and _C.last_error().startswith("grouped_gemm_mx: ")
    assert fake_hip.launches == []


def test_mx_on_gfx942_has_no_code_object(fake_hip):
    assert mx(4, 4, 128, device=GFX942) == _C.ERROR_NO_KERNEL
    assert "code objects of grouped_gemm_mx in" in _C.last_error()
