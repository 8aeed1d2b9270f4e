# SPDX-License-Identifier: MIT
"""docs/design.md says what is: its tables of wheels and of layers are those that the tools hold the code to."""

import re

from tools.monorepo import FORBIDDEN_IMPORTS, ROOT, wheels

TEXT = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose first line begins with ``| heading |``."""
    table = TEXT.split(f"\n| {heading} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_wheels_and_what_they_depend_on():
    found = {name.strip("`"): set(re.findall(r"`([\w-]+)`", needs)) for name, needs, _ in rows("wheel")}
    assert found == {wheel.name: wheel.wheel_requirements for wheel in wheels()}


def test_layers_and_what_they_must_not_use():
    found = {layer.strip("`"): set(re.findall(r"`([\w./]+)`", banned)) for layer, _, banned in rows("layer")}
    assert found.pop("csrc") == {"torch"}
    expected = {
        layer: {prefix.removeprefix("{wheel}.").replace("pytorch.", "pytorch/") for prefix in banned}
        for layer, banned in FORBIDDEN_IMPORTS.items()
    }
    assert found == expected
