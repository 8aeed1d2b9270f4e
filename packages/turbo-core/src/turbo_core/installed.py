# SPDX-License-Identifier: MIT
"""Which wheels are here and what they announce: from their metadata, or from a source checkout.

A wheel names its ops and its kernels in entry points, which its metadata hold. Sources that are only on the path
(``PYTHONPATH=packages/turbo-gemm/src``) have none; the pyproject.toml beside ``src`` says the same there.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Checkout", "checkouts", "entry_points", "foreign_namesake", "unnamed", "versions"]

_PREFIXES = ("turbo-", "primus-turbo")
_META_PACKAGE = "primus_turbo"
_SECTION = re.compile(r"\[(.+)\]\s*(?:#.*)?")
_ENTRY = re.compile(r"""([\w-]+|"[^"]+"|'[^']+')\s*=\s*(?:"([^"\\]*)"|'([^']*)')\s*(?:#.*)?""")


@dataclass(frozen=True)
class Checkout:
    """A wheel's source folder from which Python imports: its name, version, and entry points by group."""

    name: str
    version: str
    folder: Path
    points: dict[str, dict[str, str]]


def read_project(path: Path) -> dict[str, dict[str, str]]:
    """The plain ``name = "value"`` lines of a pyproject.toml by section; Python 3.10 has no TOML reader."""
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if section := _SECTION.fullmatch(line.strip()):
            current = sections.setdefault(re.sub(r"[\s\"']", "", section[1]), {})
        elif entry := _ENTRY.fullmatch(line.strip()):
            current[entry[1].strip("\"'")] = entry[2] if entry[3] is None else entry[3]
    return sections


def checkouts() -> Iterator[Checkout]:
    """The Turbo wheels that are imported from a ``src`` folder on the path with a pyproject.toml beside it."""
    for folder in dict.fromkeys(map(Path, sys.path)):
        project = folder.absolute().parent / "pyproject.toml"
        if folder.absolute().name != "src" or not project.is_file():
            continue
        sections = read_project(project)
        described = sections.get("project", {})
        name = described.get("name", "")
        if not name.startswith(_PREFIXES) or not _is_imported_from(name.replace("-", "_"), folder):
            continue
        group = "project.entry-points."
        points = {key.removeprefix(group): found for key, found in sections.items() if key.startswith(group)}
        yield Checkout(name, described.get("version", "unknown"), folder, points)


def _is_imported_from(package: str, folder: Path) -> bool:
    """Whether Python would take ``package`` from ``folder``, and not from another place that comes first."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None and Path(spec.origin).parent.parent.samefile(folder)


def entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """What the wheels announce in ``group``, by name; none of it is imported yet. A checkout speaks for its wheel."""
    sources = {checkout.name: checkout for checkout in checkouts()}
    found = {
        point.name: point
        for point in importlib.metadata.entry_points(group=group)
        if point.dist is None or _normal(point.dist.metadata["Name"]) not in sources
    }
    for checkout in sources.values():
        for name, value in checkout.points.get(group, {}).items():
            found[name] = importlib.metadata.EntryPoint(name, value, group)
    return found


def _normal(name: str | None) -> str:
    return (name or "").lower().replace("_", "-")


def versions(names: tuple[str, ...] = ()) -> dict[str, str]:
    """Versions of the Turbo wheels that are here, and of the other distributions in ``names`` that are."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = _normal(distribution.metadata["Name"])
        if name.startswith(_PREFIXES) or name in names:
            found.setdefault(name, distribution.version)  # the first on the path is the one that is imported
    found.update((checkout.name, checkout.version) for checkout in checkouts())
    return found


def unnamed() -> list[str]:
    """Folders of ops on the path of which nothing says which they have: no metadata, and no pyproject.toml."""
    known = {name.replace("-", "_") for name in versions()}
    packages = [
        file.parents[1] for entry in sys.path for file in sorted(Path(entry).glob("turbo_*/pytorch/__init__.py"))
    ]
    return [str(package) for package in dict.fromkeys(packages) if package.name not in known]


def foreign_namesake() -> str | None:
    """What is wrong with ``import primus_turbo``; None where it is ours, or is not installed.

    AMD's library Primus-Turbo is imported by the same name, so one of the two hides the other, or a forced installation
    leaves files of both in one folder. Nothing is imported to find out.
    """
    spec = importlib.util.find_spec(_META_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    ours = spec.origin is not None and "turbo_core.lazy" in Path(spec.origin).read_text(encoding="utf-8")
    folders = list(map(Path, spec.submodule_search_locations))
    others = sorted(path.name for folder in folders for path in folder.rglob("*.so"))  # ours is Python alone
    if ours and not others:
        return None
    found = f"holds files of another library ({', '.join(others[:3])})" if ours else "is another library"
    return (
        f"import {_META_PACKAGE}: {folders[0]} {found}; AMD's Primus-Turbo has the same import name. Keep one "
        f"in an environment (pip uninstall {_META_PACKAGE}, then install the one you want), or import Turbo's wheels "
        "by their own names: turbo_gemm, turbo_attention, turbo_norm_act, turbo_quant"
    )
