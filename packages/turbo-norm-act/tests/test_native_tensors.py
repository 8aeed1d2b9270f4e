# SPDX-License-Identifier: MIT
"""native.py: tensors become addresses and statuses errors; what it launches, as a HIP library recorded it."""

from __future__ import annotations

import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
_C = pytest.importorskip("turbo_norm_act.pytorch._C", reason="turbo-norm-act is not built (pip install -e)")

from turbo_core import BackendType, BackendUnavailableError, UnsupportedError, simulated_arch  # noqa: E402
from turbo_norm_act.calls import NormBackward, NormForward  # noqa: E402
from turbo_norm_act.pytorch.kernels import native, norm_impl  # noqa: E402


@pytest.fixture(autouse=True)
def forget_hip(fake_hip):
    native.reset()
    _C.reset()
    yield
    native.reset()
    _C.reset()


def forward(x, residual=None, gamma=None, beta=None, center=False):
    return native.run(NormForward(x, residual, gamma, beta, 1e-5, False, center))


# --- tensors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_tensors_become_addresses(fake_hip, arch):
    fake_hip.set_arch(0, arch)
    x = torch.zeros(6, 4096, dtype=torch.bfloat16)[::2]
    residual = torch.zeros(3, 4096, dtype=torch.bfloat16)
    gamma = torch.zeros(4096)
    with simulated_arch(arch):
        assert native.library.why_not(x.device) is None
        y, s, mean, rstd = native.run(NormForward(x, residual, gamma, None, 1e-5, True, False))
    (launch,) = fake_hip.launches
    assert launch.arguments == struct.pack(
        "<6Q3q2i2fIi2Q",
        *(t.data_ptr() for t in (x, residual, gamma, y, s, rstd)),
        *(3, 8192, 4096),
        *(4096, _C.FLOAT32),
        *(1e-5, 1.0),
        *(3, 0),
        *(0, 0),
    )
    assert mean is None
    assert (y.shape, y.dtype, s.dtype, rstd.dtype, rstd.shape) == (x.shape, x.dtype, x.dtype, torch.float32, (3,))


def test_one_row_needs_no_aligned_stride(fake_hip):
    x = torch.zeros(1, 4097, dtype=torch.bfloat16)[:, :4096]
    with simulated_arch("gfx942"):
        assert forward(x).s is None
    assert fake_hip.launches[0].kernel == "rmsnorm_forward_bf16_256x2"


def test_backward_of_tensors(fake_hip):
    s = torch.zeros(3, 64)
    gamma = torch.zeros(64, dtype=torch.float16)
    dy = torch.zeros(64).expand(3, 64)
    rows = torch.zeros(3)

    def backward(ds, gamma, mean, *wanted):
        return native.run(NormBackward(s, dy, ds, gamma, mean, rows, 1e-5, False, *wanted))

    with simulated_arch("gfx942"):
        dx, dgamma, dbeta = backward(None, gamma, None, True, True, None)
        assert (dx.shape, dgamma.shape, dgamma.dtype, dbeta) == (s.shape, gamma.shape, gamma.dtype, None)
        assert [launch.kernel for launch in fake_hip.launches] == ["rmsnorm_backward_fp32_64x1", "norm_parameter_sum"]
        assert backward(s, gamma, None, True, False, None)[1:] == (None, None)
        assert backward(s, None, None, False, False, None) == (None, None, None)
        assert len(fake_hip.launches) == 4
        _, dgamma, dbeta = backward(None, None, rows, True, False, torch.bfloat16)
        assert (dgamma, dbeta.dtype, dbeta.shape) == (None, torch.bfloat16, (64,))
        *_, first, second = fake_hip.launches
        assert (first.kernel, second.kernel) == ("layernorm_backward_fp32_64x1", "norm_parameter_sum")


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(beta=torch.zeros(64).double(), center=True), "beta.dtype=torch.float64"),
        (dict(beta=torch.zeros(64)), "rmsnorm_forward: there is no beta"),
        (dict(x=torch.zeros(3, 64, dtype=torch.int32)), "x.dtype=torch.int32: accepted are"),
    ],
    ids=["dtype", "no_beta", "integers"],
)
def test_what_the_library_refuses(fake_hip, change, text):
    arguments = dict(x=torch.zeros(3, 64), gamma=torch.zeros(64)) | change
    with simulated_arch("gfx942"), pytest.raises(UnsupportedError, match=text):
        forward(**arguments)
    assert fake_hip.launches == []


def test_a_failed_launch_is_an_error(fake_hip):
    fake_hip.fail("hipModuleLaunchKernel", 719)
    with simulated_arch("gfx942"), pytest.raises(RuntimeError) as caught:
        forward(torch.zeros(9, 64))
    text = str(caught.value)
    assert "hipModuleLaunchKernel of rmsnorm_forward_fp32_64x1 on device 0 (gfx942), 3 x 1 work-groups of 256" in text
    assert "unspecified launch failure (hipError_t 719)" in text
    assert fake_hip.last_error == 0, "HIP's own last error would surface at somebody else's next check"


# --- may it run -------------------------------------------------------------------------------------------------------


def test_a_missing_hip_library(fake_hip, monkeypatch):
    monkeypatch.setenv("TURBO_HIP_LIBRARY", "/nowhere/libamdhip64.so")
    with simulated_arch("gfx950"):
        assert "/nowhere/libamdhip64.so" in native.library.why_not(torch.device("cpu"))
        with pytest.raises(BackendUnavailableError, match="nowhere"):
            forward(torch.zeros(9, 64))


def test_a_simulator_may_change_its_architecture(fake_hip):
    for arch in ("gfx942", "gfx950", "gfx942"):
        fake_hip.set_arch(0, arch)
        with simulated_arch(arch):
            assert native.library.why_not(torch.device("cpu")) is None
            forward(torch.zeros(9, 64))
    assert len(fake_hip.loaded) == 3


def test_the_backend_refuses_what_the_kernels_do(fake_hip):
    """Both limits are known before a launch: the width of a row, and then what the library says."""
    backend = norm_impl.NormDispatcher.backends[BackendType.TURBO]
    for center in (False, True):
        call = NormForward(torch.zeros(1).expand(1, 2**29 + 1), None, None, None, 1e-5, False, center)
        with simulated_arch("gfx942"):
            assert backend.why_not(call) == "D=536870913; up to 536870912 is accepted"
            narrow = call._replace(x=call.x[:, : 2**29])
            assert backend.why_not(narrow) is None
            assert norm_impl.NormDispatcher.default_backend(narrow) is BackendType.TURBO
        assert "cpu is cpu" in backend.why_not(narrow)
