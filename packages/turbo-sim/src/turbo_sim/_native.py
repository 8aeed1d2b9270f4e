# SPDX-License-Identifier: MIT
"""Picks the compiled module for this processor: x86-64-v3 (AVX2, FMA) where it can run, else the baseline.

TURBO_SIM_LEVEL=v1|v3|v4 forces one. TURBO_SIM_MODULE_DIR names a CMake build folder to take it from, for development.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from types import ModuleType

NEEDS = {"v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "v3": {"avx2", "fma", "bmi2", "f16c"}, "v1": set()}


def _processor_flags() -> set[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return set(line.split(":", 1)[1].split())
    except OSError:
        pass
    return set()


def _load(level: str) -> ModuleType | None:
    name = f"_sim_{level}"
    folder = os.environ.get("TURBO_SIM_MODULE_DIR")
    if folder:
        found = sorted(Path(folder).glob(f"{name}.*.so"))
        if not found:
            return None
        spec = importlib.util.spec_from_file_location(name, found[0])
        if spec is None or spec.loader is None:
            return None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded
    try:
        return importlib.import_module(f"turbo_sim.{name}")
    except ModuleNotFoundError:
        return None


def _pick() -> tuple[str, ModuleType]:
    forced = os.environ.get("TURBO_SIM_LEVEL")
    flags = _processor_flags()
    for level in [forced] if forced else [k for k, needs in NEEDS.items() if needs <= flags]:
        found = _load(level)
        if found is not None:
            return level, found
    raise ImportError(
        "turbo-sim's compiled module is missing; reinstall the wheel, or set TURBO_SIM_MODULE_DIR to a build folder"
    )


level, module = _pick()
