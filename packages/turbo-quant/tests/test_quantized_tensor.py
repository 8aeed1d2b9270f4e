# SPDX-License-Identifier: MIT
"""QuantizedTensor: everything that re-labels, copies, moves or stores it keeps every value, for every granularity."""

import copy
import io

import pytest
import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import (
    Float4QuantConfig,
    Float8QuantConfig,
    Format,
    ScaleDtype,
    ScalingGranularity,
    ScalingRecipe,
)
from turbo_quant import QuantizedTensor, QuantizedTensorPair, check_quantized_tensor, create_quantized_weight
from turbo_quant.formats import fp4_dtype
from turbo_testing.cases import load
from turbo_testing.metrics import compute_snr

cases = load("turbo-quant")
E4M3, FP4 = torch.float8_e4m3fn, fp4_dtype()
TENSORWISE, ROWWISE, BLOCKWISE, MX = cases.TENSORWISE, cases.ROWWISE, cases.BLOCKWISE, cases.MX_BLOCKWISE
TILE, ROTATED = ScalingRecipe(use_2d_block=True), ScalingRecipe(use_rht=True, shuffle_scale=True, shuffle_out=True)
KINDS = {
    "tensorwise": (E4M3, TENSORWISE, {}),
    "rowwise": (E4M3, ROWWISE, {}),
    "blockwise": (torch.float8_e5m2, BLOCKWISE, {"block_size": 32}),
    "tiles": (E4M3, BLOCKWISE, {"block_size": 32, "scaling_recipe": TILE}),
    "mxfp8": (E4M3, MX, {}),
    "mxfp8-tiles": (E4M3, MX, {"scaling_recipe": TILE}),
    "mxfp4": (FP4, MX, {"scaling_recipe": ROTATED, "sign_mask": 0x1234}),
}


@pytest.fixture(params=[(48, 80), (3, 48, 80)], ids=str)
def shape(request):
    return request.param


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=[-1, -2])
def made(request, kind, shape, device):
    """(the plain tensor, it quantised)."""
    dest, granularity, options = KINDS[kind]
    x = torch.randn(shape, device=device, dtype=torch.bfloat16)
    return x, QuantizedTensor.quantize(x, dest, granularity, axis=request.param, **options)


def same(q, expected):
    assert isinstance(q, QuantizedTensor)
    assert q.shape == expected.shape and q.dtype == expected.dtype
    cases.assert_same_bits(q.dequantize(), expected.contiguous())


def test_what_it_is(made, kind):
    x, q = made
    dest, granularity, options = KINDS[kind]
    assert q.shape == x.shape and q.dtype == x.dtype and q.device == x.device and q.real_dtype == dest
    assert q.granularity is granularity and q.block_size == options.get("block_size")
    assert q.quantized_axis in (-1, -2) or granularity is TENSORWISE
    assert compute_snr(x, q.dequantize()) > cases.gate(dest)
    assert granularity.name in repr(q)


def test_transposes_are_exact(made):
    x, q = made
    y = q.dequantize()
    same(q.transpose(-1, -2), y.transpose(-1, -2))
    same(q.mT, y.mT)
    same(q.transpose(-1, -2).transpose(-1, -2), y)
    same(q.transpose(-1, -2).clone(), y.transpose(-1, -2))
    if x.dim() == 2:
        same(q.t(), y.t())
        same(q.T, y.T)
        assert (q.t().quantized_axis, q.quantized_axis) in ((-1, -2), (-2, -1), (None, None))


def test_rowwise_transpose_moves_payload_and_scales(device):
    x = torch.randn(48, 80, device=device)
    q = QuantizedTensor.quantize(x, E4M3, ROWWISE, axis=-1)
    t = q.t()
    cases.assert_same_bits(t.qdata, q.qdata.t())
    cases.assert_same_bits(t.scale_inv, q.scale_inv.t())
    other = QuantizedTensor.quantize(x.t().contiguous(), E4M3, ROWWISE, axis=-2)
    cases.assert_same_bits((t.qdata, t.scale_inv), (other.qdata, other.scale_inv))


