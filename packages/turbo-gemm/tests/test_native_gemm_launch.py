# SPDX-License-Identifier: MIT
"""What the native library launches (kernel, grid, argument bytes, as a HIP library recorded them) and refuses."""

from __future__ import annotations

import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
_C = pytest.importorskip("turbo_gemm.pytorch._C", reason="turbo-gemm is not built (pip install -e)")

from turbo_core import UnsupportedError, simulated_arch  # noqa: E402
from turbo_core.low_precision import ScalingGranularity  # noqa: E402
from turbo_gemm.pytorch.kernels import native  # noqa: E402
from turbo_testing.gemm_calls import fp8_call  # noqa: E402

A, B, A_SCALE, B_SCALE, C, BIAS = (0x10000 * i for i in range(1, 7))
STREAM = 0x5EA
TENSORWISE = ScalingGranularity.TENSORWISE
GFX942, GFX950 = 0, 1  # devices of the fake library
DTYPES = {"fp32": _C.FLOAT32, "fp16": _C.FLOAT16, "bf16": _C.BFLOAT16}
FORMATS = _C.MX_FORMATS
OCP = {"e4m3": _C.FLOAT8_E4M3, "e5m2": _C.FLOAT8_E5M2}
FNUZ = {"e4m3": _C.FLOAT8_E4M3_FNUZ, "e5m2": _C.FLOAT8_E5M2_FNUZ}
TILES = {"chosen": _C.TILE_CHOSEN, "large": _C.TILE_LARGE, "small": _C.TILE_SMALL}


@pytest.fixture(autouse=True)
def forget_hip(fake_hip):
    native.reset()
    _C.reset()
    yield
    native.reset()
    _C.reset()


def operand(data, stride, scale, scale_stride, step=0, rows=1):
    return dict(data=data, stride=stride, scale=scale, scale_stride=scale_stride, scale_step=step, scale_rows=rows)


def output(data, stride, bias, dtype, bias_dtype=0):
    return dict(data=data, stride=stride, bias=bias, dtype=dtype, bias_dtype=bias_dtype, accumulate=False)


