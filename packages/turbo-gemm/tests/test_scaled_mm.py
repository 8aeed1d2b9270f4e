# SPDX-License-Identifier: MIT
"""The HIPBLASLT backend of gemm_fp8 and gemm_fp4: what it refuses, and what it hands to ``torch._scaled_mm``."""

import pytest
import torch

from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.calls import GemmFp8Call, Operand
from turbo_gemm.pytorch.kernels import gemm_fp8_reference, scaled_mm
from turbo_gemm.pytorch.ops.gemm_fp4 import GEMM_FP4
from turbo_gemm.pytorch.ops.gemm_fp8 import GEMM_FP8
from turbo_testing.metrics import assert_close
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS
from turbo_testing.support_table import PLACES, standing_on

BF16, FP32 = torch.bfloat16, torch.float32
CONFIGS = {**FP8_CONFIGS, **FP4_CONFIGS}


@pytest.fixture(autouse=True)
def rocm_7(monkeypatch):
    monkeypatch.setattr(scaled_mm, "_hip_version", lambda: (7, 0))


def answer(place, config, role="forward", m=256, n=512, k=128, trans_a=False, trans_b=True, change=None, **options):
    """why_not of one of the three products on a device of that kind."""
    with standing_on(PLACES[place]) as where:
        a = torch.empty((k, m) if trans_a else (m, k), dtype=BF16, device=where)
        b = torch.empty((n, k) if trans_b else (k, n), dtype=BF16, device=where)
        info = GEMM_FP4 if config.startswith("mxfp4") else GEMM_FP8
        call = info.calls(a, b, trans_a, trans_b, config=CONFIGS[config], **options)[role]
        return scaled_mm.why_not(call if change is None else change(call))


TAKEN = [
    ("gfx942", "tensorwise-e4m3", {}),
    ("gfx950", "tensorwise-hybrid", {"role": "wgrad"}),
    ("NVIDIA", "tensorwise-e4m3", {"trans_a": True, "trans_b": True}),
    ("NVIDIA", "tensorwise-e4m3", {"m": 255}),
    ("NVIDIA", "tensorwise-hybrid", {"role": "dgrad", "out_dtype": FP32}),
    ("gfx942", "tensorwise-e5m2", {}),
    ("gfx942", "rowwise-e4m3", {}),
    ("NVIDIA", "rowwise-hybrid", {"role": "wgrad"}),
    ("gfx950", "mx-e4m3", {}),
    ("gfx950", "mx-e4m3", {"k": 100}),  # its padding is made by the quantisation
    ("gfx950", "mxfp4", {"role": "dgrad"}),
]


@pytest.mark.parametrize(("place", "config", "options"), TAKEN)
def test_taken(place, config, options):
    assert answer(place, config, **options) is None


REFUSED = [
    ("CPU", "tensorwise-e4m3", {}, "a is on cpu"),
    ("NVIDIA", "blockwise-e4m3", {}, "these are BLOCKWISE"),
    ("NVIDIA", "tensorwise-e4m3", {"n": 500}, "K=128 and N=500 must be multiples of 16"),
    ("NVIDIA", "tensorwise-e4m3", {"k": 120}, "K=120 and N=512 must be multiples of 16"),
    ("NVIDIA", "tensorwise-e4m3", {"m": 250, "role": "wgrad"}, "K=250 and N=128"),
    ("NVIDIA", "tensorwise-e5m2", {}, "both operands are e5m2"),
    ("NVIDIA", "rowwise-e4m3", {"out_dtype": FP32}, "out_dtype is torch.float32; ROWWISE products come in"),
    ("gfx942", "rowwise-hybrid", {"role": "wgrad", "trans_b": False}, "the second operand is e5m2"),
    ("NVIDIA", "mx-e4m3", {}, "this is sm_90; torch's MX product is used on gfx950 only"),
    ("gfx942", "mx-e4m3", {}, "this is gfx942; torch's MX product"),
    ("gfx942", "mxfp4", {}, "this is gfx942; torch's MX product"),
    ("gfx950", "mx-e4m3", {"m": 100}, "M=100 must be a multiple of 16"),
    ("gfx950", "mx-e4m3", {"out_dtype": FP32}, "MX products come in torch.bfloat16 and torch.float16"),
    ("gfx950", "mxfp4-preshuffled", {}, "preshuffled for AITER"),
]


@pytest.mark.parametrize(("place", "config", "options", "reason"), REFUSED)
def test_refused_with_the_reason(place, config, options, reason):
    assert reason in answer(place, config, **options)


def test_accumulation_is_refused_where_products_come_rounded():
    def accumulated(call):
        return call._replace(out=call.a.data.new_empty((512, 128), dtype=FP32), out_dtype=FP32)

    assert answer("NVIDIA", "tensorwise-e4m3", role="wgrad", change=accumulated) is None
    assert "too coarse" in answer("NVIDIA", "rowwise-e4m3", role="wgrad", change=accumulated)
    assert "too coarse" in answer("gfx950", "mx-e4m3", role="wgrad", change=accumulated)


def test_types_of_another_device_are_refused():
    def ocp(call):
        return call._replace(a=as_ocp(call.a), b=as_ocp(call.b))

    assert "do not take" in answer("gfx942", "tensorwise-e4m3", change=ocp)
    mixed = "both must be OCP types, or both FNUZ types"
    assert mixed in answer("gfx942", "tensorwise-e4m3", change=lambda c: c._replace(b=as_ocp(c.b)))


