# SPDX-License-Identifier: MIT
"""Float8Linear and Float4Linear: torch.nn.Linear's parameters, the ops' numbers, any leading dimensions."""

import copy
import io

import pytest
import torch

import turbo_gemm
from turbo_core import UnsupportedError, trace_dispatch
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig
from turbo_testing.metrics import assert_close, assert_snr
from turbo_testing.quantised import FP8_CONFIGS

LAYERS = {
    "fp8": (turbo_gemm.Float8Linear, turbo_gemm.gemm_fp8, None),
    "fp8-mx": (turbo_gemm.Float8Linear, turbo_gemm.gemm_fp8, FP8_CONFIGS["mx-hybrid"]),
    "fp4": (turbo_gemm.Float4Linear, turbo_gemm.gemm_fp4, None),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("leading", [(), (5,), (2, 3), (2, 0, 3), (1, 1, 1, 4)], ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_same_as_the_function(device, kind, leading, bias, dtype):
    cls, function, config = LAYERS[kind]
    layer = cls(32, 48, bias=bias, config=config, dtype=dtype, device=device)
    x = torch.randn(*leading, 32).to(device, dtype).requires_grad_()
    grad_out = torch.randn(*leading, 48).to(device, dtype)
    out = layer(x)
    assert out.shape == (*leading, 48)
    expected = function(x.reshape(-1, 32), layer.weight, trans_b=True, config=config, bias=layer.bias)
    assert torch.equal(out.reshape(-1, 48), expected)
    leaves = (x, *layer.parameters())
    for got, want in zip(
        torch.autograd.grad(out, leaves, grad_out), torch.autograd.grad(expected, leaves, grad_out.reshape(-1, 48))
    ):
        assert torch.equal(got, want)


@pytest.mark.parametrize("kind", LAYERS)
def test_parameters_and_state_dict_are_those_of_linear(kind):
    cls, _, config = LAYERS[kind]
    torch.manual_seed(1)
    ours = cls(32, 48, config=config)
    torch.manual_seed(1)
    theirs = torch.nn.Linear(32, 48)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters()))
    assert isinstance(ours, torch.nn.Linear)
    for word in ("in_features=32", ours.config.format.name, ours.config.granularity.name):
        assert word in repr(ours)


@pytest.mark.parametrize("kind", LAYERS)
def test_from_float_in_place_keeps_the_object(kind):
    cls, _, config = LAYERS[kind]
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.ReLU())
    layer, weight = model[0], model[0].weight
    fired = []
    layer.register_forward_hook(lambda *_: fired.append(True))
    made = cls.from_float(layer, config)
    assert made is layer is model[0]
    assert type(layer) is cls
    assert layer.weight is weight
    assert layer.config == (config or cls._config_type())
    model(torch.randn(4, 32))
    assert fired == [True]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", LAYERS)
def test_from_float_copies(kind, bias):
    cls, _, config = LAYERS[kind]
    theirs = torch.nn.Linear(32, 48, bias=bias, dtype=torch.bfloat16).eval()
    theirs.weight.requires_grad_(False)
    made = cls.from_float(theirs, config, inplace=False)
    assert type(theirs) is torch.nn.Linear
    assert type(made) is cls
    assert not made.training
    for name, parameter in theirs.named_parameters():
        twin = made.get_parameter(name)
        assert torch.equal(twin, parameter)
        assert twin is not parameter
        assert twin.requires_grad is parameter.requires_grad
    x = torch.randn(64, 32).bfloat16()
    assert_snr(made(x).double(), theirs(x).double(), 10 if kind == "fp4" else 20)


def test_it_can_be_copied_and_saved():
    layer = turbo_gemm.Float8Linear(32, 48, config=FP8_CONFIGS["blockwise-e4m3"])
    x = torch.randn(3, 32)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), layer(x))


@pytest.mark.parametrize("kind", LAYERS)
def test_it_runs_the_op_for_every_part(device, kind):
    cls, function, config = LAYERS[kind]
    with trace_dispatch() as trace:
        cls(32, 48, config=config, device=device)(
            torch.randn(3, 32, device=device, requires_grad=True)
        ).sum().backward()
    products = [(r.op, r.role) for r in trace.records if r.op.startswith("gemm")]
    assert products == [(function.__name__, role) for role in ("forward", "dgrad", "wgrad")]


@pytest.mark.parametrize("kind", LAYERS)
def test_compiles_whole(device, kind):
    cls, _, config = LAYERS[kind]
    layer = cls(32, 48, config=config, device=device)
    x = torch.randn(2, 3, 32, device=device)
    assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))


def test_refusals():
    with pytest.raises(UnsupportedError, match=r"Float8Linear: x has shape \[2, 7\]; \[\.\.\., 6\] is accepted"):
        turbo_gemm.Float8Linear(6, 8)(torch.ones(2, 7))
    with pytest.raises(
        UnsupportedError, match="Float4Linear: config is a Float8QuantConfig; a Float4QuantConfig or None"
    ):
        turbo_gemm.Float4Linear(6, 8, config=Float8QuantConfig())
    with pytest.raises(UnsupportedError, match="Float8Linear: config is a Float4QuantConfig"):
        turbo_gemm.Float8Linear.from_float(torch.nn.Linear(6, 8), Float4QuantConfig())
    with pytest.raises(UnsupportedError, match="Float8Linear.from_float: mod is a ReLU; a Linear is accepted"):
        turbo_gemm.Float8Linear.from_float(torch.nn.ReLU())
