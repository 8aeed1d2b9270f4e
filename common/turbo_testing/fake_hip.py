# SPDX-License-Identifier: MIT
"""A HIP run time that records launches in place of making them (fake_hip.c), and fixtures for it.

The plugin has the fixtures, so a test only names the one that it needs:

def test_it(fake_hip):
    fake_hip.set_arch(0, "gfx950")
    ...                       # calls of a native library
    assert [launch.kernel for launch in fake_hip.launches] == ["..."]
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_hip.c")
VARIABLE = "TURBO_HIP_LIBRARY"


class Launch(ctypes.Structure):
    """One recorded launch, as laid out in fake_hip.c."""

    _fields_ = [
        ("_kernel", ctypes.c_char * 128),
        ("_grid", ctypes.c_uint * 3),
        ("_block", ctypes.c_uint * 3),
        ("lds", ctypes.c_uint),
        ("device", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("_size", ctypes.c_uint),
        ("_arguments", ctypes.c_ubyte * 512),
    ]

    @property
    def kernel(self) -> str:
        return self._kernel.decode()

    @property
    def grid(self) -> tuple[int, int, int]:
        return tuple(self._grid)

    @property
    def block(self) -> tuple[int, int, int]:
        return tuple(self._block)

    @property
    def arguments(self) -> bytes:
        """The kernel's argument segment."""
        return bytes(self._arguments[: self._size])


class FakeHip:
    """Handle on a loaded fake library; the native library under test loads the same file and so the same state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.fake_launch.restype = ctypes.POINTER(Launch)

    def reset(self) -> None:
        self._library.fake_reset()
        self.set_arch(0, "gfx942:sramecc+:xnack-")
        self.set_arch(1, "gfx950:sramecc+:xnack-")
        for device in range(2, 8):
            self.set_arch(device, "")

    def set_arch(self, device: int, name: str) -> None:
        """gcnArchName of a device; an empty name means that there is no such device."""
        self._library.fake_arch(device, name.encode())

    def fail(self, function: str, code: int) -> None:
        """Lets calls of a HIP function fail from now on; code 0 ends it."""
        self._library.fake_fail(function.encode(), code)

    @property
    def launches(self) -> list[Launch]:
        copies = []
        for index in range(self._library.fake_launch_count()):
            copies.append(Launch.from_buffer_copy(self._library.fake_launch(index).contents))
        return copies

    @property
    def loaded(self) -> list[int]:
        """The device of each code object that was loaded, in order."""
        return [self._library.fake_module_device(index) for index in range(self._library.fake_module_count())]

    @property
    def device_changes(self) -> int:
        return self._library.fake_set_device_count()

    @property
    def current_device(self) -> int:
        return self._library.fake_current_device()

    @property
    def last_error(self) -> int:
        return self._library.fake_last_error()


def build(output: Path, *flags: str) -> Path:
    """Compiles the fake library; skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    output.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", *flags, str(SOURCE), "-o", str(output), "-lpthread"], check=True
    )
    return output


@pytest.fixture(scope="session")
def fake_hip_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled fake, built once a session."""
    # not named libamdhip64: the search for a copy in the process must not find it in tests of other things
    return build(tmp_path_factory.mktemp("fake_hip") / "libfakehip.so")


@pytest.fixture
def fake_hip(fake_hip_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHip]:
    """A fresh fake run time, named by TURBO_HIP_LIBRARY: device 0 is a gfx942, device 1 a gfx950."""
    fake = FakeHip(fake_hip_library)
    fake.reset()
    monkeypatch.setenv(VARIABLE, str(fake_hip_library))
    yield fake
    fake.reset()