def test_mx_transpose_is_the_copy_of_the_transpose(device):
    x = torch.randn(48, 80, device=device)
    t = QuantizedTensor.quantize(x, E4M3, MX, axis=-1).t()
    other = QuantizedTensor.quantize(x.t().contiguous(), E4M3, MX, axis=-2)
    cases.assert_same_bits((t.qdata, t.scale_inv), (other.qdata, other.scale_inv))
    assert t.quantized_axis == other.quantized_axis and t.shape == other.shape


def test_views(made, kind):
    x, q = made
    y = q.dequantize()
    if x.dim() == 2:
        same(q.view(1, 48, 80), y.view(1, 48, 80))
        same(q.view(1, 48, 80).reshape(48, 80), y)
        same(q.view(-1, 80), y)
        return
    same(q.view(3, -1, 80), y)
    for index in range(3):
        same(q[index], y[index])
    blocks_stay = kind == "tensorwise" or (q.quantized_axis == -1 and kind in ("rowwise", "blockwise", "mxfp8"))
    if blocks_stay:
        same(q.view(-1, 80), y.view(-1, 80))
        same(q.view(-1, 80).view(3, 48, 80), y)
    else:
        with pytest.raises(UnsupportedError, match="dequantize"):
            q.view(-1, 80)


def test_views_that_would_tear_blocks_are_refused(made, kind):
    x, q = made
    if kind == "tensorwise":
        same(q.view(-1), q.dequantize().view(-1))
        return
    for view in (lambda: q.view(-1), lambda: q.view(*x.shape[:-2], 40, 96), lambda: q[..., 0]):
        with pytest.raises(UnsupportedError):
            view()


@pytest.mark.parametrize("copied", [
    torch.clone, torch.Tensor.detach, copy.copy, copy.deepcopy, torch.nn.Parameter, lambda q: q.to(q.device),
    lambda q: q.to(q.device, copy=True), lambda q: q.contiguous(),
])  # fmt: skip
def test_copies(made, copied):
    x, q = made
    same(copied(q), q.dequantize())


def test_a_clone_is_its_own(made):
    x, q = made
    y = q.dequantize()
    other = q.clone()
    other.copy_(torch.zeros_like(x))
    assert not other.dequantize().any()
    same(q, y)


def test_another_dtype_is_a_label(made):
    x, q = made
    y = q.to(torch.float32)
    assert y.dtype == torch.float32
    cases.assert_same_bits(y.dequantize().bfloat16(), q.dequantize())
    with pytest.raises(UnsupportedError, match=r"dtype=torch.int32"):
        q.to(torch.int32)


def test_copy_into(made, poisoned):
    x, q = made
    y = q.dequantize()
    empty = torch.empty_like(q)
    assert empty.qdata.data_ptr() != q.qdata.data_ptr()
    same(empty.copy_(q), y)
    same(torch.empty_like(q).copy_(x), y)
    same(torch.empty_like(q).copy_(QuantizedTensor.quantize(x, E4M3, TENSORWISE)), torch.empty_like(q).copy_(
        QuantizedTensor.quantize(x, E4M3, TENSORWISE).dequantize()).dequantize())  # fmt: skip
    plain = torch.empty_like(x)
    plain.copy_(q)
    cases.assert_same_bits(plain, y)


def test_save_and_load(made):
    x, q = made
    q.requires_grad_()
    for value in (q, {"weight": torch.nn.Parameter(q)}, q.transpose(-1, -2).detach()):
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        loaded = torch.load(file)  # weights_only, as is the default
        value, loaded = (value["weight"], loaded["weight"]) if isinstance(value, dict) else (value, loaded)
        same(loaded.detach(), value.dequantize())
        assert loaded.requires_grad == value.requires_grad


def test_flatten_and_back(made):
    x, q = made
    names, meta = q.__tensor_flatten__()
    inner = {name: getattr(q, name) for name in names}
    same(QuantizedTensor.__tensor_unflatten__(inner, meta, q.shape, q.stride()), q.dequantize())


def test_compiled(made):
    x, q = made
    torch._dynamo.reset()

    def use(q):
        return q.transpose(-1, -2).dequantize() * 2, q.detach(), q.transpose(-1, -2), q.clone()

    doubled, again, turned, copied = torch.compile(use, fullgraph=True, backend="aot_eager")(q)
    y = q.dequantize()
    cases.assert_same_bits(doubled, y.transpose(-1, -2) * 2)
    same(again, y)
    same(turned, y.transpose(-1, -2))
    same(copied, y)


