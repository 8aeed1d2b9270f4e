# SPDX-License-Identifier: MIT
"""TurboAttention's choice among the functions: dense, ragged, FP8; and what it refuses."""

import copy

import pytest
import torch

from turbo_attention import TurboAttention, flash_attn_fp8_func, flash_attn_func
from turbo_core import UnsupportedError
from turbo_core.low_precision import Float8QuantConfig, Format, ScalingGranularity
from turbo_testing.attention_references import attention
from turbo_testing.metrics import assert_snr

CONFIG = Float8QuantConfig(granularity=ScalingGranularity.BLOCKWISE, block_size=64)


def draw(device, dtype=torch.bfloat16):
    return [torch.randn(2, 70, heads, 32, device=device).to(dtype).requires_grad_() for heads in (4, 2, 2)]


@pytest.mark.parametrize("options", [{"causal": True}, {"softmax_scale": 0.3, "window_size": (40, 3)}], ids=str)
def test_fp8(backend, device, options):
    q, k, v = draw(device)
    sink = torch.nn.Parameter(torch.randn(4, device=device))
    module = TurboAttention(**options, fp8_config=CONFIG, return_lse=True, sink=sink)
    out, lse = module(q, k, v)
    same, same_lse = flash_attn_fp8_func(q, k, v, **options, fp8_config=CONFIG, return_lse=True, sink=sink)
    assert torch.equal(out, same) and torch.equal(lse, same_lse)
    assert not torch.equal(out, flash_attn_func(q, k, v, **options, sink=sink)), "it is rounded to 8 bits"
    left, right = options.get("window_size", (-1, -1))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v, sink)]
    scale = options.get("softmax_scale", 32**-0.5)
    wanted, _ = attention(*wide[:3], scale, left, 0 if options.get("causal") else right, sink=wide[3])
    dout = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v, sink), dout)
    assert_snr(out, wanted.detach(), 20)
    for one, other in zip(found[:3], torch.autograd.grad(wanted, wide[:3], dout.double())):
        assert_snr(one, other, 20)
    again = torch.autograd.grad(same, (q, k, v, sink), dout)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


def test_fp8_config_is_the_ninth_and_stays(device):
    """As frameworks call it: positional options, groups that are None, copies of the module."""
    q, k, v = draw(device)
    module = TurboAttention(0.0, None, True, (-1, -1), None, False, False, False, CONFIG, None, None)
    expected = flash_attn_fp8_func(q, k, v, causal=True, fp8_config=CONFIG)
    for one in (module, copy.deepcopy(module), TurboAttention(causal=True, fp8_config=CONFIG, ulysses_group=None)):
        assert torch.equal(one(q, k, v), expected) and "fp8_config=Float8QuantConfig(" in repr(one)
    assert "fp8_config" not in repr(TurboAttention())
    plain = TurboAttention(causal=True, fp8_config=None, ring_group=None)
    assert torch.equal(plain(q, k, v), flash_attn_func(q, k, v, causal=True))


@pytest.mark.parametrize(
    "config",
    [
        Float8QuantConfig(),
        Float8QuantConfig(granularity=ScalingGranularity.BLOCKWISE, block_size=128),
        Float8QuantConfig(Format.E5M2, ScalingGranularity.BLOCKWISE, block_size=64),
        "fp8",
        True,
    ],
    ids=str,
)
def test_other_configs_are_refused_where_the_module_is_made(config):
    with pytest.raises(UnsupportedError, match=r"TurboAttention: fp8_config=.*block_size=64 is accepted"):
        TurboAttention(fp8_config=config)


@pytest.mark.parametrize("name", ["ulysses_group", "ring_group"])
def test_groups_are_refused(name):
    with pytest.raises(UnsupportedError, match=f"TurboAttention: {name} is a object; None is accepted: context parall"):
        TurboAttention(**{name: object()})


def test_fp8_of_ragged_batches_is_refused(device):
    x = torch.randn(6, 2, 16, device=device)
    cu = torch.tensor([0, 2, 6], dtype=torch.int32, device=device)
    lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 4, "max_seqlen_k": 4}
    with pytest.raises(UnsupportedError, match="TurboAttention: cu_seqlens_q, .* with fp8_config; .*None is accepted"):
        TurboAttention(fp8_config=CONFIG)(x, x, x, **lengths)
