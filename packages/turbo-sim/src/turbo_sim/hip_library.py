# SPDX-License-Identifier: MIT
"""The simulator's libamdhip64.so: where it is, and its own functions (`turbo_sim_*`) through ctypes."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import turbo_sim

__all__ = ["HipLibrary", "hip", "library_path"]

_NAME = "libamdhip64.so"


@functools.cache
def library_path() -> str:
    """Path of the library for this processor: what TURBO_HIP_LIBRARY and TRITON_LIBHIP_PATH are set to."""
    from turbo_sim._native import level

    folders = [Path(folder).resolve() for folder in turbo_sim.__path__]  # an editable install has two
    places = [folder / "lib" / level / _NAME for folder in folders]
    for path in places:
        if path.is_file():
            return str(path)
    raise FileNotFoundError(f"turbo-sim's HIP library is missing: {', '.join(map(str, places))}; reinstall the wheel")


class HipLibrary:
    """Settings, announcements and results of the loaded library. One per process, as the library is."""

    def __init__(self, path: str) -> None:
        self.path = path
        lib = ctypes.CDLL(path)
        for name in ("turbo_sim_set", "turbo_sim_arch", "turbo_sim_last_text", "turbo_sim_take_profiles"):
            getattr(lib, name).restype = ctypes.c_char_p
        lib.turbo_sim_set.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        lib.turbo_sim_announce.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int]
        lib.turbo_sim_announce.restype = None
        lib.turbo_sim_withdraw.argtypes = [ctypes.c_uint64]
        lib.turbo_sim_withdraw.restype = None
        lib.turbo_sim_withdraw_next.restype = None
        lib.turbo_sim_counter.argtypes = [ctypes.c_char_p]
        lib.turbo_sim_counter.restype = ctypes.c_uint64
        self._lib = lib
        self.settings: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        """One setting: arch, checks, threads, seed, max_steps, bounds, findings, record."""
        problem = self._lib.turbo_sim_set(key.encode(), value.encode()).decode()
        if problem:
            raise ValueError(problem)
        self.settings[key] = value

    def announce(self, address: int, size: int, name: str, *, next_launch: bool) -> None:
        self._lib.turbo_sim_announce(address, size, name.encode(), int(next_launch))

    def withdraw(self, address: int) -> None:
        self._lib.turbo_sim_withdraw(address)

    def withdraw_next(self) -> None:
        self._lib.turbo_sim_withdraw_next()

    def track_torch(self) -> bool:
        """Bounds for torch's CPU tensors allocated from now on; False where torch is not loaded or built otherwise."""
        return bool(self._lib.turbo_sim_track_torch())

    def counter(self, name: str) -> int:
        """instructions, launches or findings since the library was loaded."""
        return int(self._lib.turbo_sim_counter(name.encode()))

    def last_text(self) -> str:
        return self._lib.turbo_sim_last_text().decode(errors="replace")

    def take_profiles(self) -> str:
        return self._lib.turbo_sim_take_profiles().decode(errors="replace")


@functools.cache
def hip() -> HipLibrary:
    return HipLibrary(library_path())
