# SPDX-License-Identifier: MIT
"""The HIP kernels against the TORCH reference, bit for bit, where their own choices could go wrong.

Each kernel of the row table and beyond it, both sides of every tile edge, alignments that decide between wide and
single accesses, every number that two bytes hold and every code of every format. What all backends must do is in
test_quantize.py, which a simulator runs on these kernels too.

Needs a gfx942 or gfx950: a card, or a simulator that is active (it names its library in TURBO_HIP_LIBRARY and makes CPU
tensors stand for its architecture). Elsewhere the tests are skipped with the native library's own reason.
"""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("turbo_quant.pytorch._C", reason="turbo-quant is not built (pip install -e)")

from turbo_quant.calls import (  # noqa: E402
    DequantizeFloatCall,
    DequantizeMxCall,
    MxDirection,
    QuantizeFloatCall,
    QuantizeMxCall,
)
from turbo_quant.pytorch.kernels import native, reference  # noqa: E402
from turbo_testing.cases import load  # noqa: E402

pytestmark = pytest.mark.simulated

cases = load("turbo-quant")
TENSORWISE, ROWWISE, BLOCKWISE = cases.TENSORWISE, cases.ROWWISE, cases.BLOCKWISE
E4M3, E5M2, E4M3_FNUZ, E5M2_FNUZ = cases.FP8_DTYPES
every_dtype = pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
every_format = pytest.mark.parametrize("format", cases.MX_FORMATS)
every_fp8 = pytest.mark.parametrize("fp8", cases.FP8_DTYPES, ids=str)


@pytest.fixture
def native_device() -> torch.device:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.zeros((1, 1, 1), device=device)
    reason = native.why_not(QuantizeFloatCall(x, E4M3, ROWWISE, 0, True, False))
    if reason is not None and os.environ.get("TURBO_HIP_LIBRARY"):
        pytest.fail(f"a simulator was asked for, but: {reason}")
    if reason is not None:
        pytest.skip(reason)
    return device


def check(call):
    assert native.why_not(call) is None
    cases.assert_same_bits(native.run(call), reference.run(call))


# --- FP8 --------------------------------------------------------------------------------------------------------------

# bytes of a row: the last that each line of the table takes, one access less, and the loops
ROW_BYTES = [16, 1008, 1024, 4080, 4096, 16384, 65536, 65552]


@every_dtype
@pytest.mark.parametrize("row_bytes", ROW_BYTES)
def test_rows_of_each_kernel_of_the_table(native_device, poisoned_allocations, dtype, row_bytes):
    x = cases.draw("random", (1, 3, row_bytes // dtype.itemsize), dtype, native_device)
    for fp8 in (E4M3, E5M2_FNUZ):
        check(QuantizeFloatCall(x, fp8, ROWWISE, 0, True, False))


@every_fp8
@every_dtype
def test_more_rows_than_waves_of_a_work_group(native_device, dtype, fp8):
    x = cases.draw("random", (3, 7, 64), dtype, native_device)
    check(QuantizeFloatCall(x, fp8, ROWWISE, 0, True, True))


def unaligned(x, kind):
    """The same values where rows do not all begin on 16 bytes, or do."""
    B, R, C = x.shape
    gap = {"offset": 0, "row_stride": 1, "aligned_row_stride": 16, "batch_stride": 0}[kind]
    start = 1 if kind == "offset" else 0
    extra = 3 if kind == "batch_stride" else 0
    memory = torch.full((B * (R * (C + gap) + extra) + start,), torch.nan, dtype=x.dtype, device=x.device)
    view = memory.as_strided((B, R, C), (R * (C + gap) + extra, C + gap, 1), start)
    return view.copy_(x)


@pytest.mark.parametrize("kind", ["offset", "row_stride", "aligned_row_stride", "batch_stride"])
def test_rows_that_begin_anywhere(native_device, kind):
    for dtype in (torch.bfloat16, torch.float32):
        x = unaligned(cases.draw("random", (2, 33, 144), dtype, native_device), kind)
        check(QuantizeFloatCall(x, E4M3, ROWWISE, 0, True, True))
        check(QuantizeFloatCall(x, E4M3, BLOCKWISE, 128, True, True))
        check(QuantizeFloatCall(x, E4M3, TENSORWISE, 0, True, False))
        check(QuantizeMxCall(x, "e4m3", MxDirection(), MxDirection()))


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 127, 128, 129, 136, 257])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 127, 128, 129])
def test_edges_of_tiles(native_device, poisoned_allocations, rows, columns):
    x = cases.draw("random", (1, rows, columns), torch.bfloat16, native_device)
    check(QuantizeFloatCall(x, E5M2, BLOCKWISE, 128, True, True))
    check(QuantizeFloatCall(x, E4M3_FNUZ, BLOCKWISE, 128, True, False, True))
    check(QuantizeMxCall(x, "e2m1", MxDirection(), MxDirection(tile=True)))
    check(QuantizeMxCall(x.float(), "e4m3", MxDirection(tile=True), MxDirection(tile=True)))


