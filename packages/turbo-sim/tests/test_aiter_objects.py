# SPDX-License-Identifier: MIT
"""The decoder against llvm-objdump on the code objects of the amd-aiter wheel (`--aiter-wheel`).

A sample in every run; all of them, 12 million instructions, with `-m all_objects`, which `nox -s test-sim-aiter` gives.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from objdump import differences, needs_llvm

PARTS = 64  # every object is in one; the sample is the first


def compare(wheel: Path, part: int, folder: Path) -> tuple[int, int]:
    """Compares every PARTS-th object; returns how many objects and how many instructions."""
    path = folder / "object.co"
    instructions = 0
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".co"))[part::PARTS]
        for name in names:
            path.write_bytes(archive.read(name))
            count, bad = differences(path, "gfx942" if "/gfx942/" in name else "gfx950")
            assert not bad, f"{name}: " + "\n".join(bad[:5])
            instructions += count
    return len(names), instructions


@needs_llvm
def test_sample(aiter_wheel: Path, tmp_path: Path) -> None:
    objects, instructions = compare(aiter_wheel, 0, tmp_path)
    assert objects >= 39 and instructions > 100_000


@needs_llvm
@pytest.mark.all_objects
@pytest.mark.parametrize("part", range(1, PARTS))
def test_the_others(aiter_wheel: Path, part: int, tmp_path: Path) -> None:
    objects, instructions = compare(aiter_wheel, part, tmp_path)
    assert objects >= 39 and instructions > 100_000
