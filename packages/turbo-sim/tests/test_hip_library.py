# SPDX-License-Identifier: MIT
"""libamdhip64.so of the simulator through ctypes: what a HIP program and the run-time shim of the wheels call."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys

import pytest
from elf_kernels import code_object, why_no_linker

from turbo_sim.hip_library import hip, library_path
from turbo_sim.testing import why_no_assembler

REASON = why_no_assembler() or why_no_linker()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

SUCCESS, INVALID_VALUE, NO_BINARY, NOT_FOUND, LAUNCH_FAILURE, NOT_SUPPORTED = 0, 1, 209, 500, 719, 801
ADD_ONE = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  s_load_dword s6, s[0:1], 0x8
  v_lshlrev_b32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
  global_load_dword v2, v1, s[4:5]
  s_waitcnt vmcnt(0)
  v_add_u32 v2, s6, v2
  global_store_dword v1, v2, s[4:5]
  s_endpgm
"""
NO_WAIT = ADD_ONE.replace("s_waitcnt vmcnt(0)", "s_nop 0")
ARGS = ((0, 8, "global_buffer"), (8, 4, "by_value"))
NEEDED_BY_TRITON = [
    "hipDriverGetVersion",
    "hipGetProcAddress",
    "hipGetLastError",
    "hipGetErrorString",
    "hipGetDeviceProperties",
    "hipModuleLoadDataEx",
    "hipModuleUnload",
    "hipModuleGetFunction",
    "hipFuncGetAttribute",
    "hipModuleLaunchKernel",
    "hipModuleLaunchCooperativeKernel",
    "hipPointerGetAttribute",
]


@pytest.fixture
def lib():
    library = ctypes.CDLL(library_path())
    library.hipGetErrorString.restype = ctypes.c_char_p
    before = dict(hip().settings)
    hip().set("arch", "gfx950")
    library.hipGetLastError()
    yield library
    for key, value in {"arch": "gfx950", "findings": "error", "checks": "all", **before}.items():
        hip().set(key, value)


def malloc(lib, data: bytes) -> ctypes.c_void_p:
    p = ctypes.c_void_p()
    assert lib.hipMalloc(ctypes.byref(p), ctypes.c_size_t(len(data))) == SUCCESS
    assert lib.hipMemcpy(p, data, ctypes.c_size_t(len(data)), 1) == SUCCESS
    return p


def fetch(lib, p: ctypes.c_void_p, size: int) -> bytes:
    out = ctypes.create_string_buffer(size)
    assert lib.hipMemcpy(out, p, ctypes.c_size_t(size), 2) == SUCCESS
    return out.raw


def function_of(lib, text: str, arch: str = "gfx950") -> ctypes.c_void_p:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.hipModuleLoadData(ctypes.byref(module), code_object(text, arch, "kernel", ARGS)) == SUCCESS
    assert lib.hipModuleGetFunction(ctypes.byref(function), module, b"kernel") == SUCCESS
    return function


def launch(lib, function, p: ctypes.c_void_p, value: int, block: int = 64) -> int:
    number = ctypes.c_uint32(value)
    params = (ctypes.c_void_p * 2)(ctypes.addressof(p), ctypes.addressof(number))
    return lib.hipModuleLaunchKernel(function, 1, 1, 1, block, 1, 1, 0, None, params, None)


def test_symbols(lib):
    for name in NEEDED_BY_TRITON:
        pointer, status = ctypes.c_void_p(), ctypes.c_int(7)
        assert (
            lib.hipGetProcAddress(
                name.encode(), ctypes.byref(pointer), 60000000, ctypes.c_uint64(0), ctypes.byref(status)
            )
            == SUCCESS
        )
        assert pointer.value and status.value == 0, name
    assert (
        lib.hipGetProcAddress(b"hipNoSuchThing", ctypes.byref(ctypes.c_void_p()), 0, ctypes.c_uint64(0), None)
        == INVALID_VALUE
    )
    version = ctypes.c_int()
    lib.hipDriverGetVersion(ctypes.byref(version))
    assert version.value // 10_000_000 >= 6


@pytest.mark.parametrize("arch,lds,units", [("gfx942", 65536, 304), ("gfx950", 163840, 256)])
def test_properties(lib, arch, lds, units):
    hip().set("arch", arch)
    raw = ctypes.create_string_buffer(b"\xff" * 2048, 2048)
    assert lib.hipGetDevicePropertiesR0600(raw, 0) == SUCCESS
    data = raw.raw
    assert data[1160:1416].split(b"\0")[0].decode().split(":")[0] == arch
    assert struct.unpack_from("<Q", data, 296)[0] == lds and struct.unpack_from("<i", data, 308)[0] == 64
    assert struct.unpack_from("<i", data, 388)[0] == units
    assert data[1472:] == b"\xff" * (2048 - 1472), "written beyond the struct"
    assert lib.hipGetDevicePropertiesR0600(raw, 1) != SUCCESS