def test_made_and_taken_apart_inside_a_compiled_function(device):
    x = torch.randn(64, 96, device=device)
    torch._dynamo.reset()

    def use(x):
        q = QuantizedTensor.quantize(x, E4M3, ROWWISE, axis=-1)
        return q.t().dequantize(), q.qdata, q.t().scale_inv

    found = torch.compile(use, fullgraph=True, backend="aot_eager")(x)
    cases.assert_same_bits(found, use(x))


def test_views_are_seen_by_autograd(device):
    q = QuantizedTensor.quantize(torch.randn(4, 64, device=device), E4M3, ROWWISE, axis=-1).requires_grad_()
    y = q.view(1, 4, 64).transpose(1, 2)
    assert y.requires_grad and y.grad_fn is not None and isinstance(y, QuantizedTensor)
    y.backward(torch.ones(1, 64, 4, device=device))
    assert torch.equal(q.grad, torch.ones(4, 64, device=device))


def test_other_operations_say_what_to_do(device):
    q = QuantizedTensor.quantize(torch.randn(4, 64, device=device), E4M3, TENSORWISE)
    with pytest.raises(UnsupportedError, match=r"add.*dequantize"):
        q + 1


@pytest.mark.parametrize("kind", ["tensorwise", "rowwise", "blockwise", "mxfp8"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_groups(device, kind, axis):
    dest, granularity, options = KINDS[kind]
    x = torch.randn(48, 80, device=device)
    lens = torch.tensor([10, 0, 30], device=device)
    q = QuantizedTensor.quantize(x, dest, granularity, axis=axis, group_lens=lens, **options)
    y = q.dequantize()
    padded = axis == -2 and kind in ("blockwise", "mxfp8")
    assert q.is_grouped_tensor and q.padded_by_groups == padded and y.shape == x.shape
    assert compute_snr(x[:40], y[:40]) > cases.gate(dest)
    assert not padded or not y[40:].any()
    multiple = {"blockwise": 32, "mxfp8": 128}.get(kind, 1) if axis == -2 else 1
    assert q.group_lens.tolist() == [-(-n // multiple) * multiple for n in (10, 0, 30)]
    assert q.orig_group_lens is lens and q.orig_group_offs.tolist() == [0, 10, 10, 40]
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    for other in (q.clone(), torch.load(file), torch.empty_like(q).copy_(x)):
        same(other, y)
        assert other.group_offs.tolist() == q.group_offs.tolist()
    if kind in ("blockwise", "mxfp8"):
        with pytest.raises(UnsupportedError, match="dequantize"):
            q.t()
    else:
        same(q.t(), y.t())


# --- weights ----------------------------------------------------------------------------------------------------------

MX_CONFIG = Float8QuantConfig(granularity=MX, block_size=32, scale_dtype=ScaleDtype.E8M0)
CONFIGS = {
    "tensorwise": (Float8QuantConfig(), E4M3),
    "rowwise": (Float8QuantConfig(granularity=ROWWISE), E4M3),
    "blockwise": (Float8QuantConfig(granularity=BLOCKWISE, block_size=32), E4M3),
    "mxfp8": (MX_CONFIG, E4M3),
    "mxfp4": (Float4QuantConfig(), FP4),
    "mxfp4-preshuffled": (Float4QuantConfig(use_preshuffle=True), FP4),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shape", [(64, 96), (2, 64, 96)], ids=str)
def test_weights(device, name, shape):
    config, dtype = CONFIGS[name]
    w = torch.randn(shape, device=device, dtype=torch.bfloat16)
    alone, nothing = create_quantized_weight(w, dtype, config)
    qt, qt_t = create_quantized_weight(w, dtype, config, need_weight_transpose_cache=True)
    assert nothing is None and isinstance(QuantizedTensorPair(qt, qt_t).data, torch.Tensor)
    same(alone, qt.dequantize())
    recipe = qt.scaling_recipe
    check_quantized_tensor(qt, config, -1, recipe)
    assert (recipe or ScalingRecipe()).use_2d_block == (name in ("blockwise", "mxfp8", "mxfp4", "mxfp4-preshuffled"))
    assert (recipe or ScalingRecipe()).shuffle_out == (name == "mxfp4-preshuffled")
    if name == "tensorwise":
        assert qt_t.qdata.is_contiguous()
        same(qt_t, qt.dequantize().mT)
        return
    check_quantized_tensor(qt_t, config, -2, recipe)
    expected = QuantizedTensor.quantize(
        w, dtype, config.granularity, axis=-2, block_size=qt.block_size, scaling_recipe=recipe
    )
    same(qt_t, expected.dequantize())
    if recipe is not None:  # tiles: both copies are the same numbers
        same(qt_t, qt.dequantize())


def test_check_names_what_differs(device):
    x = torch.randn(64, 96, device=device)
    q = QuantizedTensor.quantize(x, E4M3, BLOCKWISE, axis=-1, block_size=32)
    config = Float8QuantConfig(granularity=BLOCKWISE, block_size=32)
    check_quantized_tensor(q, config)
    check_quantized_tensor(q, config, axis=1)
    for wrong, message in (
        ((q, Float8QuantConfig()), "granularity"),
        ((q, Float8QuantConfig(granularity=BLOCKWISE, block_size=64)), "block_size is 32"),
        ((q, Float8QuantConfig(format=Format.E5M2, granularity=BLOCKWISE, block_size=32)), "format"),
        ((q, config, -2), "quantized_axis is -1"),
        ((q, config, -1, TILE), "scaling_recipe"),
        ((x, config), "QuantizedTensor is accepted"),
        ((q, None), "config=None"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            check_quantized_tensor(*wrong)


@pytest.mark.parametrize("call, message", [
    (lambda x: QuantizedTensor.quantize(x[0], E4M3, TENSORWISE), "2 or 3 dimensions"),
    (lambda x: QuantizedTensor.quantize(x, E4M3, ROWWISE), "axis=None"),
    (lambda x: QuantizedTensor.quantize(x, E4M3, MX, axis=0, group_lens=torch.ones(2)), "group_lens is"),
    (lambda x: create_quantized_weight(x, E4M3, None), "config=None"),
])  # fmt: skip
def test_errors(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call(torch.randn(4, 64))


def test_every_granularity_is_met():
    assert {granularity for _, granularity, _ in KINDS.values()} == set(ScalingGranularity)


def test_requires_grad_is_that_of_what_was_quantised(shape, kind, device):
    dtype, granularity, options = KINDS[kind]
    x = torch.randn(shape, device=device)
    for wanted in (False, True):
        q = QuantizedTensor.quantize(x.requires_grad_(wanted), dtype, granularity, axis=-2, **options)
        assert q.requires_grad is wanted and q.is_leaf
    gradient = torch.randn_like(x)
    q.view(shape).backward(gradient)
    assert torch.equal(q.grad, gradient) and x.grad is None
    with torch.no_grad():
        assert QuantizedTensor.quantize(x, dtype, granularity, axis=-2, **options).requires_grad


def test_a_weight_keeps_requires_grad(device):
    for config in (Float8QuantConfig(), Float8QuantConfig(granularity=ROWWISE)):
        for transposed in (False, True):
            weight = torch.randn(32, 64, device=device, requires_grad=True)
            qt, qt_t = create_quantized_weight(weight, E4M3, config, transposed)
            assert qt.requires_grad and qt.is_leaf and (qt_t is None) is not transposed
            assert qt_t is None or not qt_t.requires_grad
            qt, _ = create_quantized_weight(weight.detach(), E4M3, config, transposed)
            assert not qt.requires_grad


def test_fp4_memory_under_deterministic_algorithms():
    """torch fills new memory then, and does not know how for FP4."""
    x = torch.randn(40, 64)
    torch.use_deterministic_algorithms(True)
    try:
        for dtype in filter(None, (fp4_dtype(), torch.uint8)):
            qt = QuantizedTensor.quantize(x, dtype, MX, axis=-1)
            expected = qt.dequantize()
            for made in (qt.clone(), qt.to("cpu", copy=True), torch.empty_like(qt).copy_(qt)):
                assert torch.equal(made.dequantize(), expected)
    finally:
        torch.use_deterministic_algorithms(False)
