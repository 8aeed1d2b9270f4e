# SPDX-License-Identifier: MIT
"""The HIPBLASLT backend of grouped_gemm_fp8: what it refuses, and what it hands to ``torch._scaled_grouped_mm``."""

import pytest
import torch

from turbo_grouped_gemm.pytorch.kernels import grouped_gemm_fp8_reference, grouped_scaled_mm
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8 import GROUPED_GEMM_FP8, grouped_gemm_fp8
from turbo_testing.metrics import assert_close
from turbo_testing.quantised import FP8_CONFIGS
from turbo_testing.support_table import PLACES, standing_on

BF16, FP32 = torch.bfloat16, torch.float32


def answer(place, config, role="forward", groups=3, rows=256, n=512, k=128, change=None, **options):
    """why_not of one of the three products on a device of that kind."""
    with standing_on(PLACES[place]) as where:
        a = torch.empty(rows, k, dtype=BF16, device=where)
        b = torch.empty(groups, n, k, dtype=BF16, device=where)
        lens = torch.empty(groups, dtype=torch.int64, device=where)
        options = {name: value(where) if callable(value) else value for name, value in options.items()}
        call = GROUPED_GEMM_FP8.calls(a, b, lens, config=FP8_CONFIGS[config], **options)[role]
        return grouped_scaled_mm.why_not(call if change is None else change(call))


def index(size):
    return lambda where: torch.empty(size, dtype=torch.int64, device=where)


@pytest.mark.parametrize("role", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize("config", ["tensorwise-e4m3", "rowwise-e4m3"])
def test_taken(config, role):
    assert answer("NVIDIA", config, role, rows=251) is None


REFUSED = [
    ("CPU", "tensorwise-e4m3", {}, "operands are on cpu"),
    ("NVIDIA", "blockwise-e4m3", {}, "scales are BLOCKWISE; torch's scaled grouped product takes ROWWISE"),
    ("NVIDIA", "mx-e4m3", {}, "scales are MX_BLOCKWISE"),
    ("NVIDIA", "rowwise-e5m2", {}, "an operand is torch.float8_e5m2"),
    ("NVIDIA", "rowwise-hybrid", {"role": "wgrad"}, "an operand is torch.float8_e5m2"),
    ("NVIDIA", "rowwise-e4m3", {"n": 500}, "sizes [128, 500] must be multiples of 16"),
    ("NVIDIA", "rowwise-e4m3", {"k": 100, "role": "wgrad"}, "must be multiples of 16"),
    ("NVIDIA", "rowwise-e4m3", {"out_dtype": FP32}, "out_dtype is torch.float32"),
    ("NVIDIA", "rowwise-e4m3", {"groups": 1025}, "there are 1025 groups"),
    ("NVIDIA", "rowwise-e4m3", {"num_cu": 8}, "num_cu is 8"),
    ("NVIDIA", "rowwise-e4m3", {"schedule": "work_steal"}, "schedule is 'work_steal'"),
    ("NVIDIA", "rowwise-e4m3", {"group_offs": index(4)}, "groups have offsets"),
    ("NVIDIA", "rowwise-e4m3", {"a_idx": index(99)}, "rows are taken by indices"),
    ("NVIDIA", "rowwise-e4m3", {"bias": lambda w: torch.empty(3, 512, dtype=BF16, device=w)}, "there is a bias"),
]


@pytest.mark.parametrize(("place", "config", "options", "reason"), REFUSED)
def test_refused_with_the_reason(place, config, options, reason):
    assert reason in answer(place, config, **options)


def test_accumulation_is_refused():
    def accumulated(call):
        return call._replace(out=call.x.data.new_empty((3, 512, 128), dtype=FP32), out_dtype=FP32)

    assert "too coarse" in answer("NVIDIA", "rowwise-e4m3", role="wgrad", change=accumulated)


@pytest.mark.parametrize("failure", ["no kernels", None])
def test_builds_for_rocm_are_asked(monkeypatch, failure):
    """Its kernels are an option of the build, so a small product is tried."""
    monkeypatch.setattr(grouped_scaled_mm, "_why_it_fails", lambda device: failure)
    assert answer("gfx942", "rowwise-e4m3") == failure


def stand_in(a, b, scale_a, scale_b, offs, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    """What torch documents: groups end at ``offs``; what lies behind them, and groups without rows, stay garbage."""
    assert a.stride(-1) == 1 and b.stride(-2) == 1 and offs.dtype is torch.int32
    starts = [0, *offs.tolist()]
    wide_a, wide_b = a.double(), b.double()
    if b.dim() == 3:
        assert scale_a.shape == a.shape[:1] and scale_b.shape == (b.shape[0], b.shape[2])
        out = torch.full((a.shape[0], b.shape[2]), torch.nan, dtype=torch.float64)
        for g, (i, j) in enumerate(zip(starts, starts[1:])):
            out[i:j] = (wide_a[i:j] @ wide_b[g]) * scale_a[i:j, None] * scale_b[g]
        return out.to(out_dtype)
    groups = len(offs)
    assert scale_a.shape == (groups * a.shape[0],) and scale_b.shape == (groups * b.shape[1],)
    scale_a, scale_b = scale_a.view(groups, -1), scale_b.view(groups, -1)
    out = torch.full((groups, a.shape[0], b.shape[1]), torch.nan, dtype=torch.float64)
    for g, (i, j) in enumerate(zip(starts, starts[1:])):
        if j > i:
            out[g] = (wide_a[:, i:j] @ wide_b[i:j]) * scale_a[g][:, None] * scale_b[g]
    return out.to(out_dtype)


@pytest.mark.parametrize("config", ["tensorwise-e4m3", "rowwise-e4m3"])
@pytest.mark.parametrize("trans_b", [True, False])
def test_what_torch_is_asked(monkeypatch, device, config, trans_b):
    """With a stand-in for torch's product, on any device."""
    seen, run = [], grouped_gemm_fp8_reference.run

    def both(call):
        monkeypatch.setattr(torch, "_scaled_grouped_mm", stand_in, raising=False)
        seen.append((run(call), grouped_scaled_mm.run(call)))
        return seen[-1][0]

    monkeypatch.setattr(grouped_gemm_fp8_reference, "run", both)
    a = torch.randn(40, 32, device=device).bfloat16().requires_grad_()
    b = torch.randn((3, 48, 32) if trans_b else (3, 32, 48), device=device).bfloat16().requires_grad_()
    lens = torch.tensor([19, 0, 13], device=device)
    grouped_gemm_fp8(a, b, lens, trans_b=trans_b, config=FP8_CONFIGS[config]).sum().backward()
    assert len(seen) == 3
    for want, got in seen:
        assert got.is_contiguous()
        assert_close(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("config", ["tensorwise-e4m3", "rowwise-e4m3"])
def test_against_plain_torch(device, config):
    a = torch.randn(700, 256, device=device).bfloat16()
    b = torch.randn(4, 512, 256, device=device).bfloat16()
    lens = torch.tensor([300, 0, 41, 350], device=device)
    calls, run = [], grouped_gemm_fp8_reference.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIMUS_TURBO_GROUPED_GEMM_BACKEND", "torch")
        patch.setattr(grouped_gemm_fp8_reference, "run", lambda call: calls.append(call) or run(call))
        b.requires_grad_(), a.requires_grad_()
        grouped_gemm_fp8(a, b, lens, config=FP8_CONFIGS[config]).sum().backward()
    for call in calls:
        if (reason := grouped_scaled_mm.why_not(call)) is not None:
            pytest.skip(reason)
        assert_close(grouped_scaled_mm.run(call), run(call))