@pytest.mark.parametrize("packed", [False, True])
def test_launch(lib, packed):
    p = malloc(lib, struct.pack("<64I", *range(64)))
    function = function_of(lib, ADD_ONE)
    if packed:  # the argument buffer of `extra`
        buffer = struct.pack("<QI", p.value, 5)
        size = ctypes.c_size_t(len(buffer))
        extra = (ctypes.c_void_p * 5)(1, ctypes.cast(buffer, ctypes.c_void_p), 2, ctypes.addressof(size), 3)
        assert lib.hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, None, None, extra) == SUCCESS
    else:
        assert launch(lib, function, p, 5) == SUCCESS
    assert struct.unpack("<64I", fetch(lib, p, 256)) == tuple(range(5, 69))
    assert lib.hipFree(p) == SUCCESS and lib.hipFree(p) != SUCCESS


def test_a_finding_is_a_launch_failure_with_text(lib):
    p = malloc(lib, bytes(256))
    assert launch(lib, function_of(lib, NO_WAIT), p, 1) == LAUNCH_FAILURE
    assert (
        lib.hipPeekAtLastError() == LAUNCH_FAILURE
        and lib.hipGetLastError() == LAUNCH_FAILURE
        and lib.hipGetLastError() == SUCCESS
    )
    text = lib.hipGetErrorString(LAUNCH_FAILURE).decode()
    assert "wait: kernel" in text and "v_add_u32" in text and "v2 is read before" in text
    hip().set("findings", "keep")
    assert launch(lib, function_of(lib, NO_WAIT), p, 1) == SUCCESS
    hip().set("findings", "error")
    hip().set("checks", "bounds,race")
    assert launch(lib, function_of(lib, NO_WAIT), p, 1) == SUCCESS
    lib.hipFree(p)


def test_store_beyond_a_block(lib):
    p = malloc(lib, bytes(252))
    assert launch(lib, function_of(lib, ADD_ONE), p, 1) == LAUNCH_FAILURE
    assert "4 bytes past the end of 'hipMalloc(252)'" in lib.hipGetErrorString(LAUNCH_FAILURE).decode()
    lib.hipFree(p)


