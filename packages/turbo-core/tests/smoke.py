# SPDX-License-Identifier: MIT
"""Smoke test of an installed turbo-core: a plain program, so that it runs where nothing else is installed."""

import importlib.util

import turbo_core
from turbo_core import BackendType, GlobalBackendManager, PrecisionType


def without_torch() -> None:
    GlobalBackendManager.set_gemm_backend(BackendType.TORCH)
    choice = GlobalBackendManager.get_gemm_backend(PrecisionType.BF16_FP16_FP32)
    assert choice.backend is BackendType.TORCH, choice
    GlobalBackendManager.reset()
    try:
        turbo_core.require_torch()
    except ImportError as error:
        assert "pip install" in str(error), f"no line to type in: {error}"
    else:
        raise AssertionError("require_torch() found a torch")


def with_torch() -> None:
    assert turbo_core.device_facts("cpu").arch == "cpu"
    with turbo_core.simulated_arch("gfx942"):
        assert turbo_core.device_facts("cpu").fp8_fnuz


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        without_torch()
        print("turbo-core: ok without torch")
    else:
        with_torch()
        print("turbo-core: ok with torch")
