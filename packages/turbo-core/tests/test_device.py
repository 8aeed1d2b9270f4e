# SPDX-License-Identifier: MIT
"""Device facts: per device and never shared between devices, simulated architectures, nominal numbers."""

from types import SimpleNamespace

import pytest
import torch

from turbo_core import DeviceFacts, UnsupportedError, arch_facts, device, device_facts, simulated_arch, why_no_triton

MI300X = SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", multi_processor_count=304)
MI300A = SimpleNamespace(name="AMD Instinct MI300A", gcnArchName="gfx942:sramecc+:xnack-", multi_processor_count=228)
MI355X = SimpleNamespace(name="AMD Instinct MI355X", gcnArchName="gfx950:sramecc+:xnack-", multi_processor_count=256)
MI250 = SimpleNamespace(
    name="AMD Instinct MI250", gcnArchName="gfx90a:sramecc+:xnack-", multi_processor_count=104, warp_size=64
)


@pytest.fixture
def amd_node(monkeypatch):
    """A node of four different AMD GPUs, as torch for ROCm would report them."""
    properties = [MI300X, MI355X, MI300A, MI250]
    monkeypatch.setattr(device, "_facts", {})
    monkeypatch.setattr(torch.version, "hip", "7.0.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: properties[torch.device(d).index])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


def test_each_device_has_its_own_facts(amd_node):
    first, second = device_facts("cuda:0"), device_facts("cuda:1")
    assert (first.arch, first.compute_units, first.xcds, first.lds_bytes) == ("gfx942", 304, 8, 64 * 1024)
    assert (second.arch, second.compute_units, second.xcds, second.lds_bytes) == ("gfx950", 256, 8, 160 * 1024)
    assert (first.fp8_fnuz, second.fp8_fnuz) == (True, False)
    assert device_facts("cuda:0") is first


def test_part_with_fewer_dies(amd_node):
    assert (device_facts("cuda:2").compute_units, device_facts("cuda:2").xcds) == (228, 6)


def test_other_amd_gpu_is_told_by_its_own_name(amd_node):
    assert (device_facts("cuda:3").arch, device_facts("cuda:3").vendor) == ("gfx90a", "amd")


@pytest.mark.parametrize("current", [None, "cuda", torch.device("cuda")])
def test_no_index_means_the_current_device(amd_node, current):
    assert device_facts(current).arch == "gfx950"


def test_facts_in_full(amd_node):
    """Of devices that are known by name, of one that is not, and of the CPU."""
    kib = 1024
    assert device_facts("cuda:0") == arch_facts("gfx942")
    assert device_facts("cuda:1") == arch_facts("gfx950")
    assert arch_facts("gfx942") == DeviceFacts("gfx942", "amd", "AMD Instinct MI300X", 304, 8, 64, 64 * kib, True)
    assert arch_facts("gfx950") == DeviceFacts("gfx950", "amd", "AMD Instinct MI355X", 256, 8, 64, 160 * kib, False)
    assert device_facts("cuda:2") == DeviceFacts("gfx942", "amd", "AMD Instinct MI300A", 228, 6, 64, 64 * kib, True)
    assert device_facts("cuda:3") == DeviceFacts("gfx90a", "amd", "AMD Instinct MI250", 104, 1, 64, 64 * kib, False)
    assert device_facts("cpu") == DeviceFacts("cpu", "cpu", "CPU", 1, 1, 1, 0, False)


def test_the_current_device_is_looked_up_each_time(amd_node, monkeypatch):
    for index, arch in ((0, "gfx942"), (1, "gfx950"), (3, "gfx90a")):
        monkeypatch.setattr(torch.cuda, "current_device", lambda index=index: index)
        assert {device_facts(where).arch for where in (None, "cuda", torch.device("cuda"))} == {arch}
        assert device_facts(torch.device("cuda", index)).arch == arch


def test_without_a_gpu_no_device_means_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_facts() == device_facts("cpu")


def test_a_part_with_less_than_one_die_has_one(amd_node, monkeypatch):
    partition = SimpleNamespace(**{**vars(MI300X), "multi_processor_count": 20})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: partition)
    assert (device_facts("cuda:0").compute_units, device_facts("cuda:0").xcds) == (20, 1)


def test_what_an_older_torch_does_not_tell_is_assumed(monkeypatch, amd_node):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: SimpleNamespace(
        name="old", gcnArchName="gfx90a", multi_processor_count=104, major=8, minor=0
    ))  # fmt: skip
    assert device_facts("cuda:0").wave_size == 64
    monkeypatch.setattr(torch.version, "hip", None)
    facts = device_facts("cuda:1")
    assert (facts.arch, facts.lds_bytes, facts.wave_size, facts.fp8_fnuz) == ("sm_80", 48 * 1024, 32, False)


@pytest.mark.parametrize("arch, fnuz", [("gfx942", True), ("gfx950", False)])
def test_nominal_facts(arch, fnuz):
    facts = arch_facts(arch)
    assert (facts.arch, facts.vendor, facts.wave_size, facts.xcds, facts.fp8_fnuz) == (arch, "amd", 64, 8, fnuz)
    assert device_facts("cpu").vendor == "cpu" and not device_facts("cpu").fp8_fnuz


def test_the_innermost_simulated_architecture_has_a_name():
    assert device.simulated_arch_name() is None
    with simulated_arch("gfx942"), simulated_arch("gfx950"):
        assert device.simulated_arch_name() == "gfx950"
    assert device.simulated_arch_name() is None


def test_nvidia(monkeypatch):
    h200 = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, shared_memory_per_block_optin=232448
    )
    monkeypatch.setattr(device, "_facts", {})
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: h200)
    facts = device_facts("cuda:0")
    assert (facts.arch, facts.vendor, facts.xcds, facts.lds_bytes) == ("sm_90", "nvidia", 1, 232448)


def test_cpu_and_simulated_architectures():
    assert device_facts("cpu").arch == "cpu"
    with simulated_arch("gfx942") as facts:
        assert device_facts("cpu") == facts == arch_facts("gfx942")
        with simulated_arch("gfx950"):
            assert device_facts(torch.device("cpu")).arch == "gfx950"
        assert device_facts("cpu").arch == "gfx942"
    assert device_facts("cpu").arch == "cpu"


def test_simulation_ends_with_an_exception():
    with pytest.raises(RuntimeError, match="inside"), simulated_arch("gfx950"):
        raise RuntimeError("inside")
    assert device_facts("cpu").arch == "cpu"


def test_unknown_names_are_refused():
    with pytest.raises(UnsupportedError, match="arch='gfx1250': accepted are gfx942, gfx950"):
        arch_facts("gfx1250")
    with pytest.raises(UnsupportedError, match="device='meta'"):
        device_facts("meta")


def test_triton_on_a_cpu_needs_the_interpreter_or_a_simulated_arch(monkeypatch):
    pytest.importorskip("triton")
    cpu = torch.device("cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "TRITON_INTERPRET=1" in why_no_triton(cpu)
    with simulated_arch("gfx950"):
        assert why_no_triton(cpu) is None
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert why_no_triton(cpu) is None
    assert "meta" in why_no_triton(torch.device("meta"))
