# SPDX-License-Identifier: MIT
"""turbo-quant's Triton kernels on simulated devices: the bits of its TORCH backend, with native casts and without."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("turbo_quant", reason="turbo-quant is not installed")

from turbo_core.launch import start
from turbo_core.low_precision import ScalingGranularity as Scaling
from turbo_quant.calls import (
    DequantizeFloatCall,
    DequantizeMxCall,
    MxDirection,
    PadGroupsCall,
    QuantizeFloatCall,
    QuantizeMxCall,
)
from turbo_quant.developer import padded_groups
from turbo_quant.pytorch.kernels import grouping, reference

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
FORMATS = ("e4m3", "e5m2", "e2m1")
PLAIN, RANDOM = MxDirection(), MxDirection(rht=True, stochastic=True)
SHUFFLED = MxDirection(tile=True, shuffle_scale=True, shuffle_out=True)


@pytest.fixture
def x():
    x = torch.randn(2, 48, 150) * torch.exp2(torch.randint(-20, 10, (2, 48, 150)).float())
    x[0, 0, 0], x[1, -1, -1] = torch.nan, torch.inf
    x[0, 5] = 0
    return x.bfloat16()


def check(simulator, call):
    from turbo_quant.triton import quantize

    before = simulator.launches
    found, expected = quantize.run(call), reference.run(call)
    assert simulator.launches > before
    pairs = [(found, expected)] if isinstance(found, torch.Tensor) else list(zip(found, expected))
    for one, other in pairs:
        if other is None:
            assert one is None
        elif other.dtype.itemsize == 1:
            assert one.shape == other.shape and torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        else:
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_quantize_float(simulator, x, dtype):
    check(simulator, QuantizeFloatCall(x, dtype, Scaling.BLOCKWISE, 128, True, True))
    check(simulator, QuantizeFloatCall(x, dtype, Scaling.ROWWISE, 0, True, False))


def test_walks_and_tiles(simulator, x):
    dtype = torch.float8_e4m3fnuz if simulator.arch == "gfx942" else torch.float8_e4m3fn
    check(simulator, QuantizeFloatCall(x[:1, 1:], dtype, Scaling.TENSORWISE, 0, True, False))
    check(simulator, QuantizeFloatCall(x.mT, dtype, Scaling.TENSORWISE, 0, True, False))
    piece, amax = x[:1, 1:40], x[:1, 1:].float().abs().amax()
    check(simulator, QuantizeFloatCall(piece, dtype, Scaling.TENSORWISE, 0, True, False, amax=amax))
    tall = x.reshape(1, 96 * 3, 50)
    check(simulator, QuantizeFloatCall(tall, dtype, Scaling.ROWWISE, 0, False, True))
    check(simulator, QuantizeFloatCall(x, dtype, Scaling.BLOCKWISE, 128, True, False, True))


@pytest.mark.parametrize("format", FORMATS)
def test_quantize_mx(simulator, x, format):
    rng = torch.tensor([-1234567890123456789, 0x7FFFFFFF12345678])
    check(simulator, QuantizeMxCall(x, format, PLAIN, PLAIN))
    check(simulator, QuantizeMxCall(x[:1], format, RANDOM, RANDOM, 0xA5C3, rng))


@pytest.mark.parametrize("options", [(Scaling.TENSORWISE, 0), (Scaling.ROWWISE, 0), (Scaling.BLOCKWISE, 128),
                                     (Scaling.BLOCKWISE, 32, True)], ids=str)  # fmt: skip
def test_k_major(simulator, x, options):
    """Words of four rows, and single bytes where R is no multiple of 16."""
    dtype = torch.float8_e4m3fnuz if simulator.arch == "gfx942" else torch.float8_e4m3fn
    words = torch.cat([x, x, x[:, :, :20]], 2)
    for y in (words, words.transpose(1, 2), x[:1, :45, :70]):
        call = QuantizeFloatCall(y, dtype, *options[:2], True, True, *options[2:], k_major=True)
        check(simulator, call)


def test_shuffles(simulator, x):
    call = QuantizeMxCall(x[:, :, :144].float().contiguous(), "e2m1", SHUFFLED, SHUFFLED)
    check(simulator, call)


def test_groups(simulator, x):
    offs, padded = torch.tensor([0, 7, 7, 37]), torch.tensor([0, 128, 128, 256])
    one = x[:1]
    check(simulator, QuantizeMxCall(one, "e4m3", PLAIN, PLAIN, 0, None, offs, padded))
    call = QuantizeFloatCall(one, torch.float8_e5m2, Scaling.BLOCKWISE, 128, True, True, False, offs, padded)
    check(simulator, call)


@pytest.mark.parametrize("options, kind", [((Scaling.TENSORWISE, 0), "gaps"), ((Scaling.TENSORWISE, 0), "named"),
                                           ((Scaling.ROWWISE, 0), "gaps"), ((Scaling.BLOCKWISE, 32), "gaps"),
                                           ("e4m3", "gaps"), ("e2m1", "named")], ids=str)  # fmt: skip
def test_groups_k_major(simulator, x, options, kind):
    """Rows before, between and past groups hold NaN; or a group's rows are those that it names, some twice."""
    rows = x.reshape(1, 96, 150)[:, :90, :80].nan_to_num(posinf=1.0).repeat(1, 2, 1)
    if kind == "gaps":
        lens, offs, idx = torch.tensor([3, 0, 129], dtype=torch.int32), torch.tensor([2, 9, 9, 150]), None
        rows[:, [0, 1, *range(5, 9), *range(138, 180)]] = torch.nan
    else:
        lens, offs, idx = torch.tensor([130, 7]), None, torch.arange(140) * 7 % 75
    padded = padded_groups(lens, offs, rows.shape[1] if idx is None else 140)
    groups = {"group_offs": padded.offs, "group_offs_padded": padded.offs_padded, "row_idx": idx,
              "group_lens": None if offs is None else lens}  # fmt: skip
    if isinstance(options, str):
        check(simulator, QuantizeMxCall(rows, options, PLAIN, PLAIN, **groups))
        return
    dtype = torch.float8_e4m3fnuz if simulator.arch == "gfx942" else torch.float8_e4m3fn
    check(simulator, QuantizeFloatCall(rows, dtype, *options, True, True, k_major=True, **groups))


@pytest.mark.parametrize("given", [None, (-1, 5, 2, 90)])
def test_padded_groups(simulator, given):
    from turbo_quant.triton.padding_kernel import plan_pad_groups

    offs = None if given is None else torch.tensor(given)
    call = PadGroupsCall(torch.tensor([9, -1, 70], dtype=torch.int32), offs, 78, 32)
    for found, expected in zip(start(*plan_pad_groups(call)), grouping.padded_groups(*call)):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_dequantize_float(simulator, dtype):
    q = torch.randint(0, 256, (1, 48, 150), dtype=torch.uint8).view(dtype)
    call = DequantizeFloatCall(q, torch.randn(1, 48, 2), Scaling.BLOCKWISE, 128, 2, torch.bfloat16)
    check(simulator, call)


@pytest.mark.parametrize("format", FORMATS)
def test_dequantize_mx(simulator, x, format):
    made = reference.quantize_mx(QuantizeMxCall(x, format, MxDirection(rht=True), None, 0x123))
    scale = made.row_scale.view(torch.uint8).clone()
    scale[0, 1, 0], scale[0, 2, 1] = 0, 254
    call = DequantizeMxCall(made.row.view(torch.uint8), scale, format, 150, True, True, 0x123, torch.bfloat16)
    check(simulator, call)
