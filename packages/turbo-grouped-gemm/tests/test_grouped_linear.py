# SPDX-License-Identifier: MIT
"""GroupedLinear is a torch.nn.Linear for each group."""

import pytest
import torch

import turbo_grouped_gemm as tgg
from turbo_core import UnsupportedError, trace_dispatch
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig
from turbo_testing.metrics import assert_close
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS

LENS = [3, 0, 4]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", ["one after the other", "offsets", "masked"])
def test_a_linear_layer_for_each_group(device, bias, layout):
    layer = tgg.GroupedLinear(3, 6, 8, bias=bias, device=device)
    assert layer.weight.shape == (3, 8, 6)
    assert (layer.bias is not None) == bias
    lens, offs = torch.tensor(LENS, device=device), None
    starts = {"one after the other": (0, 3, 3), "offsets": (1, 4, 5), "masked": (0, 5, 10)}[layout]
    rows = {"one after the other": 7, "offsets": 10, "masked": 15}[layout]
    x = torch.randn(rows, 6, device=device, requires_grad=True)
    if layout == "offsets":
        offs = torch.tensor([*starts, 9], device=device)
    y = layer(x.view(3, 5, 6) if layout == "masked" else x, lens, offs).reshape(rows, 8)
    grad = torch.randn(rows, 8, device=device)
    found = torch.autograd.grad(y, (x, *layer.parameters()), grad)
    expected = torch.zeros(rows, 8, device=device)
    for g, (start, count) in enumerate(zip(starts, LENS, strict=True)):
        rows_of = slice(start, start + count)
        one = None if layer.bias is None else layer.bias[g]
        expected[rows_of] = torch.nn.functional.linear(x[rows_of], layer.weight[g], one)
    assert_close(y, expected, what="y")
    for one, other in zip(found, torch.autograd.grad(expected, (x, *layer.parameters()), grad), strict=True):
        assert_close(one, other)


def test_initialised_as_torch_does():
    torch.manual_seed(0)
    layer = tgg.GroupedLinear(4, 64, 32, bias=True)
    other = torch.nn.Linear(64, 32)
    for name in ("weight", "bias"):
        bound = float(getattr(other, name).detach().abs().max())
        assert 0.9 * bound < float(getattr(layer, name).detach().abs().max()) <= 64**-0.5
    assert "4, 64, 32, bias=True" in repr(layer)
    assert set(layer.state_dict()) == {"weight", "bias"}


def test_made_on_meta_and_reset(device):
    layer = tgg.GroupedLinear(2, 6, 8, device="meta", dtype=torch.bfloat16)
    layer = layer.to_empty(device=device)
    layer.reset_parameters()
    assert layer.weight.dtype is torch.bfloat16 and layer.weight.isfinite().all()


def test_wrong_width_is_refused():
    with pytest.raises(UnsupportedError, match="grouped_gemm: K is 7 by a"):
        tgg.GroupedLinear(3, 6, 8)(torch.ones(7, 7), torch.tensor(LENS))


@pytest.mark.parametrize(
    "config", [Float8QuantConfig(), FP4_CONFIGS["mxfp4"], FP8_CONFIGS["mx-hybrid"]], ids=["fp8", "fp4", "mx"]
)
def test_quantised_products(device, config):
    layer = tgg.GroupedLinear(3, 32, 48, bias=True, device=device, config=config)
    x, lens = torch.randn(7, 32, device=device), torch.tensor(LENS, device=device)
    product = tgg.grouped_gemm_fp4 if isinstance(config, Float4QuantConfig) else tgg.grouped_gemm_fp8
    assert torch.equal(layer(x, lens), product(x, layer.weight, lens, config=config, bias=layer.bias))
    assert config.granularity.name in repr(layer)
    assert set(layer.state_dict()) == {"weight", "bias"}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["tensorwise-e4m3", "rowwise-e4m3", "blockwise-e4m3", "mx-e4m3"])
def test_a_weight_is_quantised_once_a_step(device, name, fused):
    """For all micro-batches, also where the first one's backward does not want the gradient of x."""
    layer = tgg.GroupedLinear(3, 32, 48, device=device, config=FP8_CONFIGS[name], fuse_wgrad_accumulation=fused)
    layer.weight.main_grad, layer.weight.grad_added_to_main_grad = torch.zeros(3, 48, 32, device=device), False
    lens = torch.tensor(LENS, device=device)
    for step in range(2):
        for batch in range(3):
            x = torch.randn(7, 32, device=device, requires_grad=batch > 0)
            leaves = (layer.weight, x) if batch else (layer.weight,)
            results = []
            for first in (batch == 0, None):
                with trace_dispatch() as trace:
                    y = layer(x, lens, is_first_microbatch=first)
                quantised = sum(record.op == "quantize" for record in trace.records)
                assert quantised == (1 if first is False else 2)
                results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
            for one, other in zip(*results, strict=True):
                assert torch.equal(one, other), (step, batch)
        with torch.no_grad():
            layer.weight.mul_(2)


def test_configs_and_micro_batches_that_do_not_fit():
    with pytest.raises(UnsupportedError, match="GroupedLinear: config is a str; a Float8QuantConfig, a Float4Quant"):
        tgg.GroupedLinear(3, 6, 8, config="fp8")
    layer = tgg.GroupedLinear(3, 32, 48, config=Float8QuantConfig())
    with pytest.raises(UnsupportedError, match="is_first_microbatch=False before a call with True"):
        layer(torch.ones(7, 32), torch.tensor(LENS), is_first_microbatch=False)
