# SPDX-License-Identifier: MIT
"""vmap, derivatives, meta and fake tensors, tuning keys: what every quantise function answers beside its numbers."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import turbo_quant as tq
from turbo_core import UnsupportedError
from turbo_quant.calls import DequantizeFloatCall, DequantizeMxCall, MxDirection, QuantizeFloatCall, QuantizeMxCall
from turbo_quant.formats import fp4_dtype
from turbo_quant.pytorch.kernels.quantize_impl import DequantizeDispatcher, QuantizeDispatcher
from turbo_testing import quant_oracle as oracle
from turbo_testing.cases import load

cases = load("turbo-quant")
E4M3 = torch.float8_e4m3fn
TENSORWISE, ROWWISE, BLOCKWISE, MX = cases.TENSORWISE, cases.ROWWISE, cases.BLOCKWISE, cases.MX_BLOCKWISE
BLOCK = {"block_size": 32}

QUANTISE = {
    "quantize_fp8 tensorwise": lambda x, *_: tq.quantize_fp8(x, E4M3, TENSORWISE),
    "quantize_fp8 rowwise": lambda x, *_: tq.quantize_fp8(x, E4M3, ROWWISE, axis=0),
    "quantize_fp8 blockwise": lambda x, *_: tq.quantize_fp8(x, E4M3, BLOCKWISE, axis=-1, **BLOCK),
    "quantize_fp8 mx": lambda x, *_: tq.quantize_fp8(x, E4M3, MX, axis=-2),
    "quantize_fp4": lambda x, *_: tq.quantize_fp4(x, fp4_dtype(), MX, axis=-1),
    "quantize_fp8_with_trans": lambda x, *_: tq.quantize_fp8_with_trans(x, E4M3, BLOCKWISE, **BLOCK),
    "quantize_fp4_with_trans": lambda x, *_: tq.quantize_fp4_with_trans(x, fp4_dtype(), MX),
    "grouped_quantize_fp8": lambda x, n, o: tq.grouped_quantize_fp8(x, E4M3, BLOCKWISE, n, o, axis=0, **BLOCK)[:2],
    "grouped_quantize_fp8_with_trans": lambda x, n, o: tq.grouped_quantize_fp8_with_trans(x, E4M3, MX, n, o)[:4],
    "grouped_quantize_fp4": lambda x, n, o: tq.grouped_quantize_fp4(x, fp4_dtype(), MX, n, o, axis=0)[:2],
    "grouped_quantize_fp4_with_trans": lambda x, n, o: tq.grouped_quantize_fp4_with_trans(x, fp4_dtype(), MX, n, o)[:4],
}


def data(device, *leading):
    torch.manual_seed(0)
    x = torch.randn(*leading, 50, 64, device=device)
    return x, torch.tensor([17, 33], device=device), torch.tensor([0, 17, 50], device=device)


# --- torch.func -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUANTISE)
def test_vmap_gives_what_each_sample_gives(backend, device, name):
    x, lens, offs = data(device, 3)
    found = cases.run(torch.vmap(QUANTISE[name], (0, None, None)), x, lens, offs)
    for i, sample in enumerate(x):
        cases.assert_same_bits([output[i] for output in found], list(QUANTISE[name](sample, lens, offs)))


def test_vmap_of_dequantise(device):
    x, _, _ = data(device, 3)
    q, scale_inv = torch.vmap(QUANTISE["quantize_fp8 blockwise"])(x)

    def back(q, scale_inv):
        return tq.dequantize_fp8(q, torch.float32, BLOCKWISE, axis=-1, scale_inv=scale_inv, **BLOCK)

    assert torch.equal(torch.vmap(back)(q, scale_inv), torch.stack(list(map(back, q, scale_inv))))


@pytest.mark.parametrize("name", QUANTISE)
def test_derivatives_of_rounding_are_refused(device, name):
    """By name, where torch would give zeros; a constant, said so, is none."""
    x, lens, offs = data(device)
    public = name.split()[0]

    def scales(x):
        return QUANTISE[name](x, lens, offs)[1].float()

    refused = pytest.raises(UnsupportedError, match=f"^{public}: a derivative with respect to x")
    with refused:
        torch.func.jvp(scales, (x,), (torch.ones_like(x),))
    with refused:
        torch.func.grad(lambda x: scales(x).sum())(x)
    with refused:
        torch.func.jacrev(torch.func.grad(lambda x: scales(x).sum()))(x)
    with forward_ad.dual_level(), refused:
        scales(forward_ad.make_dual(x, torch.ones_like(x)))
    with forward_ad.dual_level():
        scales(x)
    (gradient,) = torch.func.grad(lambda x: (x * scales(x.detach()).sum()).sum(), (0,))(x)
    torch.testing.assert_close(gradient, scales(x).sum().expand_as(x))
    assert not scales(x.clone().requires_grad_()).requires_grad


def test_derivatives_of_dequantise_are_refused(device):
    x, _, _ = data(device)
    q, scale_inv = tq.quantize_fp8(x, E4M3, ROWWISE, axis=-1)
    tensor = tq.QuantizedTensor.quantize(x, E4M3, ROWWISE, axis=-1)

    def back(scale_inv):
        return tq.dequantize_fp8(q, torch.float32, ROWWISE, axis=-1, scale_inv=scale_inv)

    refused = pytest.raises(UnsupportedError, match="dequantize_fp8: a derivative with respect to scale_inv")
    with refused:
        torch.func.jvp(back, (scale_inv,), (torch.ones_like(scale_inv),))
    with refused:
        torch.func.grad(lambda s: back(s).sum())(scale_inv)
    with pytest.raises(UnsupportedError):
        torch.func.jvp(lambda t: t.dequantize(), (tensor,), (torch.ones_like(x),))


@pytest.mark.parametrize("inverse", [False, True])
def test_hadamard_transform_has_its_derivatives(device, inverse):
    x = torch.randn(3, 32, device=device, requires_grad=True)
    matrix = torch.from_numpy(oracle.hadamard_matrix()).to(device) / 4
    signs = torch.tensor([-1.0 if 0xBEEF >> i & 1 else 1.0 for i in range(16)], dtype=torch.float64, device=device)
    whole = torch.block_diag(*[matrix * signs] * 2)  # of 32 elements; orthogonal
    whole = whole.T if inverse else whole

    def transform(x):
        return tq.hadamard_transform(x, 0xBEEF, inverse=inverse)

    weights = torch.randn(3, 32, device=device)
    (gradient,) = torch.autograd.grad(transform(x), [x], weights)
    torch.testing.assert_close(gradient.double(), weights.double() @ whole, rtol=1e-5, atol=1e-5)
    _, tangent = torch.func.jvp(transform, (x.detach(),), (weights,))
    torch.testing.assert_close(tangent.double(), weights.double() @ whole.T, rtol=1e-5, atol=1e-5)


# --- meta and fake tensors ------------------------------------------------------------------------------------------


def everything(device):
    """Outputs of every function of the wheel that takes tensors."""
    x, lens, offs = data(device)
    outputs = list(itertools.chain.from_iterable(function(x, lens, offs) for function in QUANTISE.values()))
    q, scale = tq.quantize_fp8(x, E4M3, BLOCKWISE, axis=-1, **BLOCK)
    outputs.append(tq.dequantize_fp8(q, torch.bfloat16, BLOCKWISE, axis=-1, scale_inv=scale, **BLOCK))
    q, scale = tq.quantize_fp4(x, fp4_dtype(), MX, axis=-1, scaling_recipe=cases.RECIPES["stochastic"])
    outputs.append(tq.dequantize_fp4(q, torch.float16, MX, axis=-1, scale_inv=scale, size=64))
    q, scale, _, padded = tq.grouped_quantize_fp8(x, E4M3, BLOCKWISE, lens, offs, axis=0, **BLOCK)
    groups = {"total_M": 50, "scale_inv": scale, "axis": 0, **BLOCK}
    outputs.append(tq.grouped_dequantize_fp8(q, torch.float32, BLOCKWISE, offs, padded, **groups))
    outputs += [tq.hadamard_transform(x, 3), tq.rng_state(device)]
    scales, payload = scale.new_empty((30, 4), dtype=torch.uint8), x.new_empty((32, 64), dtype=torch.uint8)
    outputs += [tq.shuffle_scale(scales), tq.shuffle_weight(payload), tq.unshuffle_weight(payload)]
    outputs.append(tq.unshuffle_scale(outputs[-3], 30, 4))
    tensors = [tq.QuantizedTensor.quantize(x, E4M3, ROWWISE, axis=-1)]
    tensors.append(tq.QuantizedTensor.quantize(x, E4M3, BLOCKWISE, axis=0, group_lens=lens, **BLOCK))
    return outputs + [part for t in tensors for part in (t.qdata, t.scale_inv, t.dequantize())]


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_meta_and_fake_tensors(kind):
    real = [(t.shape, t.stride(), t.dtype) for t in everything(torch.device("cpu"))]
    with FakeTensorMode() if kind == "fake" else nullcontext():
        found = everything(torch.device("meta" if kind == "meta" else "cpu"))
    assert [(t.shape, t.stride(), t.dtype) for t in found] == real
    assert all(t.device.type == ("meta" if kind == "meta" else "cpu") for t in found)


# --- tuning keys ----------------------------------------------------------------------------------------------------


def calls():
    """One of each kind, with everything in it; optional tensors too."""
    x, lens, offs = data("cpu", 1)
    rng, amax = torch.tensor([1, 2]), torch.tensor(1.0)
    q, scale = torch.zeros(1, 64, 64, dtype=torch.uint8), torch.zeros(1, 64, 2)
    full, bare = MxDirection(), None
    return [
        QuantizeFloatCall(x, E4M3, BLOCKWISE, 32, True, True, False, offs, offs, amax),
        QuantizeMxCall(x, "e4m3", full, full, 5, rng, offs, offs),
        QuantizeMxCall(x, "e2m1", bare, full),
        DequantizeFloatCall(q.view(E4M3), scale, BLOCKWISE, 32, 2, torch.float32),
        DequantizeMxCall(q, scale.to(torch.uint8), "e4m3", 64, False, False, 0, torch.float32),
    ]


def variants(value):
    """Values that differ from ``value`` in one respect each."""
    if isinstance(value, torch.Tensor):
        other = {torch.float32: torch.float16, torch.int64: torch.int32, torch.uint8: torch.int8}
        shape = [*value.shape[:-1], value.shape[-1] + 1] if value.dim() else [1]
        found = [value.new_empty(shape), value.to(other.get(value.dtype, torch.float32))]
        if value.dim():
            stride = [2 * s for s in value.stride()]
            found.append(torch.empty_strided(value.shape, stride, dtype=value.dtype))
        return found
    if isinstance(value, MxDirection):
        return [value._replace(**{field: not getattr(value, field)}) for field in value._fields] + [None]
    if isinstance(value, bool):
        return [not value]
    return {int: [77], str: ["e5m2"], torch.dtype: [torch.float16], type(None): [MxDirection()],
            type(BLOCKWISE): [ROWWISE]}[type(value)]  # fmt: skip


@pytest.mark.parametrize("call", calls(), ids=lambda call: type(call).__name__)
def test_calls_that_differ_have_different_tuning_keys(call):
    dispatcher = DequantizeDispatcher if "Dequantize" in type(call).__name__ else QuantizeDispatcher
    key = dispatcher.make_key(call)
    assert key == dispatcher.make_key(call._replace())
    for field, value in zip(call._fields, call):
        for other in variants(value):
            assert dispatcher.make_key(call._replace(**{field: other})) != key, f"{field}: {value!r} and {other!r}"