def gemm_mx(m, n, k, a="e4m3", b="e4m3", out="bf16", tile="chosen", device=GFX950, **more):
    row_bytes = k // 2 if a == "e2m1" else k
    return _C.gemm_mx(
        device,
        STREAM,
        a=operand(more.get("a_data", A), more.get("a_stride", row_bytes), A_SCALE, more.get("scale_stride", k // 32)),
        b=operand(B, row_bytes, more.get("b_scale", B_SCALE), k // 32),
        c=output(more.get("c", C), more.get("c_stride", n), more.get("bias", 0), DTYPES.get(out, out)),
        m=m,
        n=n,
        k=k,
        format_a=FORMATS.get(a, a),
        format_b=FORMATS.get(b, b),
        tile=TILES.get(tile, tile),
        compute_units=more.get("compute_units", 256),
    )


def gemm_fp8(m, n, k, a="e4m3", b="e4m3", out="bf16", block=0, tile="chosen", device=GFX942, **more):
    types = more.get("types", FNUZ if device == GFX942 else OCP)
    return _C.gemm_fp8(
        device,
        STREAM,
        a=operand(
            A, more.get("a_stride", k), A_SCALE, more.get("scale_stride", 1), more.get("step", 0), more.get("rows", 1)
        ),
        b=operand(B, k, B_SCALE, 1, 0, more.get("b_rows", 1)),
        c=output(C, more.get("c_stride", n), more.get("bias", 0), DTYPES[out], more.get("bias_dtype", 0)),
        m=m,
        n=n,
        k=k,
        dtype_a=types[a],
        dtype_b=types[b],
        block=block,
        tile=TILES[tile],
        compute_units=more.get("compute_units", 256),
    )


# --- which kernel -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile, threads", [("256x256", 512), ("128x128", 256)])
@pytest.mark.parametrize("out", DTYPES)
@pytest.mark.parametrize(
    "a, b", [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2"), ("e2m1", "e2m1")]
)
def test_every_mx_kernel(fake_hip, a, b, out, tile, threads):
    wanted = "large" if tile == "256x256" else "small"
    assert gemm_mx(300, 200, 256, a, b, out, wanted) == _C.OK, _C.last_error()
    (launch,) = fake_hip.launches
    edge = int(tile[:3])
    groups = -(-300 // edge) * -(-200 // edge)
    assert (launch.kernel, launch.grid, launch.block) == (
        f"gemm_mx_{a}_{b}_{tile}",
        (groups, 1, 1),
        (threads, 1, 1),
    )
    assert (launch.lds, launch.stream, launch.device) == (0, STREAM, GFX950)


@pytest.mark.parametrize(
    "block, b_rows, kind, tile, wanted, threads",
    [
        (0, 1, "row", "256x256", "large", 512),
        (0, 1, "row", "128x128", "small", 256),
        (128, 1, "block_row", "256x128", "large", 512),
        (128, 1, "block_row", "128x128", "small", 512),
        (128, 128, "block_tile", "256x128", "large", 512),
        (128, 128, "block_tile", "128x128", "small", 512),
    ],
)
@pytest.mark.parametrize("out", DTYPES)
@pytest.mark.parametrize("a", OCP)
@pytest.mark.parametrize("b", OCP)
@pytest.mark.parametrize("device", [GFX942, GFX950])
def test_every_fp8_kernel(fake_hip, device, a, b, out, block, b_rows, kind, tile, wanted, threads):
    assert gemm_fp8(300, 200, 256, a, b, out, block, wanted, device, b_rows=b_rows) == _C.OK, _C.last_error()
    (launch,) = fake_hip.launches
    tile_m, tile_n = map(int, tile.split("x"))
    groups = -(-300 // tile_m) * -(-200 // tile_n)
    name = f"gemm_fp8_{kind}_{a}_{b}_{tile}"
    assert (launch.kernel, launch.grid, launch.block) == (name, (groups, 1, 1), (threads, 1, 1))
    assert launch.device == device


@pytest.mark.parametrize(
    "m, n, tile",
    [
        (1, 1, "128x128"),
        (1024, 1024, "128x128"),
        (2048, 2048, "128x128"),
        (4096, 4096, "256x256"),
        (8192, 1024, "128x128"),
        (8192, 7168, "256x256"),
        (16, 131072, "128x128"),
    ],
)
def test_the_tile_for_a_size(fake_hip, m, n, tile):
    assert gemm_mx(m, n, 128) == _C.OK, _C.last_error()
    assert fake_hip.launches[0].kernel.endswith(tile)


@pytest.mark.parametrize("units, tile", [(228, "128x128"), (256, "128x128"), (304, "256x256")])
def test_the_tile_depends_on_the_device(fake_hip, units, tile):
    """3840 x 5120 are 300 large tiles: one round of 304 compute units, two of fewer, in which small ones waste less."""
    assert gemm_mx(3840, 5120, 128, compute_units=units) == _C.OK, _C.last_error()
    assert fake_hip.launches[0].kernel.endswith(tile)


def test_the_devices_compute_units_count(fake_hip):
    """MI300X has 304 of them, MI355X 256."""
    a, b = (torch.zeros(rows, 128, dtype=torch.uint8) for rows in (3840, 5120))
    scale = torch.ones(())
    for arch, dtype, tile in (
        ("gfx942", torch.float8_e4m3fnuz, "256x256"),
        ("gfx950", torch.float8_e4m3fn, "128x128"),
    ):
        fake_hip.set_arch(0, arch)
        native.reset()
        with simulated_arch(arch):
            native.run(fp8_call(a.view(dtype), scale, b.view(dtype), scale, TENSORWISE, out_dtype=torch.bfloat16))
        assert fake_hip.launches[-1].kernel.endswith(tile), arch


def test_nothing_to_do_is_not_launched(fake_hip):
    for run in (gemm_mx, gemm_fp8):
        assert run(0, 5, 128) == _C.OK
        assert run(5, 0, 128) == _C.OK
    assert fake_hip.launches == []


# --- argument bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "out, n, c, vector",
    [("bf16", 264, C, 1), ("bf16", 260, C, 0), ("fp32", 260, C, 1), ("fp32", 262, C, 0), ("bf16", 264, C + 8, 0)],
)
def test_mx_arguments(fake_hip, out, n, c, vector):
    assert gemm_mx(300, n, 256, "e2m1", "e2m1", out, "large", a_stride=144, scale_stride=12, c=c) == _C.OK
    assert fake_hip.launches[0].arguments == struct.pack(
        "<6Q7q11i4x",
        *(A, B, A_SCALE, B_SCALE, 0, c),
        *(144, 128, 12, 8, 0, 0, n),
        *(300, n, 128),
        *(0, 0),
        *(DTYPES[out], 0, 0, vector),
        *(2, 2),
    )


def test_fp8_arguments(fake_hip):
    status = gemm_fp8(
        300, 256, 272, block=128, a_stride=288, scale_stride=7, step=3, rows=128, bias=BIAS, bias_dtype=2, c_stride=512
    )
    assert status == _C.OK, _C.last_error()
    assert fake_hip.launches[0].arguments == struct.pack(
        "<6Q7q11i4x",
        *(A, B, A_SCALE, B_SCALE, BIAS, C),
        *(288, 272, 7, 1, 3, 0, 512),
        *(300, 256, 272),
        *(7, 0),
        *(_C.BFLOAT16, _C.BFLOAT16, 0, 1),
        *(3, 2),
    )


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_tensors_become_addresses(fake_hip, arch):
    fake_hip.set_arch(0, arch)
    dtype = torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn
    a = torch.zeros(300, 256, dtype=dtype)[::2, 128:]  # [150, 128]
    b = torch.zeros(40, 128, dtype=dtype)
    a_scale, b_scale = torch.ones(2, 1), torch.ones(40, 1).expand(40, 1)
    out, bias = torch.zeros(150, 48)[:, :40], torch.zeros(40, dtype=torch.bfloat16)
    with simulated_arch(arch):
        blockwise = ScalingGranularity.BLOCKWISE
        call = fp8_call(a, a_scale, b, b_scale, blockwise, block_size=128, a_tiles=True, bias=bias, out=out)
        found = native.run(call)
    assert found is out
    assert fake_hip.launches[0].arguments == struct.pack(
        "<6Q7q11i4x",
        *(t.data_ptr() for t in (a, b, a_scale, b_scale, bias, out)),
        *(512, 128, 1, 1, 0, 0, 48),
        *(150, 40, 128),
        *(7, 0),
        *(_C.FLOAT32, _C.BFLOAT16, 1, 1),
        *(2, 1),
    )


def test_operands_that_cannot_be_read_in_place_are_copied(fake_hip):
    a = torch.randn(100, 40).to(torch.float8_e4m3fnuz)  # [K, M]: transposed, and K padded to 112
    b = torch.zeros(8, 100, dtype=torch.float8_e4m3fnuz)
    scale = torch.ones(())
    with simulated_arch("gfx942"):
        native.run(fp8_call(a, scale, b, scale, TENSORWISE, trans_a=True, out_dtype=torch.bfloat16))
    (launch,) = fake_hip.launches
    values = struct.unpack("<6Q7q11i4x", launch.arguments)
    assert values[0] != a.data_ptr() and values[1] != b.data_ptr()
    assert values[6:12] == (112, 112, 0, 0, 0, 0)
    assert values[13:16] == (40, 8, 112)


# --- may it run -------------------------------------------------------------------------------------------------------


def test_why_not(fake_hip):
    fnuz, ocp, fp4 = (
        torch.zeros(4, 128, dtype=dtype) for dtype in (torch.float8_e4m3fnuz, torch.float8_e4m3fn, torch.uint8)
    )
    scale, row = torch.ones(()), ScalingGranularity.ROWWISE
    mx, block = ScalingGranularity.MX_BLOCKWISE, ScalingGranularity.BLOCKWISE

    def why_not(a, b, granularity=row, block_size=0, **changes):
        call = fp8_call(a, scale, b, scale, granularity, block_size=block_size)
        return native.why_not(call._replace(**changes))

    assert why_not(ocp, ocp) == "the HIP kernels are for gfx942 and gfx950; cpu is cpu"
    with simulated_arch("gfx942"):
        assert why_not(fnuz, fnuz) is None
        assert why_not(fnuz, fnuz.view(torch.float8_e5m2fnuz), block, 128) is None
        refusal = "b is torch.float8_e4m3fn; matrix units of gfx942 take torch.float8_e4m3fnuz and"
        assert refusal in why_not(fnuz, ocp)
        assert why_not(fnuz, fnuz, block, 64) == "block_size=64; blocks of 128 are accepted"
        assert "which gfx942 does not have; gfx950 has them" in why_not(ocp, ocp, mx)
        assert "preshuffled for AITER" in why_not(fnuz, fnuz, preshuffled=True)
        long = fnuz[:1, :1].expand(4, 2**23)
        assert "K=8388608 or N=4 is beyond" in why_not(long, long)
    fake_hip.set_arch(0, "gfx950")
    with simulated_arch("gfx950"):
        assert why_not(ocp, ocp) is None
        assert why_not(ocp, ocp.view(torch.float8_e5m2), mx) is None
        assert why_not(fp4, fp4, mx) is None
        assert "e2m1 goes with e2m1, FP8 with FP8" in why_not(fp4, ocp, mx)
        assert "a is torch.float8_e4m3fnuz; matrix units of gfx950" in why_not(fnuz, ocp)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(m=4, n=4, k=96), "k is 96; multiples of 128 are accepted"),
        (dict(m=4, n=4, k=0), "k is 0"),
        (dict(m=-1, n=4, k=128), "m is -1"),
        (dict(m=4, n=2**31, k=128), "n is 2147483648"),
        (dict(m=4, n=4, k=128, a="e4m3", b="e2m1"), "e4m3 and e5m2 go with each other, e2m1 with itself"),
        (dict(m=4, n=4, k=128, a=7), "formats 7 and 0"),
        (dict(m=4, n=4, k=128, a_data=A + 8), "a is at 0x10008; a 16-byte aligned address"),
        (dict(m=4, n=4, k=128, a_data=0), "a is at (nil)"),
        (dict(m=4, n=4, k=128, a_stride=136), "rows of a are 128 bytes, 136 apart"),
        (dict(m=4, n=4, k=128, a_stride=112), "rows of a are 128 bytes, 112 apart"),
        (dict(m=4, n=4, k=2**23), "rows of a are 8388608 bytes"),
        (dict(m=4, n=4, k=128, b_scale=B_SCALE + 2), "scales of b are at 0x40002; a 4-byte aligned address"),
        (dict(m=4, n=4, k=128, scale_stride=6), "rows of scales of a are 6 bytes apart; a multiple of 4"),
        (dict(m=4, n=4, k=128, c_stride=3), "rows of c are 3 elements apart; at least n, 4, is needed"),
        (dict(m=4, n=4, k=128, c=C + 1), "c is at 0x50001"),
        (dict(m=4, n=4, k=128, c=0), "c is at (nil)"),
        (dict(m=4, n=4, k=128, out=5), "dtype of c is 5, no float type"),
        (dict(m=4, n=4, k=128, tile=3), "tile is 3"),
        (dict(m=4, n=4, k=128, compute_units=0), "compute_units is 0"),
        (dict(m=2**20, n=2**20, k=128), "16777216 tiles; at most 4194304"),
    ],
    ids=str,
)
def test_mx_refusals(fake_hip, arguments, text):
    assert gemm_mx(**arguments) == _C.ERROR_ARGUMENT
    assert text in _C.last_error() and _C.last_error().startswith("gemm_mx: ")
    assert fake_hip.launches == []


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(k=24), "k is 24; multiples of 16 are accepted"),
        (dict(block=64), "block is 64; 0 and 128 are accepted"),
        (dict(rows=128), "128 rows of a share a scale; 1 is accepted, 128 with blocks"),
        (dict(rows=2, block=128), "2 rows of a share a scale"),
        (dict(step=-1, block=128), "scales of a are -1 floats apart along k"),
        (dict(scale_stride=-4), "rows of scales of a are -16 bytes apart"),
        (dict(scale_stride=2**22), "rows of scales of a are 16777216 bytes apart"),
        (dict(types=OCP), "dtype of a is 3; matrix units of gfx942 take the FNUZ types"),
        (dict(types=FNUZ, device=GFX950), "matrix units of gfx950 take the OCP types"),
        (dict(types={"e4m3": 0, "e5m2": 0}), "dtype of a is 0"),
        (dict(bias=BIAS, bias_dtype=4), "dtype of bias is 4, no float type"),
    ],
    ids=str,
)
def test_fp8_refusals(fake_hip, arguments, text):
    assert gemm_fp8(**(dict(m=4, n=4, k=128) | arguments)) == _C.ERROR_ARGUMENT
    assert text in _C.last_error() and _C.last_error().startswith("gemm_fp8: ")
    assert fake_hip.launches == []


def test_mx_on_gfx942_has_no_code_object(fake_hip):
    assert gemm_mx(4, 4, 128, device=GFX942) == _C.ERROR_NO_KERNEL
    assert "device 0 is gfx942; code objects of gemm_mx in" in _C.last_error()
    assert _C.last_error().endswith("are for: gfx950")


def test_a_refused_tensor_is_named_before_anything_is_launched(fake_hip):
    a, scale = torch.zeros(4, 128, dtype=torch.float8_e4m3fnuz), torch.ones(())
    with simulated_arch("gfx942"), pytest.raises(UnsupportedError, match="gemm_fp8: dtype of b is 3"):
        native.run(fp8_call(a, scale, a.view(torch.float8_e4m3fn), scale, TENSORWISE))
    assert fake_hip.launches == []