def test_old_rocm(monkeypatch):
    monkeypatch.setattr(scaled_mm, "_hip_version", lambda: (6, 4))
    assert "need ROCm 6.5" in answer("gfx950", "tensorwise-e4m3")
    assert "need ROCm 7.0" in answer("gfx950", "mx-e4m3")
    assert answer("gfx942", "tensorwise-e4m3") is None


# --- what is executed; torch has a scaled product for CPU tensors too -----------------------------------------------


def as_ocp(operand):
    return operand._replace(data=operand.data.view(torch.float8_e4m3fn))


def tensorwise(trans_a, trans_b, **options):
    a = torch.randn((32, 48) if trans_a else (48, 32)).to(torch.float8_e4m3fn)
    b = torch.randn((64, 32) if trans_b else (32, 64)).to(torch.float8_e4m3fn)
    scales = torch.tensor(0.5), torch.tensor(0.25)
    a, b = Operand(a, scales[0], trans_a), Operand(b, scales[1], trans_b)
    call = GemmFp8Call(a, b, None, ScalingGranularity.TENSORWISE, 0, BF16)
    return call._replace(**options)


@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (False, True), (True, False), (True, True)])
def test_every_layout_reaches_torch_as_row_major_times_column_major(monkeypatch, trans_a, trans_b):
    seen = []
    product = torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, **kwargs: seen.append((a, b)) or product(a, b, **kwargs))
    call = tensorwise(trans_a, trans_b)
    assert_close(scaled_mm.run(call), gemm_fp8_reference.run(call).double(), dtype=BF16)
    a, b = seen[0]
    assert (a.shape, a.stride()) == ((48, 32), (32, 1))
    assert (b.shape, b.stride()) == ((32, 64), (1, 32))
    # what lies right is not copied
    assert (a.untyped_storage().data_ptr() == call.a.data.untyped_storage().data_ptr()) is not trans_a
    assert (b.untyped_storage().data_ptr() == call.b.data.untyped_storage().data_ptr()) is trans_b


def test_a_single_row_and_an_odd_offset(monkeypatch):
    """A column that is read as a row has strides that say column-major; a view may begin anywhere."""
    seen = []
    product = torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, **kwargs: seen.append((a, b)) or product(a, b, **kwargs))
    call = tensorwise(True, True)
    call = call._replace(a=call.a._replace(data=torch.randn(32, 1).to(torch.float8_e4m3fn)))
    storage = torch.zeros(64 * 32 + 32, dtype=torch.uint8).view(torch.float8_e4m3fn)
    start = 3 + (-storage.data_ptr()) % 16
    view = storage[start : start + 64 * 32].view(64, 32)
    view.copy_(call.b.data)
    call = call._replace(b=call.b._replace(data=view))
    assert_close(scaled_mm.run(call), gemm_fp8_reference.run(call).double(), dtype=BF16)
    assert seen[0][0].stride() == (32, 1)
    assert seen[0][1].data_ptr() % 16 == 0


@pytest.mark.parametrize("granularity", [ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE])
def test_scales_and_bias_begin_on_16_bytes(monkeypatch, granularity):
    """Field case: one of several scales in a tensor, which cuBLASLt refuses at any address but an aligned one."""
    seen = []

    def product(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum):
        seen.extend((scale_a, scale_b, bias))
        return (a.float() * scale_a) @ (b.float() * scale_b) + bias

    monkeypatch.setattr(torch, "_scaled_mm", product)
    call = tensorwise(False, True, bias=torch.randn(65).bfloat16()[1:])
    if granularity is ScalingGranularity.TENSORWISE:
        scales = torch.rand(3)[1], torch.rand(3)[2]
    else:
        scales = torch.rand(49, 1)[1:], torch.rand(65, 1)[1:]
    a, b = (x._replace(scale_inv=scale) for x, scale in zip((call.a, call.b), scales))
    call = call._replace(granularity=granularity, a=a, b=b)
    assert_close(scaled_mm.run(call), gemm_fp8_reference.run(call).double(), dtype=BF16)
    for tensor in seen:
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 16 == 0


@pytest.mark.parametrize("out_dtype", [BF16, FP32], ids=str)
def test_bias_and_accumulation(out_dtype):
    call = tensorwise(False, True, bias=torch.randn(64), out_dtype=out_dtype)
    assert_close(scaled_mm.run(call), gemm_fp8_reference.run(call).double(), dtype=out_dtype)
    out = torch.randn(48, 64).to(out_dtype)
    call = tensorwise(False, True, out=out, out_dtype=out_dtype)
    expected = out.double() + gemm_fp8_reference.run(call._replace(out=None, out_dtype=FP32)).double()
    assert scaled_mm.run(call) is out
    assert_close(out, expected)


def test_mx_scales_are_padded_to_whole_tiles():
    from turbo_gemm.pytorch.kernels.scaled_mm import _scale

    a, b = torch.empty(48, 128, dtype=torch.float8_e4m3fn), torch.empty(16, 128, dtype=torch.float8_e4m3fn)
    bytes_ = torch.randint(0, 255, (48, 4), dtype=torch.uint8)
    mx = ScalingGranularity.MX_BLOCKWISE
    scale = bytes_.view(torch.float8_e8m0fnu)
    call = GemmFp8Call(Operand(a, scale), Operand(b, scale[:16], True), None, mx, 32, BF16)
    padded = _scale(call, call.a)
    assert padded.shape == (128, 4)
    assert padded.is_contiguous()
    assert torch.equal(padded.view(torch.uint8)[:48], bytes_)
