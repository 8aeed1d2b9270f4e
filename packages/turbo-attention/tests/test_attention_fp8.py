# SPDX-License-Identifier: MIT
"""flash_attn_fp8_func: signal to noise of out and gradients, any length, all layouts, windows and sinks."""

import pytest
import torch

from turbo_attention import flash_attn_fp8_func
from turbo_attention.pytorch.kernels.fp8_reference import dequantize_rows, quantize_rows
from turbo_core import UnsupportedError, why_no_triton
from turbo_core.low_precision import Float8QuantConfig, Format, ScalingGranularity, fp8_dtype
from turbo_testing.attention_references import attention
from turbo_testing.cases import load
from turbo_testing.metrics import assert_snr

cases = load("turbo-attention")
SNR = 20


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize(
    "lengths", [(64, 64), (1, 130), pytest.param((100, 33), marks=pytest.mark.simulated), (129, 200)], ids=str
)
@pytest.mark.parametrize("options", [{}, {"causal": True, "sink": True}, {"window_size": (40, 3)}], ids=str)
def test_signal_to_noise(backend, device, layout, lengths, options):
    sq, sk = lengths

    def make(S, H):
        order = {"bshd": (2, S, H), "sbhd": (S, 2, H), "bhsd": (2, H, S)}[layout]
        x = torch.randn(*order, 32, device=device).bfloat16()
        x = {"bshd": x, "sbhd": x.transpose(0, 1), "bhsd": x.transpose(1, 2)}[layout]
        return x.detach().requires_grad_()

    q, k, v = make(sq, 4), make(sk, 2), make(sk, 2)
    options = dict(options)
    sink = torch.randn(4, device=device, requires_grad=True) if options.pop("sink", False) else None
    out, lse = flash_attn_fp8_func(q, k, v, **options, sink=sink, return_lse=True)
    assert out.dtype == torch.bfloat16 and (sq == 1 or out.stride() == q.stride())
    left, right = options.get("window_size", (-1, -1))
    wanted, wanted_lse = attention(q, k, v, 32**-0.5, left, 0 if options.get("causal") else right, sink=sink)
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), dout)
    exact = torch.autograd.grad(wanted, (q, k, v), dout.double())
    assert_snr(out, wanted.detach(), SNR, what="out")
    for name, actual, gradient in zip(("dq", "dk", "dv"), got, exact, strict=True):
        assert_snr(actual, gradient, SNR, what=name)
    seen = wanted_lse != -torch.inf
    assert torch.equal(lse != -torch.inf, seen)
    assert_snr(lse[seen], wanted_lse[seen].detach(), SNR, what="lse")


@pytest.mark.parametrize(
    "widths",
    [(8, 8), pytest.param((16, 24), marks=pytest.mark.simulated), (40, 40), (64, 64), (80, 96), (128, 128), (192, 128)],
    ids=str,
)
def test_head_dims(backend, device, widths):
    """Heads narrower than the 32 columns that FP8 matrix units take at a time, and odd ones."""
    D, DV = widths
    q, k = (torch.randn(1, 70, 2, D, device=device).bfloat16().requires_grad_() for _ in range(2))
    v = torch.randn(1, 70, 2, DV, device=device).bfloat16().requires_grad_()
    out = flash_attn_fp8_func(q, k, v, causal=True)
    wanted, _ = attention(q, k, v, D**-0.5, -1, 0)
    assert_snr(out, wanted.detach(), SNR, what="out")
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), dout)
    for name, actual, exact in zip(("dq", "dk", "dv"), got, torch.autograd.grad(wanted, (q, k, v), dout.double())):
        assert_snr(actual, exact, SNR, what=name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_quantisation_is_the_same_in_both_backends(device, dtype):
    if reason := why_no_triton(device):
        pytest.skip(reason)
    from turbo_attention.triton.attention_fp8 import quantize_launch

    x = torch.randn(2, 130, 3, 24, device=device).to(dtype)
    x[0, 3, 1, 2], x[1, 129, 2, 0] = torch.nan, torch.inf
    x[0, 64:128, 0] = 0
    x[1, :64, 0] *= 1e-30 if dtype == torch.float32 else 1e-20
    fp8 = fp8_dtype(Format.E4M3, device)
    payload, scale = quantize_rows(x, fp8)
    payload_triton, scale_triton = torch.empty_like(payload), torch.empty_like(scale)
    quantize_launch(x, payload_triton, scale_triton).run(device)
    assert torch.equal(payload.view(torch.uint8), payload_triton.view(torch.uint8))
    assert torch.equal(scale.view(torch.int32), scale_triton.view(torch.int32)) or torch.allclose(
        scale, scale_triton, rtol=0, atol=0, equal_nan=True
    )


def test_blocks_of_zeros_and_nan(device):
    x = torch.randn(1, 130, 2, 16, device=device)
    x[0, 64:128, 0] = 0
    x[0, 5, 1, 3] = torch.nan
    fp8 = fp8_dtype(Format.E4M3, device)
    payload, scale = quantize_rows(x, fp8)
    back = dequantize_rows(payload, scale, torch.float32)
    assert (back[0, 64:128, 0] == 0).all() and scale[0, 0, 1] > 0 and scale[0, 0, 1].isfinite()
    assert back[0, :64, 1].isnan().all() and back[0, 64:, 1].isfinite().all() and back[0, :, 0].isfinite().all()


def test_no_scores(backend, device):
    q = torch.randn(1, 0, 2, 16, device=device, requires_grad=True)
    k = torch.randn(1, 3, 2, 16, device=device, requires_grad=True)
    flash_attn_fp8_func(q, k, k).sum().backward()
    assert (k.grad == 0).all()


@pytest.mark.parametrize(
    "config",
    [
        Float8QuantConfig(),
        Float8QuantConfig(granularity=ScalingGranularity.BLOCKWISE, block_size=128),
        Float8QuantConfig(format=Format.HYBRID, granularity=ScalingGranularity.BLOCKWISE, block_size=64),
    ],
    ids=["tensorwise", "128", "hybrid"],
)
def test_other_configs_are_refused(config):
    q = torch.randn(1, 4, 1, 16)
    with pytest.raises(UnsupportedError, match="fp8_config="):
        flash_attn_fp8_func(q, q, q, fp8_config=config)


def test_its_config_is_accepted(device):
    q = torch.randn(1, 4, 1, 16, device=device)
    config = Float8QuantConfig(granularity=ScalingGranularity.BLOCKWISE, block_size=64)
    assert torch.equal(flash_attn_fp8_func(q, q, q, fp8_config=config), flash_attn_fp8_func(q, q, q))
