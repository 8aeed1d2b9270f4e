# SPDX-License-Identifier: MIT
"""Picks the compiled module for this processor: x86-64-v3 (AVX2, FMA) where it can run, else the baseline."""

from __future__ import annotations

import importlib
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


def _pick() -> tuple[str, ModuleType]:
    flags = _processor_flags()
    for level in (name for name, needs in NEEDS.items() if needs <= flags):
        name = f"turbo_sim._sim_{level}"
        try:
            return level, importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name != name:
                raise
    raise ImportError("turbo-sim's compiled module for this processor is missing; reinstall the wheel")


level, module = _pick()
