# SPDX-License-Identifier: MIT
"""What the tests of the wheel share: the backends, each in turn."""

import pytest
import torch

from turbo_core import BackendType, GlobalBackendManager, why_no_triton


@pytest.fixture(params=["TRITON", "TORCH"])
def backend(request, device):
    """Each backend in turn, named in code; skipped with its own reason where it cannot run."""
    if request.param == "TRITON" and (reason := why_no_triton(device)):
        pytest.skip(f"backend TRITON: {reason}")
    GlobalBackendManager.set_attn_backend(request.param)
    GlobalBackendManager.set_sparse_attn_backend(request.param)
    return BackendType[request.param]


@pytest.fixture
def returns_memory():
    """Gives the GPU's memory back after a large test: torch keeps it, and other workers may have none left."""
    yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
