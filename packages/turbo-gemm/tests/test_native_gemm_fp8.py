# SPDX-License-Identifier: MIT
"""Numbers of the HIP FP8 GEMM, FNUZ on gfx942 and OCP on gfx950, against the float64 product."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("turbo_gemm.pytorch._C", reason="turbo-gemm is not built (pip install -e)")

from turbo_core import UnsupportedError  # noqa: E402
from turbo_core.low_precision import ScalingGranularity  # noqa: E402
from turbo_gemm.pytorch.kernels import native  # noqa: E402
from turbo_testing.gemm_calls import fp8_call  # noqa: E402
from turbo_testing.native_device import native_device  # noqa: E402
from turbo_testing.quantised_gemm import FNUZ, FP8, check_product, fp8_operand  # noqa: E402

pytestmark = pytest.mark.simulated

PAIRS = [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2")]
EDGES = [(1, 1), (1, 129), (31, 100), (100, 31), (129, 257), (257, 1), (256, 256), (300, 200)]
GRANULARITY = {
    "tensor": ScalingGranularity.TENSORWISE,
    "row": ScalingGranularity.ROWWISE,
    "block": ScalingGranularity.BLOCKWISE,
    "block_tile": ScalingGranularity.BLOCKWISE,
}
each_kind = pytest.mark.parametrize("kind", GRANULARITY)
each_tile = pytest.mark.parametrize("tile", ["large", "small"])


class Native(NamedTuple):
    device: torch.device
    types: dict[str, torch.dtype]  # of the matrix units
    others: dict[str, torch.dtype]


@pytest.fixture(scope="module", params=["gfx942", "gfx950"])
def run(request):
    with native_device(request.param) as device:
        reason = native.why_not_device(device)
        assert reason is None, reason
        yield Native(device, *((FNUZ, FP8) if request.param == "gfx942" else (FP8, FNUZ)))


def operands(run, m, n, k, kind, types=("e4m3", "e4m3")):
    """A [m, k] and B [n, k]; "block_tile": with scales of 128 x 128 of B."""
    of, tiles = kind.split("_")[0], kind == "block_tile"
    return fp8_operand(m, k, run.types[types[0]], of), fp8_operand(n, k, run.types[types[1]], of, tiles)


def multiply(run, a, b, kind, trans_a=False, trans_b=True, **options):
    """a and b have K last; the flags say how they are stored and passed."""

    def passed(tensor, transpose):
        if not transpose or tensor.dim() < 2:
            return tensor.to(run.device)
        return tensor.t().contiguous().to(run.device)

    options = dict(out_dtype=torch.float32, b_tiles=kind == "block_tile") | options
    moved = {k: v.to(run.device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    tile = moved.pop("tile", "chosen")
    call = fp8_call(
        *(passed(t, trans_a) for t in a[:2]),
        *(passed(t, not trans_b) for t in b[:2]),
        GRANULARITY[kind],
        trans_a,
        trans_b,
        128 if GRANULARITY[kind] is ScalingGranularity.BLOCKWISE else 0,
        **moved,
    )
    return native.run(call, tile=tile)


@each_tile
@each_kind
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
def test_types_and_outputs(run, types, out_dtype, kind, tile):
    a, b = operands(run, 40, 72, 272, kind, types)
    check_product(multiply(run, a, b, kind, out_dtype=out_dtype, tile=tile), a, b)


@each_tile
@each_kind
@pytest.mark.parametrize("m, n", EDGES)
def test_edges(run, m, n, kind, tile):
    a, b = operands(run, m, n, 272, kind)
    check_product(multiply(run, a, b, kind, out_dtype=torch.bfloat16, tile=tile), a, b)


@each_tile
@each_kind
@pytest.mark.parametrize("k", [1, 15, 16, 48, 64, 100, 128, 144, 192, 256, 320, 384, 1000])
def test_contractions(run, k, kind, tile):
    """Whole and cut stages, an odd and an even number of them, and a K that is padded."""
    a, b = operands(run, 130, 65, k, kind)
    check_product(multiply(run, a, b, kind, tile=tile), a, b)


@each_tile
@pytest.mark.parametrize("a_tiles", [False, True])
@pytest.mark.parametrize("b_tiles", [False, True])
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_blocks_and_layouts(run, trans_a, trans_b, a_tiles, b_tiles, tile):
    a = fp8_operand(300, 400, run.types["e4m3"], "block", a_tiles)
    b = fp8_operand(270, 400, run.types["e5m2"], "block", b_tiles)
    options = dict(trans_a=trans_a, trans_b=trans_b, a_tiles=a_tiles, b_tiles=b_tiles, tile=tile)
    check_product(multiply(run, a, b, "block", **options), a, b)


@each_kind
@pytest.mark.parametrize("trans_a, trans_b", [(False, False), (True, False), (True, True)])
def test_layouts(run, trans_a, trans_b, kind):
    a, b = operands(run, 50, 70, 100, kind)
    check_product(multiply(run, a, b, kind, trans_a=trans_a, trans_b=trans_b), a, b)


def test_the_tile_that_is_chosen(run):
    for m, n in ((2305, 1153), (200, 3000)):
        a, b = (fp8_operand(rows, 64, run.types["e4m3"], "row") for rows in (m, n))
        check_product(multiply(run, a, b, "row", out_dtype=torch.bfloat16), a, b)


@each_kind
@pytest.mark.parametrize("n", [64, 65])
@pytest.mark.parametrize("bias_dtype", [None, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_epilogue(run, accumulate, out_dtype, bias_dtype, n, kind):
    m = 33
    a, b = operands(run, m, n, 128, kind)
    bias = None if bias_dtype is None else torch.randn(n).to(bias_dtype)
    before = torch.randn(m, n).to(out_dtype) if accumulate else None
    out = before.to(run.device, copy=True) if accumulate else None
    found = multiply(run, a, b, kind, out_dtype=out_dtype, bias=bias, out=out)
    assert not accumulate or found.data_ptr() == out.data_ptr()
    check_product(found, a, b, bias=bias, before=before)


@each_tile
@each_kind
def test_nan_stays_in_its_row_and_column(run, kind, tile):
    """In the payload, and in a scale of a row or a block; also where K is cut and the next row follows in memory."""
    a, b = operands(run, 40, 50, 144, kind)
    code = 0x80 if run.types is FNUZ else 0x7F
    a.payload.view(torch.uint8)[7, 3], b.payload.view(torch.uint8)[9, 0] = code, code
    rows, columns = [7], [9]
    if kind != "tensor":
        a.scale[31, -1] = math.nan
        rows.append(31)
    if kind in ("row", "block"):
        b.scale[3, 0] = math.nan
        columns.append(3)
    c = multiply(run, a, b, kind, tile=tile).cpu()
    nan = torch.zeros(40, 50, dtype=torch.bool)
    nan[rows] = True
    nan[:, columns] = True
    assert torch.equal(c.isnan(), nan)


def test_strided_operands_and_output(run):
    a, b = (fp8_operand(rows, 144, run.types["e4m3"], "block") for rows in (70, 90))

    def apart(x, gap):
        bytes_ = x.view(torch.uint8)
        wide = torch.randint(0, 256, (bytes_.shape[0], bytes_.shape[1] + gap), dtype=torch.uint8)
        wide[:, : bytes_.shape[1]] = bytes_
        return wide.view(x.dtype)[:, : x.shape[1]]

    for change in (lambda x: apart(x, 16), lambda x: apart(x, 4 if x.element_size() == 4 else 3)):
        x, y = (type(v)(change(v.payload), change(v.scale), v.value) for v in (a, b))
        around = torch.full((72, 96), 7.0, dtype=torch.bfloat16, device=run.device)
        for view in (around[1:71, 3:93], around[:70, :90]):
            around.fill_(7.0)
            view.zero_()
            multiply(run, x, y, "block", out_dtype=torch.bfloat16, out=view)
            check_product(view, a, b)
            view.fill_(7.0)
            assert (around == 7.0).all(), "wrote beside C"
    column_major = torch.randn(90, 70, device=run.device).t()
    before = column_major.clone()
    multiply(run, a, b, "block", out=column_major)
    check_product(column_major, a, b, before=before.cpu())


def test_equal_inputs_give_equal_bits(run):
    a, b = (fp8_operand(rows, 400, run.types["e4m3"], "block") for rows in (300, 260))
    first = multiply(run, a, b, "block", tile="large")
    assert torch.equal(first, multiply(run, a, b, "block", tile="large"))


def test_refusals(run):
    a, b = (fp8_operand(4, 128, run.types["e4m3"], "block") for _ in range(2))
    other = fp8_operand(4, 128, run.others["e4m3"], "block")
    with pytest.raises(UnsupportedError, match="dtype of b is .*; matrix units of gfx9.. take the (FNUZ|OCP) types"):
        multiply(run, a, other, "block")
    with pytest.raises(UnsupportedError, match=r"b.dtype=torch.uint8"):
        multiply(run, a, b._replace(payload=b.payload.view(torch.uint8)), "block")
    with pytest.raises(UnsupportedError, match="out_dtype=torch.float64"):
        multiply(run, a, b, "block", out_dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="bias.dtype=torch.int32"):
        multiply(run, a, b, "block", bias=torch.zeros(4, dtype=torch.int32))
