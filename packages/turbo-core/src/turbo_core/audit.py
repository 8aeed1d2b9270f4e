# SPDX-License-Identifier: MIT
"""``python -m turbo_core audit``: what every kernel of every installed wheel uses on gfx942 and gfx950.

No GPU is needed: HIP kernels come as code objects inside the wheels, Triton kernels are compiled ahead of time here. A
kernel fails that spills a register, uses scratch, needs more LDS than the architecture has, or exists for one of the
two architectures only.

A wheel names its kernels in the entry points ``turbo_core.audit``: a function ``(arch, full) -> Iterator`` of
`TritonKernel` and `CodeObject`, where ``full=False`` asks for a representative part that compiles quickly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from turbo_core.code_object import KernelResources, kernel_resources, occupancy
from turbo_core.device import arch_facts
from turbo_core.errors import UnsupportedError
from turbo_core.installed import entry_points
from turbo_core.requirements import require_triton

__all__ = [
    "ARCHS",
    "AuditRow",
    "CodeObject",
    "TritonKernel",
    "audit",
    "code_objects",
    "format_table",
    "to_json",
]

ENTRY_POINT_GROUP = "turbo_core.audit"
ARCHS = ("gfx942", "gfx950")


@dataclass(frozen=True)
class TritonKernel:
    """One Triton compilation: a kernel and everything that its machine code depends on.

    Attributes:
        name: readable and unique within the wheel.
        arch: architecture to compile for.
        kernel: the ``@triton.jit`` function.
        signature, constexprs, attrs: as ``triton.compiler.ASTSource`` takes them. Pointers with ``tt.pointer_range``
            are read by buffer instructions, as they are while their tensors are smaller than 2 GiB.
        options: launch options (``num_warps``, ...).
    """

    name: str
    arch: str
    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, Any]
    attrs: dict[tuple[int, ...], list[list[Any]]]
    options: dict[str, Any]

    def past_2_gib(self) -> TritonKernel | None:
        """The same for larger tensors, None where it is the same compilation."""
        attrs = {
            position: [attribute for attribute in attributes if attribute[0] != "tt.pointer_range"]
            for position, attributes in self.attrs.items()
        }
        return None if attrs == self.attrs else replace(self, name=f"{self.name} past 2 GiB", attrs=attrs)

    def resources(self) -> list[KernelResources]:
        """Compile, and read what came out; LDS is what the launch asks for."""
        triton = require_triton()
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        source = ASTSource(self.kernel, self.signature, self.constexprs, self.attrs)
        target = GPUTarget("hip", self.arch, arch_facts(self.arch).wave_size)
        compiled = triton.compile(source, target=target, options=self.options)
        threads = compiled.metadata.num_warps * arch_facts(self.arch).wave_size
        lds = compiled.metadata.shared
        return [
            replace(
                found,
                kernel=self.name,
                lds=lds,
                threads=threads,
                occupancy=occupancy(found.arch, found.vgpr, lds, threads),
            )
            for found in kernel_resources(compiled.asm["hsaco"])
        ]


@dataclass(frozen=True)
class CodeObject:
    """A HIP code object in a wheel; ``name`` is its file name up to the architecture (``rmsnorm``)."""

    name: str
    arch: str
    path: Path
    only: bool = False  # from a source for this architecture alone (``*_gfx950.hip``), so no other needs it

    def resources(self) -> list[KernelResources]:
        """What the file says of its kernels."""
        return kernel_resources(self.path.read_bytes())


def code_objects(package: ModuleType, arch: str) -> Iterator[CodeObject]:
    """The HIP code objects in ``lib/`` of a wheel's package; ``resources.json`` beside them says which are `only`."""
    for folder in (Path(folder) / "lib" for folder in package.__path__):  # an editable install has two
        table = folder / "resources.json"
        single = json.loads(table.read_text(encoding="utf-8")).get("single_arch", []) if table.is_file() else []
        for path in sorted(folder.glob(f"*.{arch}.hsaco")):
            name = path.name.removesuffix(f".{arch}.hsaco")
            yield CodeObject(name, arch, path, f"{name}.{arch}" in single)


