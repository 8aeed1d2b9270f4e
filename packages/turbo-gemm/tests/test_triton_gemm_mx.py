# SPDX-License-Identifier: MIT
"""The Triton MX GEMM by itself: on the GPU when there is one, in the simulator when it is on, else interpreted.

Payloads and scales are random bytes: equal scales would hide a scale that is applied to the wrong block.
"""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from turbo_core import simulated_arch  # noqa: E402
from turbo_core.number_formats import fp8_formats  # noqa: E402
from turbo_gemm.triton import gemm_fp8  # noqa: E402
from turbo_testing import cases  # noqa: E402
from turbo_testing.gemm_calls import launch, mx_call  # noqa: E402
from turbo_testing.metrics import assert_close, assert_snr  # noqa: E402

CASES = cases.load("turbo-gemm")
GPU = torch.cuda.is_available()
PAIRS = (("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2"), ("e2m1", "e2m1"))
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
_TRITON_NAMES = {"e4m3": "fp8e4nv", "e5m2": "fp8e5"}

pairs = pytest.mark.parametrize("pair", PAIRS, ids=["x".join(pair) for pair in PAIRS])


def operand(rows, K, kind, device):
    """(payload, scale, float64 values on the CPU) of a random [rows, K]."""
    scale = torch.randint(119, 136, (rows, K // 32), dtype=torch.uint8)
    if kind == "e2m1":
        codes = torch.randint(0, 16, (rows, K))
        payload, values = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8), E2M1[codes]
    else:
        table = torch.from_numpy(fp8_formats()[_TRITON_NAMES[kind]].values).double()
        finite = torch.nonzero(table.isfinite() & (table.abs() < 32)).squeeze(1)
        payload = finite[torch.randint(0, len(finite), (rows, K))].to(torch.uint8)
        values = table[payload.long()]
    wide = values * torch.exp2(scale.double() - 127).repeat_interleave(32, 1)
    return payload.to(device), scale.to(device), wide


def problem(M, N, K, pair, device):
    a, a_scale, wide_a = operand(M, K, pair[0], device)
    b, b_scale, wide_b = operand(N, K, pair[1], device)
    expected = wide_a @ wide_b.t()
    unit = float((wide_a.square().mean() * wide_b.square().mean()).sqrt()) * math.sqrt(K) if M and N and K else 1.0
    return (a, a_scale, b, b_scale), expected, unit


def run(tensors, pair, out_dtype=torch.float32, out=None, accumulate=False, **options):
    """C by the launcher, written into ``out`` or added to it."""
    call = mx_call(*tensors, pair, out_dtype, out=out if accumulate else None, **options)
    return launch(gemm_fp8, call, c=out)


@pairs
@pytest.mark.parametrize("M, N, K", CASES.MX_CPU)
def test_product(M, N, K, pair, device):
    tensors, expected, unit = problem(M, N, K, pair, device)
    out = torch.full((M, N), float("nan"), device=device)
    assert run(tensors, pair, out=out) is out
    assert_close(out.cpu().double() / unit, expected / unit, dtype=torch.float32)


@pytest.mark.gpu
@pairs
def test_full_matrix(pair, device):
    for M, N, K in CASES.MX_FULL:
        tensors, expected, _ = problem(M, N, K, pair, device)
        out = torch.full((M, N), float("nan"), device=device)
        run(tensors, pair, out=out)
        assert_snr(out.cpu(), expected, 90, f"{M}x{N}x{K}")


@pairs
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_bias_and_accumulate(pair, out_dtype, device):
    M, N, K = 33, 40, 256
    tensors, expected, unit = problem(M, N, K, pair, device)
    tensors = (*tensors[:3], tensors[3] - 12)  # float16 holds up to 65504
    expected, unit = expected / 4096, unit / 4096
    bias = torch.randn(N * 2, device=device)[::2] * unit
    old = (torch.randn(M, N, device=device) * unit).to(out_dtype)
    whole = torch.full((M * 2, N * 2), float("nan"), dtype=out_dtype, device=device)
    out = whole[::2, 1::2].copy_(old)
    run(tensors, pair, out_dtype, bias=bias, out=out, accumulate=True)
    expected = expected + bias.cpu().double() + old.cpu().double()
    assert_close(out.cpu().double() / unit, expected / unit, dtype=torch.bfloat16)
    assert whole[1::2].isnan().all() and whole[:, ::2].isnan().all()


@pairs
def test_strides(pair, device):
    tensors, expected, unit = problem(33, 40, 256, pair, device)
    strided = []
    for x in tensors:
        whole = torch.full((x.shape[1] * 2, x.shape[0] * 3), 0xFF, dtype=torch.uint8, device=device)
        strided.append(whole[::2, ::3].copy_(x.t()).t())
    assert_close(run(strided, pair).cpu().double() / unit, expected / unit, dtype=torch.float32)


@pytest.mark.parametrize("M, N, K", [(0, 16, 128), (16, 0, 128), (16, 16, 0)])
def test_empty(M, N, K, device):
    pair = PAIRS[0]
    tensors, _, _ = problem(M, N, K, pair, device)
    bias = torch.randn(N, device=device)
    assert torch.equal(run(tensors, pair, bias=bias), bias.expand(M, N))


@pairs
def test_nan_scale_stays_in_its_row(pair, device):
    """Byte 255 over a payload of zeros."""
    tensors, expected, unit = problem(40, 33, 128, pair, device)
    tensors[1][3, 2] = 255
    tensors[0][3] = 0
    out = run(tensors, pair).cpu()
    assert out[3].isnan().all()
    rest = torch.arange(40) != 3
    assert_close(out[rest].double() / unit, expected[rest] / unit, dtype=torch.float32)


@pytest.mark.skipif(GPU, reason="the interpreter stands in for an architecture; a GPU is its own")
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pairs
def test_rows_of_an_architecture(arch, pair, device):
    with simulated_arch(arch):
        for M, N, K in ((128, 128, 256), (17, 65, 128)):
            tensors, expected, unit = problem(M, N, K, pair, device)
            assert_close(run(tensors, pair).cpu().double() / unit, expected / unit, dtype=torch.float32)


def test_torch_types(device):
    """The types that turbo-quant gives: FP8, E8M0 and, where torch has it, packed FP4."""
    tensors, expected, unit = problem(33, 16, 128, PAIRS[0], device)
    e4m3, e8m0 = torch.float8_e4m3fn, getattr(torch, "float8_e8m0fnu", torch.uint8)
    typed = [x.view(t) for x, t in zip(tensors, (e4m3, e8m0, e4m3, e8m0))]
    assert torch.equal(run(typed, PAIRS[0]), run(tensors, PAIRS[0]))
