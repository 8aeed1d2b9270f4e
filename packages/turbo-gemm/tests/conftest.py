# SPDX-License-Identifier: MIT
"""What the tests of the ops share: the backends, each in turn."""

import importlib.util

import pytest

from turbo_core import BackendType, GlobalBackendManager, device_facts, why_no_triton


@pytest.fixture(params=["HIPBLASLT", "TRITON", "TORCH"])
def backend(request, device):
    """Each backend in turn, named in code; skipped with its own reason where it cannot run."""
    if request.param == "HIPBLASLT" and device.type != "cuda":
        pytest.skip("backend HIPBLASLT needs a GPU")
    if request.param == "TRITON" and (reason := why_no_triton(device)):
        pytest.skip(f"backend TRITON: {reason}")
    GlobalBackendManager.set_gemm_backend(request.param)
    return BackendType[request.param]


@pytest.fixture
def plain_cpu():
    """Skips where CPU tensors stand for a GPU: the test is about what plain ones get."""
    if (arch := device_facts("cpu").arch) != "cpu":
        pytest.skip(f"CPU tensors stand for {arch} in this run")


@pytest.fixture(params=["HIPBLASLT", "TRITON", "TORCH"])
def quant_backend(request, device):
    """Likewise for the GEMMs of quantised operands."""
    if request.param == "HIPBLASLT" and device.type != "cuda":
        pytest.skip("backend HIPBLASLT needs a GPU")
    if request.param == "TRITON":
        if reason := why_no_triton(device):
            pytest.skip(f"backend TRITON: {reason}")
        if importlib.util.find_spec("turbo_gemm.triton.gemm_fp8") is None:
            pytest.skip("backend TRITON has no quantised kernels yet")
    GlobalBackendManager.set_gemm_backend(request.param)
    return BackendType[request.param]


@pytest.fixture(params=["default", "TRITON", "TORCH"])
def serving(request, device):
    """What serves any product in turn: the default with its fallbacks, then the backends that take every call."""
    if request.param == "default":
        if device.type == "cpu":
            pytest.skip("the default on a CPU is TORCH")
        return
    if request.param == "TRITON" and (reason := why_no_triton(device)):
        pytest.skip(f"backend TRITON: {reason}")
    GlobalBackendManager.set_gemm_backend(request.param)
