# SPDX-License-Identifier: MIT
"""Makes a new wheel from common/template, itself a complete wheel named turbo-example.

nox -s new-wheel -- turbo-foo
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

from tools.monorepo import ALLOWED_ARROWS, PACKAGES, ROOT, Wheel, skeleton_problems

TEMPLATE = ROOT / "common" / "template"


def render(name: str, packages: Path = PACKAGES) -> Wheel:
    """A new folder `packages/<name>`; raises ValueError when the name is not fit or taken."""
    if not re.fullmatch(r"turbo(-[a-z][a-z0-9]*)+", name):
        raise ValueError(f"{name!r}: a wheel is named turbo-<words>, lower case, such as turbo-norm-act")
    target = packages / name
    if target.exists():
        raise ValueError(f"{target} exists")
    words = {
        "turbo-example": name,
        "turbo_example": name.replace("-", "_"),
        "example ops": f"{name.removeprefix('turbo-')} ops",
    }
    unfinished = packages / f".{name}.tmp"
    shutil.rmtree(unfinished, ignore_errors=True)
    for source in sorted(TEMPLATE.rglob("*")):
        if source.is_dir() or "__pycache__" in source.parts:
            continue
        path = unfinished / _replaced(source.relative_to(TEMPLATE).as_posix(), words)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_replaced(source.read_text(encoding="utf-8"), words), encoding="utf-8")
    unfinished.rename(target)  # a half-made wheel is never seen
    return Wheel(target)


def _replaced(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="nox -s new-wheel --", description=__doc__.splitlines()[0])
    parser.add_argument("name", help="such as turbo-norm-act")
    try:
        wheel = render(parser.parse_args(argv).name)
    except ValueError as error:
        parser.error(str(error))
    problems = skeleton_problems(wheel)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"made {wheel.path.relative_to(ROOT)}; its tests: nox -s test-{wheel.name}")
    if wheel.name not in ALLOWED_ARROWS:
        print("next: write in ALLOWED_ARROWS of tools/monorepo.py which wheels it may depend on")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
