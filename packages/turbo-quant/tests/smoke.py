# SPDX-License-Identifier: MIT
"""Smoke test of an installed turbo-quant: a plain program, so that it runs where nothing else is installed."""

import importlib.util

import turbo_quant


def without_torch() -> None:
    for name in turbo_quant.__all__:
        try:
            getattr(turbo_quant, name)
        except ImportError as error:
            assert "pip install" in str(error), f"no line to type in: {error}"
        else:
            raise AssertionError(f"turbo_quant.{name} was loaded without torch")


def with_torch() -> None:
    import torch

    from turbo_core.low_precision import ScalingGranularity

    for name in turbo_quant.__all__:
        getattr(turbo_quant, name)
    x = torch.randn(33, 100)
    q, scale_inv = turbo_quant.quantize_fp8(x, torch.float8_e4m3fn, ScalingGranularity.ROWWISE, axis=-1)
    y = turbo_quant.dequantize_fp8(q, x.dtype, ScalingGranularity.ROWWISE, axis=-1, scale_inv=scale_inv)
    torch.testing.assert_close(y, x, rtol=0.07, atol=0.02)
    q, scale = turbo_quant.quantize_fp4(x, torch.uint8, ScalingGranularity.MX_BLOCKWISE, axis=-1)
    assert q.shape == (33, 64) and scale.shape == (33, 4)
    tensor = turbo_quant.QuantizedTensor.quantize(x, torch.float8_e5m2, ScalingGranularity.TENSORWISE)
    assert torch.equal(tensor.t().dequantize(), tensor.dequantize().t())


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        without_torch()
        print("turbo-quant: ok without torch")
    else:
        with_torch()
        print("turbo-quant: ok with torch")