def test_a_tensor_of_more_tiles_than_work_groups(native_device):
    """Both passes then loop; the largest value sits in the last tile of all."""
    x = torch.full((4200, 1, 1), 0.5, dtype=torch.bfloat16, device=native_device)
    x[-1] = 100.0
    check(QuantizeFloatCall(x, E4M3, TENSORWISE, 0, True, False))


def every_two_byte_number(dtype, device, limit):
    """[1, n, 512]: all finite numbers of ``dtype`` up to ``limit``, which each row holds, so that its scale is 1."""
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[x.abs().float() <= limit]
    rows = -(-x.numel() // 511)
    x = torch.nn.functional.pad(x, (0, rows * 511 - x.numel())).view(1, rows, 511)
    return torch.nn.functional.pad(x, (0, 1), value=limit).to(device)


@every_fp8
def test_every_number_is_rounded_right(native_device, fp8):
    limit = torch.finfo(fp8).max
    x = every_two_byte_number(torch.bfloat16, native_device, limit)
    call = QuantizeFloatCall(x, fp8, ROWWISE, 0, True, False)
    out = native.run(call)
    assert (out.row_scale_inv == 1).all()
    cases.assert_same_bits(out.row, x.to(fp8))
    # between two neighbours of bf16: just below, at and just above the middle of two codes
    wide = x.float()
    for step in (1 - 2.0**-24, 1 + 2.0**-23):
        y = (wide * step).clamp(-limit, limit)
        y[..., -1] = limit
        cases.assert_same_bits(native.run(call._replace(x=y)).row, y.to(fp8))


@every_fp8
@every_dtype
def test_every_code_is_read_right(native_device, fp8, dtype):
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(fp8).view(1, 2, 128).to(native_device)
    for scale in (1.0, 2.0**-126, 3e37, torch.nan):
        scale_inv = torch.tensor(scale, device=native_device)
        check(DequantizeFloatCall(codes, scale_inv, TENSORWISE, 0, 2, dtype))


SCALES = [  # granularity, block, axis
    (TENSORWISE, 0, 2), (ROWWISE, 0, 2), (ROWWISE, 0, 1), (BLOCKWISE, 128, 2), (BLOCKWISE, 128, 1), (BLOCKWISE, 128, 0),
    (BLOCKWISE, 20, 2), (BLOCKWISE, 20, 1), (BLOCKWISE, 20, 0), (BLOCKWISE, 1, 0),
]  # fmt: skip


@pytest.mark.parametrize("granularity, block, axis", SCALES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 130, 72), (2, 33, 137)], ids=str)
def test_dequantize(native_device, poisoned_allocations, granularity, block, axis, shape):
    B, R, C = shape
    rows = 1 if axis == 2 else block or R
    columns = 1 if axis == 1 else block or C
    scale_shape = () if granularity is TENSORWISE else (B, -(-R // rows), -(-C // columns))
    scale_inv = torch.rand(scale_shape, device=native_device) + 0.5
    q = cases.draw("random", shape, torch.float32, native_device).to(E4M3)
    for dtype in cases.DTYPES:
        check(DequantizeFloatCall(q, scale_inv, granularity, block, axis, dtype))
    transposed = q.view(torch.uint8).transpose(1, 2).contiguous().transpose(1, 2).view(E4M3)
    check(DequantizeFloatCall(transposed, scale_inv, granularity, block, axis, torch.bfloat16))


# --- MX ---------------------------------------------------------------------------------------------------------------


@every_format
def test_mx_rounds_every_number_right(native_device, format):
    """The largest value of the format is in each block, so that its byte is 127 and v = x."""
    limit = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}[format]
    x = every_two_byte_number(torch.bfloat16, native_device, limit).view(1, -1, 16)
    x = torch.nn.functional.pad(x, (0, 16), value=limit)
    call = QuantizeMxCall(x, format, MxDirection(), MxDirection(stochastic=True), 0, torch.tensor([5, 6]))
    call = call._replace(rng=call.rng.to(native_device))
    assert (native.run(call).row_scale.view(torch.uint8)[..., 0] == 127).all()
    check(call)
    for step in (1 - 2.0**-24, 1 + 2.0**-23):
        check(call._replace(x=(x.float() * step).clamp(-limit, limit), column=None))


@every_format
@every_dtype
def test_mx_of_every_direction(native_device, poisoned_allocations, format, dtype):
    x = cases.draw("random", (2, 48, 160), dtype, native_device)
    rng = torch.tensor([-3, 1 << 40], device=native_device)
    plain, tile = MxDirection(), MxDirection(tile=True)
    moved = MxDirection(rht=True, stochastic=True, shuffle_scale=True, shuffle_out=True)
    tile_moved = MxDirection(tile=True, stochastic=True, shuffle_scale=True)
    for row, column in ((plain, None), (None, plain), (tile, moved), (moved, tile), (moved, moved), (tile_moved, tile)):
        check(QuantizeMxCall(x, format, row, column, 0xA53C, rng))


@pytest.mark.parametrize("row", [None, MxDirection(), MxDirection(tile=True), MxDirection(rht=True)], ids=str)
@pytest.mark.parametrize("column", [MxDirection(tile=True), MxDirection(rht=True)], ids=str)
@pytest.mark.parametrize("lens", [(130, 0, 1, 69), (0, 0), (200,), (3, 128)], ids=str)
def test_groups(native_device, poisoned_allocations, row, column, lens):
    """200 rows; those of no group are in the row copy and not in the column copy."""
    from turbo_quant.pytorch.kernels.grouping import pad_groups

    lengths = torch.tensor(lens, device=native_device)
    offs = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    x = cases.draw("random", (1, 200, 72), torch.bfloat16, native_device)
    padded = pad_groups(lengths, 128)[1]
    check(QuantizeMxCall(x, "e2m1", row, column, 0x8001, None, offs, padded))
    check(QuantizeFloatCall(x, E4M3, BLOCKWISE, 128, row is not None, True, False, offs, padded))


@every_format
@every_dtype
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("rht", [False, True])
def test_dequantize_mx(native_device, poisoned_allocations, format, dtype, transpose, rht):
    """All codes, with bytes at both ends of their range, the last of them NaN; sizes that end within a piece."""
    bytes_ = torch.tensor([127, 0, 1, 254, 255, 100, 130, 120], dtype=torch.uint8, device=native_device)
    scale = bytes_.repeat(2, 40, 1)
    width = 128 if format == "e2m1" else 256
    q = torch.arange(2 * 40 * width, dtype=torch.int32, device=native_device).view(2, 40, width)
    q = (q * 7 + q // 256).to(torch.uint8)
    strided = torch.stack((q, q), dim=-1)[..., 0]
    for payload in (q, strided):
        for size in (256, 250, 16):
            call = DequantizeMxCall(payload, scale, format, size, transpose, rht, 0x5AA5, dtype)
            check(call)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_other_block_sizes_are_refused(native_device):
    call = QuantizeFloatCall(torch.zeros((1, 64, 64), device=native_device), E4M3, BLOCKWISE, 96, True, False)
    assert native.why_not(call) == "block_size=96; the HIP kernels have blocks of 128"


def test_too_many_tiles_are_refused(native_device):
    x = torch.zeros(1, device=native_device).expand(2**24 + 1, 1, 1)
    reason = native.why_not(QuantizeMxCall(x, "e4m3", MxDirection(), None))
    assert reason == "a tensor of [16777217, 1, 1]; up to 2**31 - 1 a dimension and 2**24 tiles are accepted"
