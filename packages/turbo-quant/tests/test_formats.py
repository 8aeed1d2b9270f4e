# SPDX-License-Identifier: MIT
"""Every code of every format, decoded and encoded, on every backend, against the definitions."""

import numpy as np
import pytest
import torch

import turbo_quant as tq
from turbo_core.low_precision import fp8_max
from turbo_quant.formats import MX_FORMATS, fp4_dtype, payload_dtype, scale_dtype
from turbo_testing import quant_oracle as oracle
from turbo_testing.cases import load

cases = load("turbo-quant")


def all_codes(dtype, device):
    return torch.arange(256, dtype=torch.uint8, device=device).view(dtype).view(1, 256)


@pytest.mark.parametrize("dtype", cases.FP8_DTYPES, ids=str)
@pytest.mark.parametrize("out_dtype", cases.DTYPES, ids=str)
def test_decode_fp8(backend, device, dtype, out_dtype):
    values = torch.from_numpy(oracle.FP8[str(dtype)[6:]].values).to(out_dtype)
    scale = torch.ones((), device=device)
    x = cases.run(tq.dequantize_fp8, all_codes(dtype, device), out_dtype, cases.TENSORWISE, scale_inv=scale)
    cases.assert_same_bits(x.float().view(256), values.float())
    scale = torch.full((1, 1), 3.0, device=device)
    x = cases.run(tq.dequantize_fp8, all_codes(dtype, device), torch.float32, cases.ROWWISE, axis=1, scale_inv=scale)
    cases.assert_same_bits(x.view(256), oracle.FP8[str(dtype)[6:]].values * np.float32(3))


@pytest.mark.parametrize("format", cases.MX_FORMATS)
@pytest.mark.parametrize("byte", [0, 1, 100, 126, 127, 128, 200, 254, 255])
def test_decode_mx(backend, device, format, byte):
    q = all_codes(payload_dtype(format), device)
    columns = 256 * MX_FORMATS[format].per_byte // 32
    scale = torch.full((1, columns), byte, dtype=torch.uint8, device=device)
    function = tq.dequantize_fp4 if format == "e2m1" else tq.dequantize_fp8
    with np.errstate(all="ignore"):
        expected = oracle.decode_mx(np.arange(256, dtype=np.uint8), format) * oracle.decode_e8m0(byte)
        expected = expected.astype(np.float32)
    for one in (scale, scale.view(scale_dtype())):
        x = cases.run(function, q, torch.float32, cases.MX_BLOCKWISE, axis=1, scale_inv=one)
        cases.assert_same_bits(x.view(-1), expected)


def test_decode_e8m0(backend, device):
    """All 256 scale bytes: 2^(byte - 127) down to the subnormal 2^-127; 255 is NaN."""
    one = torch.full((256, 128), 0x38, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    scale = torch.arange(256, dtype=torch.uint8, device=device)[:, None].expand(256, 4)
    x = cases.run(tq.dequantize_fp8, one, torch.float32, cases.MX_BLOCKWISE, axis=1, scale_inv=scale)
    expected = np.broadcast_to(oracle.decode_e8m0(np.arange(256))[:, None], (256, 128)).astype(np.float32)
    cases.assert_same_bits(x, np.ascontiguousarray(expected))


def around(levels):
    """Each level, the middles between neighbours, and the float32 next to each on both sides; both signs."""
    points = np.concatenate([levels, (levels[1:] + levels[:-1]) / 2]).astype(np.float32)
    points = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))])
    points = points[points <= levels[-1]]
    return torch.from_numpy(np.concatenate([points, -points]))


@pytest.mark.parametrize("dtype", cases.FP8_DTYPES, ids=str)
def test_encode_fp8(backend, device, dtype):
    """amax is the largest value, so the scale is 1 and each point is rounded as it is."""
    format = oracle.FP8[str(dtype)[6:]]
    points = around(format.values[: format.largest + 1].astype(np.float64))
    q, scale_inv = cases.run(tq.quantize_fp8, points.to(device), dtype, cases.TENSORWISE)
    assert scale_inv.item() == 1.0 and points.max().item() == fp8_max(dtype)
    cases.assert_same_bits(q, format.encode(points.numpy()))


@pytest.mark.parametrize("format", cases.MX_FORMATS)
@pytest.mark.parametrize("exponent", [-100, 0, 60])
def test_encode_mx(backend, device, format, exponent):
    """Each block holds the largest value times a power of two, so the byte is that power."""
    largest = MX_FORMATS[format].largest
    if format == "e2m1":
        levels = oracle.E2M1
    else:
        table = oracle.FP8["float8_e4m3fn" if format == "e4m3" else "float8_e5m2"]
        levels = table.values[: table.largest + 1].astype(np.float64)
    points = around(levels)
    blocks = torch.zeros(-(-len(points) // 31), 32)
    padded = torch.nn.functional.pad(points, (0, -len(points) % 31)).view(-1, 31)
    blocks[:, :31], blocks[:, 31] = padded, largest
    x = torch.zeros(blocks.shape[0], 128)
    x[:, 32:64] = blocks
    x = torch.ldexp(x, torch.tensor(exponent)).to(device)
    function, dtype = (tq.quantize_fp4, fp4_dtype()) if format == "e2m1" else (tq.quantize_fp8, payload_dtype(format))
    q, scale = cases.run(function, x, dtype, cases.MX_BLOCKWISE, axis=1)
    assert cases.as_bytes(scale)[:, 1].unique().tolist() == [127 + exponent]
    expected = torch.zeros(blocks.shape[0], 128, dtype=torch.float64)
    expected[:, 32:64] = blocks.double()
    cases.assert_same_bits(q, oracle.encode_mx(expected.numpy(), format))


@pytest.mark.parametrize("format", cases.MX_FORMATS)
def test_the_exponent_rounds_at_half_a_step_of_the_format(backend, device, format):
    """amax just under 2 - half an ulp stays in its binade (and saturates), from there on the next one is taken."""
    mantissa = MX_FORMATS[format].mantissa
    edge = 2 - 2.0 ** -(mantissa + 1)
    amax = torch.tensor([[1.0], [edge - 2**-20], [edge], [2 - 2**-20], [2.0]])
    x = torch.nn.functional.pad(amax, (0, 31)).to(device)
    function, dtype = (tq.quantize_fp4, fp4_dtype()) if format == "e2m1" else (tq.quantize_fp8, payload_dtype(format))
    _, scale = cases.run(function, x, dtype, cases.MX_BLOCKWISE, axis=1)
    exponents = cases.as_bytes(scale)[:, 0, 0].int() - 127 + MX_FORMATS[format].exponent_max
    assert exponents.tolist() == [0, 0, 1, 1, 1]
