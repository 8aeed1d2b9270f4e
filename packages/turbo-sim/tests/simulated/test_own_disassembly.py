# SPDX-License-Identifier: MIT
"""The decoder against llvm-objdump on this project's kernels: each HIP code object, two forms of each Triton kernel."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from objdump import differences, needs_llvm

audit = pytest.importorskip("turbo_core.audit", reason="turbo-core is not installed")
FORMS = 2  # of each Triton kernel; with -m all_objects all that the audit calls representative


def compare(wheel: str, arch: str, folder: Path, forms: int | None, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compares the wheel's kernels; returns how many instructions."""
    import triton

    objects: list[bytes] = []
    compile_as_ever = triton.compile

    def compile(*args, **options):
        compiled = compile_as_ever(*args, **options)
        objects.append(compiled.asm["hsaco"])
        return compiled

    monkeypatch.setattr(triton, "compile", compile)
    seen: Counter[str] = Counter()
    for kernel in audit.find_kernels()[wheel](arch, False):
        if isinstance(kernel, audit.CodeObject):
            objects.append(kernel.path.read_bytes())
            continue
        seen[kernel.kernel.__name__] += 1
        if forms is None or seen[kernel.kernel.__name__] <= forms:
            kernel.resources()
    total = 0
    for number, data in enumerate(objects):
        path = folder / f"{number}.hsaco"
        path.write_bytes(data)
        count, bad = differences(path, arch)
        assert not bad, "\n".join(bad[:5])
        total += count
    return total


if not audit.find_kernels():
    pytest.skip("no wheel with kernels is installed", allow_module_level=True)
wheels = pytest.mark.parametrize("wheel", sorted(audit.find_kernels()))
archs = pytest.mark.parametrize("arch", audit.ARCHS)


@needs_llvm
@archs
@wheels
def test_own_kernels(wheel: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(wheel, arch, tmp_path, FORMS, monkeypatch) > 1000


@needs_llvm
@pytest.mark.all_objects
@archs
@wheels
def test_all_representative_kernels(wheel: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(wheel, arch, tmp_path, None, monkeypatch) > 10_000
