# SPDX-License-Identifier: MIT
"""The names of primus_turbo are the objects of the wheels themselves, not copies or wrappers."""

import subprocess
import sys

import pytest

import turbo_attention
import turbo_core
import turbo_core.low_precision
import turbo_gemm
import turbo_grouped_gemm
import turbo_norm_act
import turbo_quant

PER_DEVICE = ("float8_e4m3", "float8_e5m2", "float4_e2m1fn_x2")


@pytest.fixture
def turbo():
    import primus_turbo.pytorch

    return primus_turbo.pytorch


def test_ops_and_modules_are_those_of_the_wheels(turbo):
    wheels = (turbo_attention, turbo_gemm, turbo_grouped_gemm, turbo_norm_act, turbo_quant)
    parts = (turbo.ops, turbo.modules, turbo.core.quantized_tensor)
    home = {name: wheel for wheel in wheels for name in wheel.__all__}
    for part in parts:
        for name in part.__all__:
            assert getattr(part, name) is getattr(home[name], name), name
    assert {name for part in parts for name in part.__all__} == set(home)


def test_core_backend_is_turbo_core(turbo):
    backend = turbo.core.backend
    assert {"BackendType", "GlobalBackendManager", "KernelBackend"} <= set(backend.__all__)
    for name in backend.__all__:
        assert getattr(backend, name) is getattr(turbo_core, name), name


def test_core_low_precision_is_turbo_core_low_precision(turbo):
    here, there = turbo.core.low_precision, turbo_core.low_precision
    assert set(here.__all__) == set(there.__all__)
    for name in here.__all__:
        assert getattr(here, name) is getattr(there, name), name


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", PER_DEVICE)
def test_dtypes_follow_the_device_and_are_never_remembered(turbo, arch, name):
    import torch

    with turbo_core.simulated_arch(arch):
        if not torch.cuda.is_available():  # the current device is then the CPU, which stands for the architecture
            suffix = {"float8_e4m3": "fnuz" if arch == "gfx942" else "fn", "float8_e5m2": "fnuz" * (arch == "gfx942")}
            if name in suffix:
                assert getattr(turbo, name) is getattr(torch, name + suffix[name])
        assert getattr(turbo, name) is getattr(turbo_core.low_precision, name)
        assert getattr(turbo.core.low_precision, name) is getattr(turbo_core.low_precision, name)


def test_unknown_names_are_attribute_errors(turbo):
    for module in (turbo, turbo.core.low_precision):
        with pytest.raises(AttributeError, match="float8_e4m4"):
            module.float8_e4m4  # noqa: B018


def test_importing_primus_turbo_imports_no_torch():
    code = "import sys, primus_turbo; sys.exit(any(name in sys.modules for name in ('torch', 'triton')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_attribute_access_loads_the_front_end():
    code = "import primus_turbo; primus_turbo.pytorch.ops.gemm"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
