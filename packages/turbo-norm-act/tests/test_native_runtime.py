# SPDX-License-Identifier: MIT
"""The run-time shim: which HIP library it takes, code objects per device and thread, and what it says when it cannot.

Through the C interface with ctypes, in processes of their own where the search for the library is the question.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from turbo_testing.fake_hip import build

OK, ARGUMENT, NO_RUNTIME, NO_KERNEL, HIP = range(5)


def library() -> Path:
    spec = importlib.util.find_spec("turbo_norm_act.pytorch._C")
    if spec is None or spec.origin is None:
        pytest.skip("turbo-norm-act is not built (pip install -e)")
    return Path(spec.origin).parents[1] / "lib" / "libturbo_norm_act_kernels.so"


class ForwardArguments(ctypes.Structure):
    """turbo_norm_forward_args of turbo_norm_act.h."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("residual", ctypes.c_void_p),
        ("residual_stride", ctypes.c_int64),
        ("gamma", ctypes.c_void_p),
        ("beta", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("s", ctypes.c_void_p),
        ("mean", ctypes.c_void_p),
        ("rstd", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("dtype", ctypes.c_int),
        ("gamma_dtype", ctypes.c_int),
        ("beta_dtype", ctypes.c_int),
        ("eps", ctypes.c_float),
        ("zero_centered", ctypes.c_int),
    ]


def load(path: Path) -> ctypes.CDLL:
    native = ctypes.CDLL(str(path))
    native.turbo_norm_act_last_error.restype = ctypes.c_char_p
    native.turbo_rmsnorm_forward.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    return native


def launch(native: ctypes.CDLL, device: int = 0, dim: int = 64) -> int:
    arguments = ForwardArguments(x=16, x_stride=dim, y=16, rstd=16, rows=1, dim=dim, dtype=2)
    return native.turbo_rmsnorm_forward(ctypes.byref(arguments), device, None)


def error(native: ctypes.CDLL) -> str:
    return native.turbo_norm_act_last_error().decode()


@pytest.fixture
def native(fake_hip, tmp_path):
    """A copy of the library and its code objects, with a state of its own, from which a test can take files away."""
    folder = tmp_path / "lib"
    shutil.copytree(library().parent, folder)
    return load(folder / library().name)


# --- which library ----------------------------------------------------------------------------------------------------


def find_in_new_process(before: str = "", **variables: str) -> str:
    """What turbo_norm_act_check(0) says in a new process with just these variables: "ok <arch>" or the error."""
    program = f"""
import ctypes, os
{textwrap.dedent(before)}
native = ctypes.CDLL({str(library())!r})
native.turbo_norm_act_last_error.restype = ctypes.c_char_p
name = ctypes.create_string_buffer(64)
status = native.turbo_norm_act_device_arch(0, name, 64)
print("ok " + name.value.decode() if status == 0 else f"{{status}} " + native.turbo_norm_act_last_error().decode())
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, env=variables, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict[str, Path]:
    """Folders like ROCm's, whose libamdhip64 report different architectures (a -D changes device 0)."""
    folder = tmp_path_factory.mktemp("roots")
    names = {"one": "libamdhip64.so.7", "two": "libamdhip64.so.6", "three": "libamdhip64.so"}
    for root, name in names.items():
        build(folder / root / "lib" / name, f'-DFIRST_ARCH="gfx{root}"')
    return {root: folder / root for root in names}


def test_a_named_library_wins_over_all(roots):
    named = str(roots["three"] / "lib" / "libamdhip64.so")
    loaded = f"ctypes.CDLL({str(roots['one'] / 'lib' / 'libamdhip64.so.7')!r})"
    assert find_in_new_process(loaded, TURBO_HIP_LIBRARY=named, ROCM_HOME=str(roots["two"])) == "ok gfxthree"


def test_one_in_the_process_wins_over_rocm_home(roots):
    loaded = f"ctypes.CDLL({str(roots['one'] / 'lib' / 'libamdhip64.so.7')!r})"
    assert find_in_new_process(loaded, ROCM_HOME=str(roots["two"])) == "ok gfxone"


@pytest.mark.parametrize("root", ["one", "two", "three"])
def test_rocm_home_under_any_of_its_names(roots, root):
    assert find_in_new_process(ROCM_HOME=str(roots[root])) == f"ok gfx{root}"


def test_rocm_path_and_the_loaders_search(roots):
    assert find_in_new_process(ROCM_PATH=str(roots["two"]), ROCM_HOME="") == "ok gfxtwo"
    nowhere, search = str(roots["one"] / "nowhere"), str(roots["two"] / "lib")
    assert find_in_new_process(ROCM_HOME=nowhere, LD_LIBRARY_PATH=search) == "ok gfxtwo"


def test_none_is_an_error_that_names_all_places():
    text = find_in_new_process(ROCM_HOME="/nowhere/rocm")
    assert text.startswith(f"{NO_RUNTIME} no HIP run time (libamdhip64). Looked at:")
    for part in (
        "none is loaded in this process",
        "/nowhere/rocm/lib/libamdhip64.so.7",
        "/nowhere/rocm/lib/libamdhip64.so.6",
        "/nowhere/rocm/lib/libamdhip64.so:",
        "set ROCM_HOME",
        "TURBO_HIP_LIBRARY",
    ):
        assert part in text
    assert "/opt/rocm/lib/libamdhip64.so.7" in find_in_new_process()


def test_a_named_library_that_is_not_there_is_not_replaced(roots):
    text = find_in_new_process(TURBO_HIP_LIBRARY="/nowhere/libhip.so", ROCM_HOME=str(roots["one"]))
    assert text.startswith(f"{NO_RUNTIME} ")
    assert "/nowhere/libhip.so" in text
    assert "named by TURBO_HIP_LIBRARY, so nothing else is tried" in text


def test_a_missing_function_is_named(tmp_path):
    old = build(tmp_path / "libold.so", "-DhipGetDevicePropertiesR0600=hipGetDevicePropertiesOld")
    text = find_in_new_process(TURBO_HIP_LIBRARY=str(old))
    assert (
        text == f"{NO_RUNTIME} the HIP run time {old} has no function hipGetDevicePropertiesR0600: "
        "ROCm 6.0 or newer is needed"
    )


def test_a_library_that_appears_later_is_found(roots):
    path = str(roots["one"] / "lib" / "libamdhip64.so.7")
    before = f"""
        early = ctypes.CDLL({str(library())!r})
        assert early.turbo_norm_act_check(0) == {NO_RUNTIME}
        ctypes.CDLL({path!r})
    """
    assert find_in_new_process(before, ROCM_HOME="/nowhere") == "ok gfxone"


# --- devices and code objects -----------------------------------------------------------------------------------------


def test_each_device_gets_its_own_code_object_once(native, fake_hip):
    for device in (0, 1, 0, 1, 0):
        assert launch(native, device) == OK, error(native)
    assert fake_hip.loaded == [0, 1]
    assert [entry.device for entry in fake_hip.launches] == [0, 1, 0, 1, 0]


def test_only_the_devices_architecture_is_read(native, fake_hip, tmp_path):
    (tmp_path / "lib" / "rmsnorm_forward.gfx942.hsaco").write_bytes(b"no code object")
    assert launch(native, 1) == OK, error(native)
    assert launch(native, 0) == HIP
    assert "hipModuleLoadData of" in error(
        native
    ) and "rmsnorm_forward.gfx942.hsaco on device 0: no kernel image" in error(native)


def test_the_callers_device_is_put_back(native, fake_hip):
    assert launch(native, 0) == OK
    assert fake_hip.device_changes == 0, "the device was current already"
    assert launch(native, 1) == OK
    assert fake_hip.device_changes == 2
    assert fake_hip.current_device == 0
    fake_hip.fail("hipModuleLaunchKernel", 1)
    assert launch(native, 1) == HIP
    assert fake_hip.current_device == 0


def test_threads_load_a_code_object_once(native, fake_hip):
    start = threading.Barrier(16)
    statuses: list[int] = []

    def work(number: int) -> None:
        start.wait()
        statuses.append(launch(native, number % 2, 64 << number % 4))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [OK] * 16
    assert sorted(fake_hip.loaded) == [0, 1]
    assert len(fake_hip.launches) == 16


def test_reset_finds_everything_anew(native, fake_hip):
    assert launch(native) == OK
    fake_hip.set_arch(0, "gfx950")
    assert launch(native) == OK
    assert fake_hip.loaded == [0]
    native.turbo_norm_act_reset()
    assert launch(native) == OK
    assert fake_hip.loaded == [0, 0]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_architecture_without_code_object(native, fake_hip, tmp_path):
    fake_hip.set_arch(0, "gfx90a:sramecc+:xnack-")
    assert launch(native) == NO_KERNEL
    folder = tmp_path / "lib"
    assert error(native) == f"device 0 is gfx90a; code objects of rmsnorm_forward in {folder} are for: gfx942, gfx950"
    for path in folder.glob("*.hsaco"):
        path.unlink()
    assert launch(native, 1) == NO_KERNEL
    assert error(native).endswith("are for: none")
    assert native.turbo_norm_act_check(1) == NO_KERNEL


def test_a_kernel_that_the_code_object_lacks(native, fake_hip, tmp_path):
    folder = tmp_path / "lib"
    shutil.copy(folder / "rmsnorm_backward.gfx942.hsaco", folder / "rmsnorm_forward.gfx942.hsaco")
    assert launch(native) == NO_KERNEL
    expected = "has no kernel rmsnorm_forward_bf16_64x1: hipModuleGetFunction: named symbol not found (hipError_t 500)"
    assert error(native).endswith(expected)


@pytest.mark.parametrize(
    "function, text",
    [
        ("hipGetDevice", "hipGetDevice: "),
        ("hipGetDeviceProperties", "hipGetDeviceProperties: "),
        ("hipModuleLoadData", "hipModuleLoadData of "),
        (
            "hipModuleLaunchKernel",
            "hipModuleLaunchKernel of rmsnorm_forward_bf16_64x1 on device 0 (gfx942), 1 x 1 work-groups of 256",
        ),
    ],
)
def test_a_failing_hip_call_is_named_and_can_be_repeated(native, fake_hip, function, text):
    fake_hip.fail(function, 719)
    assert launch(native) == HIP
    assert text in error(native) and "unspecified launch failure (hipError_t 719)" in error(native)
    assert fake_hip.last_error == 0
    fake_hip.fail(function, 0)
    assert launch(native) == OK, "a failure must not be remembered"


def test_no_such_device(native, fake_hip):
    assert launch(native, 5) == HIP
    assert "invalid device ordinal" in error(native)


def test_a_run_time_that_tells_no_architecture(native, fake_hip):
    fake_hip.set_arch(0, "AMD Radeon")
    assert launch(native) == HIP
    assert 'reports no architecture for device 0 (gcnArchName is "AMD Radeon")' in error(native)


def test_errors_are_per_thread(native, fake_hip):
    assert launch(native, 5) == HIP
    seen = []
    thread = threading.Thread(target=lambda: seen.append(error(native)))
    thread.start()
    thread.join()
    assert seen == [""]


# --- the library ------------------------------------------------------------------------------------------------------


def test_the_library_answers_without_torch():
    program = f"""
import ctypes, sys
native = ctypes.CDLL({str(library())!r})
assert native.turbo_norm_act_abi_version() == 2
assert native.turbo_norm_act_check(0) == {NO_RUNTIME}
mapped = open("/proc/self/maps").read()
assert "torch" not in mapped and "amdhip" not in mapped
"""
    variables = {"ROCM_HOME": "/nowhere", "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-S", "-c", program], check=True, env=variables, timeout=60)
