# SPDX-License-Identifier: MIT
"""What the tests share: the backends, each in turn."""

import pytest
import torch

from turbo_core import BackendUnavailableError, GlobalBackendManager
from turbo_core.low_precision import Format, ScalingGranularity, fp8_dtype
from turbo_quant.calls import QuantizeFloatCall
from turbo_quant.pytorch.kernels.quantize_impl import QuantizeDispatcher
from turbo_testing.poison import poisoned_empty


@pytest.fixture(params=["TORCH", "TRITON", "TURBO"])
def backend(request, device):
    """The test runs on this backend alone, or is skipped with the backend's reason."""
    name = request.param
    GlobalBackendManager.set_quant_backend(name)
    x = torch.empty((1, 128, 128), dtype=torch.bfloat16, device=device)
    call = QuantizeFloatCall(x, fp8_dtype(Format.E4M3, device), ScalingGranularity.ROWWISE, 0, True, False)
    try:
        QuantizeDispatcher.resolve(call)
    except BackendUnavailableError as error:
        pytest.skip(f"{name}: {error}")
    return name


@pytest.fixture
def poisoned():
    """Unwritten memory shows. One value is enough where results are compared bit for bit."""
    with poisoned_empty():
        yield
