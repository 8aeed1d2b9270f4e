# SPDX-License-Identifier: MIT
"""Numbers of the HIP MX GEMM against the float64 product of the dequantised operands."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("turbo_gemm.pytorch._C", reason="turbo-gemm is not built (pip install -e)")

from turbo_core import UnsupportedError  # noqa: E402
from turbo_gemm.pytorch.kernels import native  # noqa: E402
from turbo_testing.gemm_calls import mx_call  # noqa: E402
from turbo_testing.native_device import native_device  # noqa: E402
from turbo_testing.quantised_gemm import check_product, mx_operand  # noqa: E402

pytestmark = pytest.mark.simulated

PAIRS = [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2"), ("e2m1", "e2m1")]
EDGES = [(1, 1), (1, 129), (31, 100), (100, 31), (129, 257), (257, 1), (256, 256), (300, 513)]
K = [128, 256, 384, 640, 1024]


@pytest.fixture(scope="module", autouse=True)
def device():
    with native_device("gfx950") as found:
        reason = native.why_not_device(found)
        assert reason is None, reason
        yield found


def multiply(a, b, forms, device, **options):
    options = dict(out_dtype=torch.float32) | options
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    tensors = (t.to(device) for t in (a.payload, a.scale, b.payload, b.scale))
    tile = moved.pop("tile", "chosen")
    return native.run(mx_call(*tensors, forms, **moved), tile=tile)


@pytest.mark.parametrize("tile", ["large", "small"])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("forms", PAIRS, ids="-".join)
def test_formats_and_outputs(device, forms, out_dtype, tile):
    a, b = mx_operand(40, 384, forms[0]), mx_operand(72, 384, forms[1])
    check_product(multiply(a, b, forms, device, out_dtype=out_dtype, tile=tile), a, b)


@pytest.mark.parametrize("tile", ["large", "small"])
@pytest.mark.parametrize("m, n", EDGES)
@pytest.mark.parametrize("form", ["e4m3", "e2m1"])
def test_edges(device, form, m, n, tile):
    """k = 384 of e2m1 ends with half a stage."""
    a, b = mx_operand(m, 384, form), mx_operand(n, 384, form)
    check_product(multiply(a, b, (form, form), device, out_dtype=torch.bfloat16, tile=tile), a, b)


@pytest.mark.parametrize("tile", ["large", "small"])
@pytest.mark.parametrize("k", K)
@pytest.mark.parametrize("form", ["e5m2", "e2m1"])
def test_contractions(device, form, k, tile):
    a, b = mx_operand(130, k, form), mx_operand(65, k, form)
    check_product(multiply(a, b, (form, form), device, tile=tile), a, b)


def test_the_tile_that_is_chosen(device):
    """More tiles than there are work-groups at a time: the remapping over XCDs and bands covers C once."""
    for m, n in ((2305, 1153), (200, 3000)):
        a, b = mx_operand(m, 128, "e2m1"), mx_operand(n, 128, "e2m1")
        check_product(multiply(a, b, ("e2m1", "e2m1"), device, out_dtype=torch.bfloat16), a, b)


@pytest.mark.parametrize("m, n", [(33, 64), (33, 65)])
@pytest.mark.parametrize("bias_dtype", [None, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_epilogue(device, accumulate, out_dtype, bias_dtype, m, n):
    """An odd n takes the stores of single elements."""
    a, b = mx_operand(m, 128, "e4m3"), mx_operand(n, 128, "e4m3")
    bias = None if bias_dtype is None else torch.randn(n).to(bias_dtype)
    before = torch.randn(m, n).to(out_dtype) if accumulate else None
    out = before.to(device, copy=True) if accumulate else None
    found = multiply(a, b, ("e4m3", "e4m3"), device, out_dtype=out_dtype, bias=bias, out=out)
    assert not accumulate or found.data_ptr() == out.data_ptr()
    check_product(found, a, b, bias=bias, before=before)


@pytest.mark.parametrize("form", ["e4m3", "e2m1"])
def test_extreme_scales(device, form):
    """The whole range of E8M0: 2^-127 to 2^127, whose products are within float32 or are 0."""
    a, b = mx_operand(20, 256, form, 0, 20), mx_operand(24, 256, form, 235, 255)
    check_product(multiply(a, b, (form, form), device), a, b)
    c = multiply(a, mx_operand(24, 256, form, 0, 20), (form, form), device)
    assert (c == 0).all(), "beyond the smallest float32"


@pytest.mark.parametrize("form, k", [("e4m3", 256), ("e2m1", 256), ("e2m1", 384), ("e2m1", 128)])
@pytest.mark.parametrize("tile", ["large", "small"])
def test_a_nan_scale_stays_in_its_row_and_column(device, tile, form, k):
    """Also beside a row's last half stage, where the next row's first scales follow in memory."""
    a, b = mx_operand(40, k, form), mx_operand(50, k, form)
    a.scale[7, 0], a.scale[31, -1], b.scale[3, 1], b.scale[49, 0] = 255, 255, 255, 255
    c = multiply(a, b, (form, form), device, tile=tile).cpu()
    nan = torch.zeros(40, 50, dtype=torch.bool)
    nan[[7, 31]] = True
    nan[:, [3, 49]] = True
    assert torch.equal(c.isnan(), nan)
    clean = [r for r in range(40) if r not in (7, 31)], [r for r in range(50) if r not in (3, 49)]
    a, b = (type(x)(*(t.view(torch.uint8)[rows] if t.element_size() == 1 else t[rows] for t in x))
            for x, rows in zip((a, b), clean))  # fmt: skip
    check_product(c[clean[0]][:, clean[1]], a, b)


def test_nan_and_infinity_of_the_payload(device):
    a, b = mx_operand(20, 128, "e5m2"), mx_operand(24, 128, "e4m3")
    a.payload.view(torch.uint8)[3, 5], a.payload.view(torch.uint8)[4, 5] = 0x7E, 0x7C  # NaN, inf
    b.payload.view(torch.uint8)[9, 77] = 0x7F  # NaN
    c = multiply(a, b, ("e5m2", "e4m3"), device).cpu()
    assert c[3].isnan().all() and c[:, 9].isnan().all()
    assert not c[4].isfinite().any()
    others = c[[r for r in range(20) if r not in (3, 4)]][:, [r for r in range(24) if r != 9]]
    assert others.isfinite().all()


def test_strided_operands_and_output(device):
    """Rows apart (read in place), other layouts (copied), and nothing written beside C."""
    a, b = mx_operand(70, 256, "e4m3"), mx_operand(90, 256, "e4m3")

    def apart(x, gap):  # rows with a gap of other bytes between them
        wide = torch.randint(0, 256, (x.shape[0], x.shape[1] + gap), dtype=torch.uint8)
        wide[:, : x.shape[1]] = x.view(torch.uint8)
        return wide.view(x.dtype)[:, : x.shape[1]]

    def transposed(x):
        return x.view(torch.uint8).t().contiguous().view(x.dtype).t()

    for change in (lambda x: apart(x, 16), lambda x: apart(x, 4), lambda x: apart(x, 3), transposed):
        x, y = (type(v)(change(v.payload), change(v.scale), v.value) for v in (a, b))
        around = torch.full((72, 96), 7.0, dtype=torch.bfloat16, device=device)
        for view in (around[1:71, 3:93], around[:70, :90]):
            around.fill_(7.0)
            view.zero_()
            multiply(x, y, ("e4m3", "e4m3"), device, out_dtype=torch.bfloat16, out=view)
            check_product(view, a, b)
            view.fill_(7.0)
            assert (around == 7.0).all(), "wrote beside C"
    column_major = torch.randn(90, 70, device=device).t()
    before = column_major.clone()
    multiply(a, b, ("e4m3", "e4m3"), device, out=column_major)
    check_product(column_major, a, b, before=before.cpu())


def test_equal_inputs_give_equal_bits(device):
    a, b = mx_operand(300, 640, "e2m1"), mx_operand(260, 640, "e2m1")
    first = multiply(a, b, ("e2m1", "e2m1"), device, tile="large")
    assert torch.equal(first, multiply(a, b, ("e2m1", "e2m1"), device, tile="large"))


def test_refusals(device):
    a, b = mx_operand(4, 128, "e4m3"), mx_operand(4, 128, "e2m1")
    with pytest.raises(UnsupportedError, match="e2m1 with itself"):
        multiply(a, b, ("e4m3", "e2m1"), device)
    short = a._replace(payload=a.payload[:, :96], scale=a.scale[:, :3])
    with pytest.raises(UnsupportedError, match="k is 96; multiples of 128"):
        multiply(short, short, ("e4m3", "e4m3"), device)
    with pytest.raises(UnsupportedError, match="tile='huge'"):
        multiply(a, a, ("e4m3", "e4m3"), device, tile="huge")