@dataclass(frozen=True)
class AuditRow:
    """One kernel on one architecture, and what is wrong with it (nothing when ``failures`` is empty)."""

    wheel: str
    source: str
    resources: KernelResources
    failures: tuple[str, ...]


Kernels = Callable[[str, bool], Iterable["TritonKernel | CodeObject"]]


def find_kernels() -> dict[str, Kernels]:
    """The listing functions of the installed wheels, by wheel."""
    return {name: point.load() for name, point in sorted(entry_points(ENTRY_POINT_GROUP).items())}


def audit(
    *, full: bool = False, archs: Iterable[str] = ARCHS, wheels: Iterable[str] | None = None
) -> Iterator[AuditRow]:
    """Yield a row for each kernel, as it is compiled or read.

    Args:
        full: every configuration, and again as compiled for tensors past 2 GiB; otherwise the representative part.
        archs: architectures to audit.
        wheels: names of wheels; all that are installed when None.

    Raises:
        UnsupportedError: an architecture or a wheel is not known.
    """
    archs = tuple(archs)
    for arch in archs:
        arch_facts(arch)
    known = find_kernels()
    names = tuple(known) if wheels is None else tuple(wheels)
    if unknown := [name for name in names if name not in known]:
        raise UnsupportedError(
            f"audit: no kernels of {', '.join(unknown)}; installed wheels with kernels: {list(known)}"
        )
    for wheel in names:
        listed = {arch: list(_with_variants(known[wheel](arch, full), full)) for arch in archs}
        yield from _missing(wheel, listed)
        for kernels in listed.values():
            for kernel in kernels:
                source = "HIP" if isinstance(kernel, CodeObject) else "Triton"
                for used in kernel.resources():
                    yield AuditRow(wheel, source, used, tuple(used.faults()))


def _with_variants(kernels: Iterable[TritonKernel | CodeObject], full: bool) -> Iterator[TritonKernel | CodeObject]:
    for kernel in kernels:
        yield kernel
        larger = kernel.past_2_gib() if full and isinstance(kernel, TritonKernel) else None
        if larger is not None:
            yield larger


def _missing(wheel: str, listed: dict[str, list[TritonKernel | CodeObject]]) -> Iterator[AuditRow]:
    """A failing row for each code object that one architecture has and another lacks."""
    objects = {
        arch: [kernel for kernel in kernels if isinstance(kernel, CodeObject)] for arch, kernels in listed.items()
    }
    shared = {code.name for codes in objects.values() for code in codes if not code.only}
    for arch, codes in objects.items():
        for name in sorted(shared - {code.name for code in codes}):
            nothing = KernelResources(name, arch, 0, 0, 0, 0, 0, 0, 0, 0, 0, False, 0)
            yield AuditRow(wheel, "HIP", nothing, (f"there is no code object for {arch}",))


_COLUMNS = (
    "wheel", "kernel", "arch", "from", "VGPR", "AGPR", "SGPR", "spills", "scratch", "LDS", "waves/SIMD", "verdict",
)  # fmt: skip


def _cells(row: AuditRow) -> tuple[str, ...]:
    used = row.resources
    spills = used.vgpr_spills + used.sgpr_spills
    numbers = (used.vgpr, used.agpr, used.sgpr, spills, used.scratch, used.lds, used.occupancy)
    verdict = "; ".join(row.failures) or "ok"
    return row.wheel, used.kernel, used.arch, row.source, *map(str, numbers), verdict


def format_table(rows: Iterable[AuditRow]) -> str:
    """The rows as an aligned text table, with a closing line that counts kernels and failures."""
    rows = list(rows)
    table = [_COLUMNS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in table]
    failed = sum(1 for row in rows if row.failures)
    return "\n".join([*lines, f"{len(rows)} kernels, {failed} failed"])


def to_json(rows: Iterable[AuditRow]) -> list[dict[str, Any]]:
    """The rows as plain data."""
    return [
        {"wheel": row.wheel, "source": row.source, **asdict(row.resources), "failures": list(row.failures)}
        for row in rows
    ]
