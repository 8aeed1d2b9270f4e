# SPDX-License-Identifier: MIT
"""The tables in the documents that a program can answer: `python -m tools.documents` writes them anew.

A document holds each table between two comments, `<!-- generated NAME: begin -->` and `<!-- generated NAME: end -->`.
tests-integration/test_documents.py compares them with what is true today. The support tables in the READMEs of the
wheels are checked by the wheels' own tests.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from tools import documents_ops, new_wheel
from tools.monorepo import ROOT, Wheel, wheels
from turbo_core import GlobalBackendManager
from turbo_core.environment import FAMILIES
from turbo_core.explain import find_ops
from turbo_testing.budgets import BUDGETS


class Table(NamedTuple):
    """Where a table stands, and what makes it."""

    document: Path
    make: Callable[[], str]


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; cells must hold no bar."""
    lines = [list(head), *map(list, rows)]
    texts = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([texts[0], "|---" * len(lines[0]) + "|", *texts[1:]])


def operators() -> str:
    """Operators, their modules, and the backends that take them in each place, the default first."""
    return markdown(["operator", "modules", *documents_ops.PLACES], documents_ops.rows())


def list_of_wheels() -> str:
    """The wheels in the order of their dependencies, as their metadata describe them."""
    order = [
        "turbo-core",
        "turbo-gemm",
        "turbo-grouped-gemm",
        "turbo-attention",
        "turbo-norm-act",
        "turbo-quant",
        "primus-turbo",
        "turbo-sim",
    ]
    found = {wheel.name: wheel for wheel in wheels()}
    names = [name for name in order if name in found] + sorted(set(found) - set(order))
    rows = ((f"[`{name}`](packages/{name})", found[name].project["description"]) for name in names)
    return markdown(["wheel", "what it is"], rows)


def spaced(requirements: Iterable[str]) -> str:
    """``turbo-core>=0.1,<0.2`` as ``turbo-core >= 0.1, < 0.2``."""
    return "; ".join(re.sub(r"(>=|<)", r" \1 ", requirement).replace(",  <", ", <") for requirement in requirements)


def requirements() -> str:
    """What each wheel installs and what its extras name."""

    def row(wheel: Wheel) -> list[str]:
        extras = wheel.project.get("optional-dependencies", {})
        named = [f"`{name}`: {spaced(what)}" for name, what in extras.items()]
        return [f"`{wheel.name}`", spaced(wheel.project["dependencies"]) or "nothing", "; ".join(named) or "none"]

    return markdown(["wheel", "installs", "extras"], map(row, wheels()))


def settings() -> str:
    """The settings: their operators, the variables that hold them, their setters."""
    ops: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name, point in find_ops().items():
        ops[point.load().dispatcher.family].append(f"`{name}`")
    rows = []
    for family, facts in FAMILIES.items():
        setter = f"set_{family}_backend"
        getattr(GlobalBackendManager, setter)  # must exist
        variables = ", alias ".join(f"`{variable}`" for variable in facts.variables)
        who = ", ".join(sorted(ops[family])) or "none in this version"
        rows.append([who, variables or "none", f"`{setter}`", "yes" if facts.tunable else "no"])
    return markdown(["operators", "variable", "setter", "can be auto-tuned"], rows)


def backends() -> str:
    """The backends of each operator, in the order in which they are asked when the default refuses."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, point in sorted(find_ops().items()):
        names = tuple(backend.name for backend in point.load().dispatcher.backends)
        groups.setdefault(names, []).append(f"`{name}`")
    return markdown(["operators", "backends"], ([", ".join(ops), ", ".join(names)] for names, ops in groups.items()))


def costs() -> str:
    """What the tests of each wheel took, and may take, in CPU seconds."""
    rows = [(f"`{name}`" if "-" in name else name, budget.measured, budget.seconds) for name, budget in BUDGETS.items()]
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    return markdown(["tests", "measured, s", "budget, s"], ([name, f"{m:.0f}", f"{s:.0f}"] for name, m, s in rows))


def new_op() -> str:
    """What an op consists of, with the lines that each part has in the template."""
    parts = list(new_wheel.lines_of_an_op())
    shipped = sum(lines for part, _, lines in parts if not part.startswith(("tests", "the benchmark")))
    total = ("all but tests and benchmark", "", shipped)
    return markdown(["part", "files", "lines"], (map(str, row) for row in (*parts, total)))


TABLES = {
    "operators": Table(ROOT / "README.md", operators),
    "wheels": Table(ROOT / "README.md", list_of_wheels),
    "requirements": Table(ROOT / "docs" / "install.md", requirements),
    "settings": Table(ROOT / "docs" / "backends.md", settings),
    "backends": Table(ROOT / "docs" / "backends.md", backends),
    "new op": Table(ROOT / "CONTRIBUTING.md", new_op),
    "budgets": Table(ROOT / "CONTRIBUTING.md", costs),
}


def parts(document: Path, name: str) -> tuple[str, str, str]:
    """The text before a table, the table, and the text behind it."""
    text = document.read_text(encoding="utf-8")
    begin, end = (f"<!-- generated {name}: {mark} -->\n" for mark in ("begin", "end"))
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{document}: there must be one line {begin.strip()} and one {end.strip()}")
    head, _, rest = text.partition(begin)
    table, _, tail = rest.partition(end)
    return head + begin, table.strip("\n"), end + tail


def write(name: str) -> bool:
    """Write one table anew; whether it was another."""
    document, make = TABLES[name]
    head, old, tail = parts(document, name)
    new = make()
    if new != old:
        document.write_text(f"{head}{new}\n{tail}", encoding="utf-8")
    return new != old


def main() -> int:
    """Write all tables, and say which have changed."""
    changed = [name for name in TABLES if write(name)]
    print(f"written: {', '.join(changed)}" if changed else "nothing has changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
