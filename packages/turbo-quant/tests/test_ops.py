# SPDX-License-Identifier: MIT
"""The public functions: any rank and axis, and back again; the field's bugs; zero sizes; more than 2**31 elements."""

import numpy as np
import pytest
import torch

import turbo_quant as tq
from turbo_core.low_precision import ScalingRecipe
from turbo_quant.formats import fp4_dtype
from turbo_testing.cases import load
from turbo_testing.metrics import compute_snr

cases = load("turbo-quant")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TENSORWISE, ROWWISE, BLOCKWISE, MX = cases.TENSORWISE, cases.ROWWISE, cases.BLOCKWISE, cases.MX_BLOCKWISE
RECIPES = cases.RECIPES


# --- ranks, axes, back again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_rowwise_along_every_axis(backend, device, rank):
    shape = (3, 5, 33, 7)[4 - rank :]
    x = torch.randn(shape, device=device)
    for axis in range(-rank, rank):
        q, scale_inv = cases.run(tq.quantize_fp8, x, E4M3, ROWWISE, axis=axis)
        amax = x.abs().amax(axis, keepdim=True)
        assert q.shape == x.shape and scale_inv.shape == amax.shape
        np.testing.assert_array_equal(scale_inv.cpu(), 1 / (np.float32(448) / amax.cpu().numpy()))
        y = cases.run(tq.dequantize_fp8, q, torch.float32, ROWWISE, axis=axis, scale_inv=scale_inv)
        cases.assert_same_bits(y, q.float() * scale_inv)


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4), (2, 3, 4, 5)], ids=str)
def test_tensorwise_of_every_rank(backend, device, shape):
    x = torch.randn(shape, device=device, dtype=torch.bfloat16)
    x = x.transpose(0, -1) if x.dim() > 1 else x
    q, scale_inv = cases.run(tq.quantize_fp8, x, E5M2, TENSORWISE)
    assert q.shape == x.shape and q.is_contiguous() and scale_inv.shape == ()
    y = cases.run(tq.dequantize_fp8, q, torch.bfloat16, TENSORWISE, scale_inv=scale_inv)
    cases.assert_same_bits(y, (q.float() * scale_inv).to(torch.bfloat16))


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("shape", [(33, 100), (2, 31, 129)], ids=str)
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("tile", [False, True])
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_blockwise_and_back(backend, device, shape, axis, tile, dtype):
    x = torch.randn(shape, device=device).to(dtype)
    options = {"block_size": 32, "axis": axis, "scaling_recipe": ScalingRecipe(use_2d_block=tile)}
    q, scale_inv = cases.run(tq.quantize_fp8, x, E4M3, BLOCKWISE, **options)
    wanted = [-(-n // 32) if tile or dim == len(shape) + axis else n for dim, n in enumerate(shape)]
    wanted[0] = shape[0] if len(shape) == 3 else wanted[0]
    assert list(scale_inv.shape) == wanted
    y = cases.run(tq.dequantize_fp8, q, dtype, BLOCKWISE, scale_inv=scale_inv, **options)
    grown = scale_inv
    for dim in (-1, -2) if tile else (axis,):
        grown = grown.repeat_interleave(32, dim).narrow(dim, 0, shape[dim])
    cases.assert_same_bits(y, (q.float() * grown).to(dtype))
    assert compute_snr(x, y) > 25


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("shape", [(48, 100), (2, 16, 129), (1, 16)], ids=str)
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("dtype", [E4M3, E5M2, fp4_dtype(), torch.uint8], ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_mx_and_back(backend, device, shape, axis, dtype, recipe):
    rows = shape[-2] if axis == -1 else shape[-1]
    if recipe == "shuffled" and rows % 16:
        pytest.skip("the shuffled payload takes a multiple of 16 rows")
    x = torch.randn(shape, device=device)
    quantise, dequantise = cases.functions(dtype)
    options = {"axis": axis, "scaling_recipe": RECIPES[recipe], "sign_mask": 0x5A3C}
    q, scale = cases.run(quantise, x, dtype, MX, **options)
    assert q.dtype == dtype
    y = cases.run(dequantise, q, torch.float32, MX, scale_inv=scale, size=shape[axis], **options)
    padded = cases.run(dequantise, q, torch.float32, MX, scale_inv=scale, **options)
    assert y.is_contiguous() and padded.is_contiguous()
    if axis == -2 and len(shape) == 3:  # a batch stays as it is stored: transposed
        assert y.shape == (shape[0], shape[2], shape[1]) and padded.shape == (shape[0], shape[2], 128)
        y, padded = y.transpose(1, 2), padded.transpose(1, 2)
    assert y.shape == x.shape
    assert compute_snr(x, y) > cases.gate(dtype) - (4 if recipe == "stochastic" else 0)
    assert padded.shape[axis] == -(-shape[axis] // 128) * 128
    cases.assert_same_bits(padded.narrow(axis, 0, shape[axis]), y)
    if recipe != "rotated":
        assert not padded.narrow(axis, shape[axis], padded.shape[axis] - shape[axis]).any()


@pytest.mark.parametrize("granularity", [ROWWISE, BLOCKWISE, MX], ids=str)
@pytest.mark.parametrize("shape", [(33, 100), (2, 31, 129)], ids=str)
def test_both_copies_in_one_call(backend, device, granularity, shape):
    """The column copy comes from x, not from the row copy: the dual is the two single calls."""
    x = torch.randn(shape, device=device)
    options = {"block_size": 32 if granularity is BLOCKWISE else None}
    four = cases.run(tq.quantize_fp8_with_trans, x, E4M3, granularity, **options)
    one = cases.run(tq.quantize_fp8, x, E4M3, granularity, axis=-1, **options)
    other = cases.run(tq.quantize_fp8, x, E4M3, granularity, axis=-2, **options)
    cases.assert_same_bits(four, (*one, *other))


def test_dual_with_mixed_recipes(backend, device):
    x = torch.randn(64, 96, device=device)
    tile = RECIPES["tile"]
    four = cases.run(tq.quantize_fp8_with_trans, x, E4M3, BLOCKWISE, block_size=32, scaling_recipe=tile)
    one = cases.run(tq.quantize_fp8, x, E4M3, BLOCKWISE, block_size=32, scaling_recipe=tile)
    other = cases.run(tq.quantize_fp8, x, E4M3, BLOCKWISE, block_size=32, axis=0)
    cases.assert_same_bits(four, (*one, *other))
    four = cases.run(tq.quantize_fp8_with_trans, x, E4M3, BLOCKWISE, block_size=32, scaling_recipe=tile,
               scaling_recipe_for_trans=tile)  # fmt: skip
    cases.assert_same_bits(four, (*one, *one))
    four = cases.run(
        tq.quantize_fp4_with_trans, x, fp4_dtype(), MX, scaling_recipe_for_trans=RECIPES["rotated"], sign_mask=3
    )
    one = cases.run(tq.quantize_fp4, x, fp4_dtype(), MX, axis=-1)
    other = cases.run(tq.quantize_fp4, x, fp4_dtype(), MX, axis=-2, scaling_recipe=RECIPES["rotated"], sign_mask=3)
    cases.assert_same_bits(four, (*one, *other))


# --- the field's bugs -------------------------------------------------------------------------------------------------


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("shape, at", [((1, 100), -1), ((1, 8193), -1), ((512, 3072), 8300), ((512, 3072), -1),
                                       ((1024, 4096), -1)], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
@pytest.mark.parametrize("out_dtype", [E4M3, E5M2], ids=str)
def test_a_spike_anywhere_sets_the_scale(backend, device, shape, at, dtype, out_dtype):
    if backend != "TORCH" and device.type == "cpu" and shape[0] > 1:
        shape, at = (12, 720), (at if at < 0 else 8300)  # interpreted or simulated
    x = torch.full(shape, 0.5, dtype=dtype, device=device)
    x.view(-1)[at] = 100.0
    q, scale_inv = cases.run(tq.quantize_fp8, x, out_dtype, TENSORWISE)
    largest = torch.finfo(out_dtype).max
    assert abs(scale_inv.item() * largest - 100) < 1e-3
    y = cases.run(tq.dequantize_fp8, q, dtype, TENSORWISE, scale_inv=scale_inv)
    assert abs(y.view(-1)[at].item() - 100) <= 0.5


KINDS = [
    (TENSORWISE, {}),
    (ROWWISE, {"axis": -1}),
    (ROWWISE, {"axis": -2}),
    (BLOCKWISE, {"axis": -1, "block_size": 128}),
    (BLOCKWISE, {"axis": -2, "block_size": 128}),
    (BLOCKWISE, {"block_size": 128, "scaling_recipe": RECIPES["tile"]}),
    (MX, {"axis": -1}),
    (MX, {"axis": -2}),
    (MX, {"axis": -1, "scaling_recipe": RECIPES["tile"]}),
]


def back(q, scale, dtype, granularity, options, shape):
    size = {"size": shape[options["axis"]]} if granularity is MX else {}
    return cases.run(tq.dequantize_fp8, q, dtype, granularity, scale_inv=scale, **options, **size)


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("granularity, options", KINDS, ids=str)
@pytest.mark.parametrize("part", ["all", "row", "block"])
def test_zero_amax(backend, device, poisoned_allocations, granularity, options, part):
    x = torch.randn(256, 384, device=device)
    zero = {"all": ..., "row": 3, "block": (slice(128, 256), slice(128, 256))}[part]
    x[zero] = 0
    q, scale = cases.run(tq.quantize_fp8, x, E4M3, granularity, **options)
    if granularity is not MX:
        assert scale.isfinite().all() and (scale > 0).all() and scale.reciprocal().isfinite().all()
    y = back(q, scale, torch.float32, granularity, options, x.shape)
    assert not y[zero].any() and y.isfinite().all()
    if part != "all":
        assert compute_snr(x, y) > 25


@pytest.mark.parametrize("dtype", [E4M3, E5M2, fp4_dtype()], ids=str)
def test_tiny_inputs_do_not_explode(backend, device, dtype):
    """amax ~ 2.8e-36 (field case 5): finite, sign kept, error of a step at most, byte not below 0."""
    rows = 2048 if backend == "TORCH" or device.type == "cuda" else 8
    x = (torch.rand(rows, 1024, device=device) - 0.5) * 1.2e-34
    x[::2] *= 0.05
    x = x.bfloat16()
    quantise, dequantise = cases.functions(dtype)
    q, scale = cases.run(quantise, x, dtype, MX, axis=-1)
    y = cases.run(dequantise, q, torch.float32, MX, axis=-1, scale_inv=scale)
    assert y.isfinite().all() and (y * x.float().sign() >= 0).all()
    amax = x.float().view(rows, -1, 32).abs().amax(-1, keepdim=True)
    step = {E4M3: 2.0**-3, E5M2: 2.0**-2}.get(dtype, 0.5)
    assert (
        (y - x.float()).view(rows, -1, 32).abs() <= torch.maximum(amax * step, torch.tensor(2.0**-127 * 2**-9))
    ).all()


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("granularity, options", KINDS, ids=str)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_not_finite_shows_in_its_block_only(backend, device, granularity, options, bad):
    x = torch.randn(256, 384, device=device)
    x[130, 200] = bad
    q, scale = cases.run(tq.quantize_fp8, x, E4M3, granularity, **options)
    y = back(q, scale, torch.bfloat16, granularity, options, x.shape)
    block = torch.zeros(256, 384, dtype=torch.bool)
    tile = options.get("scaling_recipe") is not None
    if granularity is TENSORWISE:
        block[:] = True
    elif granularity is ROWWISE:
        block[(130, slice(None)) if options["axis"] == -1 else (slice(None), 200)] = True
    else:
        n = 32 if granularity is MX else 128
        rows, columns = slice(130 // n * n, 130 // n * n + n), slice(200 // n * n, 200 // n * n + n)
        axis = options.get("axis", -1)
        block[rows if tile or axis == -2 else 130, columns if tile or axis == -1 else 200] = True
    assert torch.equal(y.isnan().cpu(), block)


def test_any_strides(backend, device):
    """Field case 13: transposed, sliced, expanded inputs give what their copies give."""
    base = torch.randn(3, 70, 90, device=device)
    views = [base.transpose(1, 2), base[:, ::2, 5:70], base[:1].expand(3, 70, 90), base[..., :1].expand(3, 70, 90)]
    for x in (view.bfloat16() if i else view for i, view in enumerate(views)):
        for granularity, options in (
            (TENSORWISE, {}),
            (ROWWISE, {"axis": 1}),
            (BLOCKWISE, {"axis": -1, "block_size": 32}),
            (MX, {"axis": -2}),
        ):
            cases.assert_same_bits(
                cases.run(tq.quantize_fp8, x, E4M3, granularity, **options),
                cases.run(
                    tq.quantize_fp8, x.clone(memory_format=torch.contiguous_format), E4M3, granularity, **options
                ),
            )


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0, 0), (2, 0, 5)], ids=str)
def test_zero_sizes(device, shape):
    x = torch.randn(shape, device=device)
    for granularity, options in (
        (TENSORWISE, {}),
        (ROWWISE, {"axis": -1}),
        (ROWWISE, {"axis": -2}),
        (BLOCKWISE, {"axis": -1, "block_size": 32}),
        (BLOCKWISE, {"axis": -2, "block_size": 32}),
        (MX, {"axis": -1}),
        (MX, {"axis": -2}),
    ):
        q, scale = tq.quantize_fp8(x, E4M3, granularity, **options)
        if granularity is not MX:
            assert scale.isfinite().all() and (scale > 0).all()
        y = back(q, scale, torch.float32, granularity, options, shape)
        stored = granularity is MX and options["axis"] == -2 and len(shape) == 3
        assert y.shape == (x.transpose(1, 2).shape if stored else x.shape), (granularity, options)


# --- size -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_more_than_2_31_elements(device):
    """Values behind the 2**31st element: a 32-bit offset would read and write elsewhere."""
    if torch.cuda.get_device_properties(device).total_memory < 60e9:
        pytest.skip("needs 60 GB of device memory")
    rows, C = 2**31 // 4096 + 1000, 4096
    x = torch.empty(rows, C, device=device, dtype=torch.bfloat16).normal_()
    last = x[-512:].clone()
    for granularity, options in (
        (ROWWISE, {"axis": -1}),
        (BLOCKWISE, {"axis": -1, "block_size": 128}),
        (MX, {"axis": -1}),
    ):
        q, scale = tq.quantize_fp8(x, E4M3, granularity, **options)
        q_last, scale_last = tq.quantize_fp8(last, E4M3, granularity, **options)
        cases.assert_same_bits((q[-512:], scale[-512:]), (q_last, scale_last))
        y = tq.dequantize_fp8(q, torch.bfloat16, granularity, scale_inv=scale, **options)
        y_last = tq.dequantize_fp8(q_last, torch.bfloat16, granularity, scale_inv=scale_last, **options)
        cases.assert_same_bits(y[-512:], y_last)
    del q, y
    q, scale = tq.quantize_fp8(x, E4M3, MX, axis=-2)
    tail = rows // 32 * 32 - 512
    q_last, scale_last = tq.quantize_fp8(x[tail : tail + 512].clone(), E4M3, MX, axis=-2)
    cases.assert_same_bits((q[:, tail : tail + 512], scale[:, tail // 32 : tail // 32 + 16]), (q_last, scale_last))
