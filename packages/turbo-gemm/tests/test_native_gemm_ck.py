# SPDX-License-Identifier: MIT
"""Composable kernel: numbers against the float64 product where the wheel was built with it, refusals everywhere."""

from __future__ import annotations

from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
_C = pytest.importorskip("turbo_gemm.pytorch._C", reason="turbo-gemm is not built (pip install -e)")

from turbo_core import UnsupportedError, simulated_arch  # noqa: E402
from turbo_core.low_precision import ScalingGranularity  # noqa: E402
from turbo_gemm.pytorch.kernels import native, native_ck  # noqa: E402
from turbo_gemm.pytorch.kernels.native_operands import library  # noqa: E402
from turbo_testing.gemm_calls import fp8_call  # noqa: E402
from turbo_testing.native_device import native_device  # noqa: E402
from turbo_testing.quantised_gemm import FNUZ, FP8, check_product, fp8_operand  # noqa: E402

pytestmark = pytest.mark.simulated

GRANULARITY = {
    "tensor": ScalingGranularity.TENSORWISE,
    "row": ScalingGranularity.ROWWISE,
    "block": ScalingGranularity.BLOCKWISE,
}


class Run(NamedTuple):
    device: torch.device
    types: dict[str, torch.dtype]


@pytest.fixture(params=["gfx942", "gfx950"])
def run(request):
    with native_device(request.param) as device:
        assert native.why_not_device(device) is None
        if _C.check_ck(device.index or 0) != _C.OK:
            pytest.skip("built without TURBO_BUILD_CK=1")
        yield Run(device, FNUZ if request.param == "gfx942" else FP8)


def operands(m, n, k, types, kind):
    return fp8_operand(m, k, types["e4m3"], kind), fp8_operand(n, k, types["e4m3"], kind, kind == "block")


def multiply(a, b, kind, device="cpu", **options):
    options = {"b_tiles": kind == "block", "out_dtype": torch.bfloat16} | options
    tensors = (t.to(device) for t in (*a[:2], *b[:2]))
    return native_ck.run(fp8_call(*tensors, GRANULARITY[kind], block_size=128 if kind == "block" else 0, **options))


@pytest.mark.parametrize("kind", GRANULARITY)
@pytest.mark.parametrize(
    "m, n, k", [(128, 128, 128), (1, 8, 16), (100, 136, 100), (129, 264, 64), (300, 264, 656), (7, 24, 1)]
)
def test_numbers(run, m, n, k, kind):
    a, b = operands(m, n, k, run.types, kind)
    check_product(multiply(a, b, kind, run.device), a, b)


def test_layouts(run):
    a, b = operands(60, 80, 272, run.types, "block")
    stored = [x._replace(payload=x.payload.t().contiguous(), scale=x.scale.t().contiguous()) for x in (a, b)]
    check_product(multiply(*stored, "block", run.device, trans_a=True, trans_b=False), a, b)


# --- what it refuses --------------------------------------------------------------------------------------------------


def call_of(a, b, granularity=ScalingGranularity.ROWWISE, out_dtype=torch.bfloat16, **options):
    """Of tensors alone, on which the answer depends; their scales are not looked at."""
    scale = torch.ones(())
    return fp8_call(a, scale, b, scale, granularity, out_dtype=out_dtype, **options)


@pytest.fixture
def on_fake_gfx942(fake_hip, monkeypatch):
    """Code objects as if they were there: the fake library loads none before a launch."""
    native.reset()
    _C.reset()
    with simulated_arch("gfx942"):
        yield fake_hip
    native.reset()
    _C.reset()


def test_a_wheel_without_says_how_to_get_it():
    if native_ck._built():
        pytest.skip("built with TURBO_BUILD_CK=1")
    x = torch.zeros(16, 16, dtype=torch.float8_e4m3fnuz)
    reason = native_ck.why_not(call_of(x, x))
    assert reason == "this build of turbo-gemm has no composable kernels (they are built with TURBO_BUILD_CK=1)"


def test_why_not(on_fake_gfx942, monkeypatch):
    extension = library.extension
    x = torch.zeros(16, 16, dtype=torch.float8_e4m3fnuz)
    monkeypatch.setattr(native_ck, "_built", lambda: True)
    monkeypatch.setattr(extension, "check_ck", lambda index: extension.ERROR_NO_KERNEL)
    monkeypatch.setattr(extension, "last_error", lambda: "built for another architecture")
    assert native_ck.why_not(call_of(x, x)) == "built for another architecture"
    monkeypatch.setattr(extension, "check_ck", lambda index: extension.OK)
    block = dict(granularity=ScalingGranularity.BLOCKWISE, block_size=128)
    assert native_ck.why_not(call_of(x, x)) is None
    assert native_ck.why_not(call_of(x, x, **block, b_tiles=True)) is None
    for call, text in (
        (call_of(x, x.view(torch.float8_e4m3fn)), "b is torch.float8_e4m3fn; the instances for gfx942"),
        (call_of(x, x, ScalingGranularity.MX_BLOCKWISE), "not for MX"),
        (call_of(x, x, **block), "a in blocks of a row and b in tiles"),
        (call_of(x, x, **block, a_tiles=True, b_tiles=True), "a in blocks of a row and b in tiles"),
        (call_of(x, x, **(block | dict(block_size=64)), b_tiles=True), "the instance is for 128"),
        (call_of(x, x, out_dtype=torch.float32), "out_dtype is torch.float32"),
        (call_of(x, x, bias=torch.zeros(16)), "neither bias nor accumulation"),
        (call_of(x, x, out=torch.zeros(16, 16)), "neither bias nor accumulation"),
        (call_of(x, x[:12]), "N=12; a multiple of 8"),
    ):
        assert text in native_ck.why_not(call)
    native.reset()
    with simulated_arch("gfx950"):
        assert "the HIP library reports gfx942" in native_ck.why_not(call_of(x, x))


def test_a_size_that_no_instance_has_is_refused(on_fake_gfx942):
    a, b = operands(16, 16, 128, FNUZ, "row")
    with pytest.raises(UnsupportedError, match="n = 12, k = 128; n a multiple of 8"):
        multiply(a, operands(16, 12, 128, FNUZ, "row")[1], "row")
    assert on_fake_gfx942.launches == []


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(block=64), "block is 64"),
        (dict(k=24), "k = 24"),
        (dict(a=(8, 128, 16)), "a is at 0x8"),
        (dict(a=(16, 136, 16)), "16 rows of a are 136 bytes apart"),
        (dict(a=(16, 64, 16)), "16 rows of a are 64 bytes apart"),
        (dict(a=(16, 2**30, 16)), "at most 2**31 bytes"),
        (dict(c=8), "c is at 0x8"),
    ],
    ids=str,
)
def test_refusals_of_the_library(on_fake_gfx942, arguments, text):
    case = dict(a=(16, 128, 16), b=(16, 128, 16), c=16, m=16, n=16, k=128, block=0) | arguments
    case |= {name: dict(zip(("data", "stride", "scale"), case[name])) for name in "ab"}
    assert _C.gemm_ck(0, 0, **case) == _C.ERROR_ARGUMENT
    assert text in _C.last_error()
    assert on_fake_gfx942.launches == []