def test_bounds_of_torch_tensors(lib):
    """Tensors that torch allocates after tracking began have exact bounds; other memory only has to be mapped."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert hip().track_torch(), "torch's CPU allocator is not built as expected: torch_memory.cpp needs a look"
    function = function_of(lib, ADD_ONE)

    def launch_on(address: int) -> int:
        return launch(lib, function, ctypes.c_void_p(address), 1)

    right, short = torch.zeros(64, dtype=torch.int32), torch.zeros(63, dtype=torch.int32)
    assert launch_on(right.data_ptr()) == SUCCESS and int(right.sum()) == 64
    assert launch_on(short.data_ptr()) == LAUNCH_FAILURE
    assert "past the end of 'tensor of 252 bytes'" in lib.hipGetErrorString(LAUNCH_FAILURE).decode()
    assert launch_on(right.data_ptr() + 4) == LAUNCH_FAILURE
    unknown = (ctypes.c_uint32 * 256)()  # the simulator cannot know its extent
    assert launch_on(ctypes.addressof(unknown)) == SUCCESS and sum(unknown) == 64
    del right, short
    assert launch_on(16) == LAUNCH_FAILURE


def test_the_other_architecture_is_refused(lib):
    module = ctypes.c_void_p()
    assert lib.hipModuleLoadData(ctypes.byref(module), code_object(ADD_ONE, "gfx942", "kernel", ARGS)) == NO_BINARY
    assert "gfx942" in lib.hipGetErrorString(NO_BINARY).decode()
    function = function_of(lib, ADD_ONE)
    hip().set("arch", "gfx942")
    p = malloc(lib, bytes(256))
    assert launch(lib, function, p, 1) == NO_BINARY
    lib.hipFree(p)


def test_bad_arguments(lib):
    function = ctypes.c_void_p()
    module = ctypes.c_void_p()
    assert lib.hipModuleLoadData(ctypes.byref(module), b"no code object at all, really" * 4) != SUCCESS
    assert lib.hipModuleLoadData(ctypes.byref(module), code_object(ADD_ONE, "gfx950", "kernel", ARGS)) == SUCCESS
    assert lib.hipModuleGetFunction(ctypes.byref(function), module, b"other") == NOT_FOUND
    assert lib.hipModuleGetFunction(ctypes.byref(function), module, b"kernel") == SUCCESS
    p = malloc(lib, bytes(256))
    assert launch(lib, function, p, 1, block=2048) != SUCCESS
    assert "limit" in lib.hipGetErrorString(9).decode() or "1024" in lib.hipGetErrorString(9).decode()
    assert lib.hipModuleLaunchCooperativeKernel(function, 1, 1, 1, 64, 1, 1, 0, None, None, None) == NOT_SUPPORTED
    assert lib.hipSetDevice(1) != SUCCESS and lib.hipSetDevice(0) == SUCCESS
    lib.hipFree(p)


def test_streams_and_events(lib):
    stream, events = ctypes.c_void_p(), [ctypes.c_void_p() for _ in range(2)]
    assert lib.hipStreamCreate(ctypes.byref(stream)) == SUCCESS
    for e in events:
        assert lib.hipEventCreate(ctypes.byref(e)) == SUCCESS
    p, function = malloc(lib, bytes(256)), function_of(lib, ADD_ONE)
    lib.hipEventRecord(events[0], stream)
    launch(lib, function, p, 1)
    lib.hipEventRecord(events[1], stream)
    elapsed = ctypes.c_float()
    assert lib.hipEventElapsedTime(ctypes.byref(elapsed), *events) == SUCCESS
    assert elapsed.value == pytest.approx(9e-6), "wave-instructions in millions"
    assert lib.hipMemsetAsync(p, 3, ctypes.c_size_t(256), stream) == SUCCESS and fetch(lib, p, 256) == b"\3" * 256
    assert lib.hipStreamSynchronize(stream) == SUCCESS and lib.hipStreamDestroy(stream) == SUCCESS
    for e in events:
        assert lib.hipEventDestroy(e) == SUCCESS
    lib.hipFree(p)


def test_profiles(lib):
    import json

    p, function = malloc(lib, bytes(256)), function_of(lib, ADD_ONE)
    hip().set("record", "1")
    hip().take_profiles()
    launch(lib, function, p, 1)
    hip().set("record", "0")
    launch(lib, function, p, 1)
    (profile,) = json.loads(hip().take_profiles())
    assert profile["note"] == "model, not a measurement"
    assert profile["wave_instructions"] == 9 and profile["vmem_load_bytes"] == profile["vmem_store_bytes"] == 256
    assert json.loads(hip().take_profiles()) == []
    lib.hipFree(p)


def test_a_program_sets_the_simulator_up_itself(lib, tmp_path):
    """A HIP program without turbo_sim's Python: turbo_sim_set of the library; the environment decides nothing."""
    (tmp_path / "code.bin").write_bytes(code_object(NO_WAIT, "gfx942", "kernel", ARGS))
    program = f"""
import ctypes, sys
lib = ctypes.CDLL({library_path()!r})
lib.turbo_sim_set.restype = ctypes.c_char_p
for key, value in (b"arch", b"gfx942"), (b"checks", sys.argv[1].encode()):
    assert lib.turbo_sim_set(key, value) == b""
assert b"fast" in lib.turbo_sim_set(b"arch", b"fast")
m, f, p = (ctypes.c_void_p() for _ in range(3))
image = open({str(tmp_path / "code.bin")!r}, "rb").read()
assert lib.hipModuleLoadData(ctypes.byref(m), image) == 0
lib.hipModuleGetFunction(ctypes.byref(f), m, b"kernel"); lib.hipMalloc(ctypes.byref(p), ctypes.c_size_t(256))
n = ctypes.c_uint32(1)
params = (ctypes.c_void_p * 2)(ctypes.addressof(p), ctypes.addressof(n))
print(lib.hipModuleLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, None, params, None))
"""
    for checks, expected in (("none", 0), ("wait", LAUNCH_FAILURE)):
        environment = {"TURBO_SIM_ARCH": "gfx950", "TURBO_SIM_CHECKS": "all", "PATH": "/usr/bin:/bin"}
        command = [sys.executable, "-c", program, checks]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert run.stdout.strip() == str(expected), run.stderr


def test_unknown_settings_are_refused():
    for key, value in (
        ("arch", "gfx90a"),
        ("checks", "everything"),
        ("speed", "1"),
        ("threads", "two"),
        ("bounds", "none"),
    ):
        with pytest.raises(ValueError, match=f"{key}|check"):
            hip().set(key, value)
