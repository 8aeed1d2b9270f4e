# SPDX-License-Identifier: MIT
"""`NativeLibrary` over an extension that is made up: when it may run, what it remembers, statuses, streams, codes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from turbo_core import BackendUnavailableError, UnsupportedError, arch_facts, native, simulated_arch
from turbo_core.native import NativeLibrary, address, csrc_common_dir, device_code, float_code, fp8_code, no_device_code

CPU = torch.device("cpu")


class Extension(ModuleType):
    """What a wheel's ``_C`` has; the architecture of device 0 and the statuses are the test's."""

    OK, ERROR_ARGUMENT, ERROR_NO_RUNTIME, ERROR_NO_KERNEL, ERROR_HIP = range(5)

    def __init__(self) -> None:
        super().__init__("turbo_made_up.pytorch._C")
        self.arch, self.status, self.resets, self.checks = "gfx942", 0, 0, 0

    def check(self, index: int) -> int:
        self.checks += 1
        return self.status

    def last_error(self) -> str:
        return f"text of status {self.status}"

    def device_arch(self, index: int) -> str:
        return self.arch

    def reset(self) -> None:
        self.resets += 1


@pytest.fixture
def extension(monkeypatch) -> Extension:
    made = Extension()
    for name in ("turbo_made_up", "turbo_made_up.pytorch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setenv("TURBO_HIP_LIBRARY", "/somewhere/libamdhip64.so")
    return made


@pytest.fixture
def library(extension) -> NativeLibrary:
    return NativeLibrary("turbo_made_up")


# --- may it run -------------------------------------------------------------------------------------------------------


def test_a_plain_cpu_is_refused_without_loading_anything():
    library = NativeLibrary("turbo_does_not_exist")
    assert library.why_not(CPU) == "the HIP kernels are for gfx942 and gfx950; cpu is cpu"


def test_a_wheel_without_its_native_library():
    with simulated_arch("gfx942"):
        reason = NativeLibrary("turbo_does_not_exist").why_not(CPU)
    assert reason == (
        "turbo-does-not-exist was installed without its native library: No module named 'turbo_does_not_exist'"
    )


@pytest.fixture
def built_without_device_code(tmp_path, monkeypatch) -> Path:
    """What GPU_ARCHS=none leaves of a wheel's native part; the package's lib folder."""
    folder = tmp_path / "turbo_hostless" / "lib"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "resources.json").write_text('{"version": 1, "single_arch": [], "kernels": []}')
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_a_wheel_without_device_code_says_how_to_get_it(built_without_device_code, monkeypatch):
    with simulated_arch("gfx950"):
        reason = NativeLibrary("turbo_hostless").why_not(CPU)
    assert reason == (
        "turbo-hostless was built without device code (GPU_ARCHS=none); build it with GPU_ARCHS=gfx942 or gfx950"
    )
    assert device_code("turbo_hostless") == () and "turbo_hostless" not in sys.modules


def test_a_wheel_knows_what_it_was_built_for(built_without_device_code):
    for name in ("gemm.gfx950.hsaco", "norm.gfx942.hsaco", "norm.gfx950.hsaco"):
        (built_without_device_code / name).touch()
    assert device_code("turbo_hostless") == ("gfx942", "gfx950") and no_device_code("turbo_hostless") is None
    assert device_code("turbo_does_not_exist") is None and no_device_code("turbo_does_not_exist") is None


def test_it_can(library):
    with simulated_arch("gfx942"):
        assert library.why_not(CPU) is None


def test_cpu_tensors_without_a_simulator(library, monkeypatch):
    monkeypatch.delenv("TURBO_HIP_LIBRARY")
    with simulated_arch("gfx950"):
        assert library.why_not(CPU) == (
            "CPU tensors stand for gfx950, but no simulator is active (TURBO_HIP_LIBRARY is not set)"
        )


def test_another_architecture_behind_the_device(library):
    with simulated_arch("gfx950"):
        assert library.why_not(CPU) == "the HIP library reports gfx942 for device 0, torch gfx950"


def test_only_what_lasts_is_remembered(library, extension):
    with simulated_arch("gfx942"):
        extension.status = Extension.ERROR_NO_RUNTIME
        assert library.why_not(CPU) == "text of status 2"
        extension.status = Extension.OK
        assert library.why_not(CPU) is None, "the library may have been loaded meanwhile"
        extension.status = Extension.ERROR_HIP
        assert library.why_not(CPU) is None
        assert extension.checks == 2
        library.reset()
        assert library.why_not(CPU) == "text of status 4"


def test_another_library_is_asked_again(library, extension, monkeypatch):
    with simulated_arch("gfx942"):
        assert library.why_not(CPU) is None
        monkeypatch.setenv("TURBO_HIP_LIBRARY", "/elsewhere/libamdhip64.so")
        extension.status = Extension.ERROR_NO_RUNTIME
        assert library.why_not(CPU) == "text of status 2"


def test_answers_are_those_of_the_device_and_of_its_architecture(library, extension, monkeypatch):
    """Two GPUs of a node, the second of another kind than torch says; a CPU that stands for one, then for the other."""
    extension.device_arch = lambda index: ("gfx942", "gfx950")[index]
    first, second = (torch.device("cuda", index) for index in (0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(native, "device_facts", lambda device: arch_facts("gfx942"))
        for _ in range(2):
            assert library.why_not(first) is None
            assert library.why_not(second) == "the HIP library reports gfx950 for device 1, torch gfx942"
    for _ in range(2):
        with simulated_arch("gfx942"):
            assert library.why_not(CPU) is None
        with simulated_arch("gfx950"):
            assert library.why_not(CPU) == "the HIP library reports gfx942 for device 0, torch gfx950"


def test_a_reason_that_lasts_is_found_once(monkeypatch):
    library, imports = NativeLibrary("turbo_does_not_exist"), []
    load = native.importlib.import_module
    monkeypatch.setattr(native.importlib, "import_module", lambda name: (imports.append(name), load(name))[1])
    with simulated_arch("gfx942"):
        reasons = {library.why_not(CPU) for _ in range(3)}
    assert len(reasons) == 1 and "without its native library" in reasons.pop()
    assert imports == ["turbo_does_not_exist.pytorch._C"]


def test_another_simulator_behind_the_cpu_resets_the_extension(library, extension, monkeypatch):
    x = torch.empty(1)
    with simulated_arch("gfx942"):
        for library_path, resets in (("/a.so", 1), ("/a.so", 1), ("/b.so", 2), ("/a.so", 3)):
            monkeypatch.setenv("TURBO_HIP_LIBRARY", library_path)
            assert library.where(x) == (0, 0)
            assert extension.resets == resets
    with simulated_arch("gfx950"):
        library.where(x)
        assert extension.resets == 4, "the same library for another architecture"


def test_reset_reaches_an_extension_that_is_loaded(extension):
    library = NativeLibrary("turbo_made_up")
    library.reset()
    assert extension.resets == 0, "nothing is loaded in order to be reset"
    assert library.extension is extension
    library.reset()
    assert extension.resets == 1


def test_a_simulator_may_change_its_architecture(library, extension):
    for resets, arch in enumerate(("gfx942", "gfx950", "gfx942"), start=1):
        extension.arch = arch
        with simulated_arch(arch):
            assert library.where(torch.zeros(1)) == (0, 0)
            assert library.where(torch.zeros(1)) == (0, 0)
        assert extension.resets == resets


# --- a call -----------------------------------------------------------------------------------------------------------


def test_the_current_stream_of_the_tensors_device(library, monkeypatch):
    streams = {3: 0x33, 1: 0x11}
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=streams[device.index or 1])
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert library.where(SimpleNamespace(device=torch.device("cuda", 3))) == (3, 0x33)
    assert library.where(SimpleNamespace(device=torch.device("cuda"))) == (1, 0x11)


@pytest.mark.parametrize(
    "status, error",
    [(1, UnsupportedError), (2, BackendUnavailableError), (3, BackendUnavailableError), (4, RuntimeError)],
)
def test_statuses(library, extension, status, error):
    library.check(Extension.OK)
    extension.status = status
    with pytest.raises(error, match=f"text of status {status}") as caught:
        library.check(status)
    assert type(caught.value) is error


def test_codes_of_types():
    assert [float_code("x", dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)] == [0, 1, 2]
    fp8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
    assert [fp8_code("q", dtype) for dtype in fp8] == [3, 4, 5, 6]
    with pytest.raises(UnsupportedError, match="x.dtype=torch.int32: accepted are torch.float32, torch.float16, "):
        float_code("x.dtype", torch.int32)
    with pytest.raises(UnsupportedError, match="out_dtype=torch.bfloat16: accepted are torch.float8_e4m3fn, "):
        fp8_code("out_dtype", torch.bfloat16)


def test_address():
    x = torch.zeros(4)
    assert address(None) == 0
    assert address(x[1:]) == x.data_ptr() + 4


def test_codes_are_those_of_the_c_interface():
    header = (csrc_common_dir() / "include" / "turbo" / "abi.h").read_text()
    found = {name: int(code) for name, code in re.findall(r"TURBO_(B?FLOAT\w+) = (\d)", header)}
    codes = {"FLOAT32": torch.float32, "FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16}
    assert {name: float_code("x", dtype) for name, dtype in codes.items()}.items() <= found.items()
    fp8 = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}
    fp8 |= {"E4M3_FNUZ": torch.float8_e4m3fnuz, "E5M2_FNUZ": torch.float8_e5m2fnuz}
    assert {f"FLOAT8_{name}": fp8_code("q", dtype) for name, dtype in fp8.items()}.items() <= found.items()
    assert len(found) == 7
