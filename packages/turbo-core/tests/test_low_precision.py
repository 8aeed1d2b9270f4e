# SPDX-License-Identifier: MIT
"""Low-precision types follow the device they are asked for; configs refuse what no op can do."""

import pytest
import torch

from turbo_core import UnsupportedError, simulated_arch
from turbo_core import low_precision as lp

E4M3, E5M2, HYBRID, E2M1 = lp.Format.E4M3, lp.Format.E5M2, lp.Format.HYBRID, lp.Format.E2M1_X2
MX, BLOCK = lp.ScalingGranularity.MX_BLOCKWISE, lp.ScalingGranularity.BLOCKWISE


@pytest.mark.parametrize(
    ("format", "is_forward", "ocp", "fnuz"),
    [
        (E4M3, True, torch.float8_e4m3fn, torch.float8_e4m3fnuz),
        (E4M3, False, torch.float8_e4m3fn, torch.float8_e4m3fnuz),
        (E5M2, True, torch.float8_e5m2, torch.float8_e5m2fnuz),
        (HYBRID, True, torch.float8_e4m3fn, torch.float8_e4m3fnuz),
        (HYBRID, False, torch.float8_e5m2, torch.float8_e5m2fnuz),
    ],
)
def test_dtype_is_ocp_except_on_gfx942(format, is_forward, ocp, fnuz):
    assert lp.fp8_dtype(format, "cpu", is_forward=is_forward) is ocp
    with simulated_arch("gfx950"):
        assert lp.fp8_dtype(format, "cpu", is_forward=is_forward) is ocp
    with simulated_arch("gfx942"):
        assert lp.fp8_dtype(format, "cpu", is_forward=is_forward) is fnuz


def test_module_names_are_resolved_at_each_use():
    if torch.cuda.is_available():
        pytest.skip("the current device is a GPU, whose arch cannot be simulated")
    assert (lp.float8_e4m3, lp.float8_e5m2) == (torch.float8_e4m3fn, torch.float8_e5m2)
    with simulated_arch("gfx942"):
        assert (lp.float8_e4m3, lp.float8_e5m2) == (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
    assert lp.float4_e2m1fn_x2 is getattr(torch, "float4_e2m1fn_x2", None)
    with pytest.raises(AttributeError, match="float7"):
        _ = lp.float7


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_maximum_is_the_largest_finite_code(name):
    dtype = getattr(torch, name)
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    assert lp.fp8_max(dtype) == codes[codes.isfinite()].max().item()
    assert lp.is_fp8_dtype(dtype)


def test_other_dtypes_are_not_fp8():
    assert not lp.is_fp8_dtype(torch.bfloat16)
    assert not lp.is_fp4_dtype(torch.uint8)
    with pytest.raises(UnsupportedError, match="dtype=torch.bfloat16 is not an FP8 type"):
        lp.fp8_max(torch.bfloat16)
    with pytest.raises(UnsupportedError, match="is not an FP8 format"):
        lp.fp8_dtype(E2M1, "cpu")


@pytest.mark.parametrize(
    ("config", "arguments", "complaint"),
    [
        (lp.Float8QuantConfig, {"granularity": BLOCK}, "block_size=None must be a positive number for BLOCKWISE"),
        (lp.Float8QuantConfig, {"granularity": BLOCK, "block_size": 0}, "block_size=0 must be a positive"),
        (lp.Float8QuantConfig, {"granularity": MX, "block_size": 16}, "block_size=16 must be 32"),
        (lp.Float8QuantConfig, {"granularity": MX, "block_size": 32}, "scale_dtype=.*FP32 must be E8M0"),
        (lp.Float8QuantConfig, {"format": E2M1}, "is not an FP8 format"),
        (lp.Float4QuantConfig, {"format": E4M3}, "must be E2M1_X2"),
        (lp.Float4QuantConfig, {"granularity": BLOCK}, "must be MX_BLOCKWISE"),
        (lp.Float4QuantConfig, {"block_size": 16}, "block_size=16 must be 32"),
        (lp.Float4QuantConfig, {"scale_dtype": lp.ScaleDtype.FP32}, "must be E8M0"),
    ],
)
def test_config_refuses(config, arguments, complaint):
    with pytest.raises(UnsupportedError, match=complaint):
        config(**arguments)


def test_configs_accept():
    assert lp.Float8QuantConfig().granularity is lp.ScalingGranularity.TENSORWISE
    assert lp.Float8QuantConfig(granularity=BLOCK, block_size=128).block_size == 128
    assert lp.Float8QuantConfig(granularity=MX, block_size=32, scale_dtype=lp.ScaleDtype.E8M0).block_size == 32
    assert lp.Float4QuantConfig().block_size == lp.MX_BLOCK_SIZE
    assert lp.ScalingRecipe() == (False,) * 5


@pytest.mark.parametrize(
    ("arch", "fp8", "ocp", "mx"),
    [("cpu", False, False, False), ("gfx942", True, False, False), ("gfx950", True, True, True)],
)
def test_support_answers_give_a_reason(arch, fp8, ocp, mx):
    def answers():
        checks = (lp.check_fp8_support, lp.check_fp8_ocp_support, lp.check_mxfp8_support, lp.check_mxfp4_support)
        found = [check("cpu") for check in checks]
        assert all(bool(reason) != supported for supported, reason in found)
        return [supported for supported, _ in found]

    if arch == "cpu":
        assert answers() == [fp8, ocp, mx, mx]
    else:
        with simulated_arch(arch):
            assert answers() == [fp8, ocp, mx, mx]
