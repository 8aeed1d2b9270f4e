# SPDX-License-Identifier: MIT
"""What the tests of the ops share: the backends, each in turn."""

import pytest

from turbo_core import BackendType, GlobalBackendManager, device_facts, why_no_triton


@pytest.fixture(params=["HIPBLASLT", "TRITON", "TORCH"])
def backend(request, device):
    """Each backend in turn, named in code; skipped with its own reason where it cannot run."""
    if request.param == "TRITON" and (reason := why_no_triton(device)):
        pytest.skip(f"backend TRITON: {reason}")
    GlobalBackendManager.set_grouped_gemm_backend(request.param)
    return BackendType[request.param]


@pytest.fixture
def plain_cpu():
    """Skips where CPU tensors stand for a GPU: the test is about what plain ones get."""
    if (arch := device_facts("cpu").arch) != "cpu":
        pytest.skip(f"CPU tensors stand for {arch} in this run")


@pytest.fixture(params=["TRITON", "TORCH"])
def serving(request, device):
    """The backends that take every call, in turn."""
    if request.param == "TRITON" and (reason := why_no_triton(device)):
        pytest.skip(f"backend TRITON: {reason}")
    GlobalBackendManager.set_grouped_gemm_backend(request.param)
