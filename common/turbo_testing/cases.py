# SPDX-License-Identifier: MIT
"""Loads a wheel's tests/cases.py: the shapes that its tests and its benchmarks share.

By path, because tests are no package: `cases.load("turbo-gemm").SHAPES`. One module object for each file, so that two
users share one list and classes defined there are the same class.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[2]


def load_file(path: Path, name: str) -> ModuleType:
    """Executes the file as module `name` and keeps it in sys.modules; a second call returns the first module."""
    path = path.resolve()
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) != str(path):
            raise ImportError(f"module name {name} is taken by {getattr(known, '__file__', known)}, wanted {path}")
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load(wheel: str, packages: Path | None = None) -> ModuleType:
    """The module packages/<wheel>/tests/cases.py. FileNotFoundError names the wheels that have one."""
    packages = REPOSITORY / "packages" if packages is None else packages
    path = packages / wheel / "tests" / "cases.py"
    if not path.is_file():
        known = sorted(found.parts[-3] for found in packages.glob("*/tests/cases.py"))
        raise FileNotFoundError(f"no cases for wheel {wheel!r}: {path} is missing; wheels with cases: {known}")
    return load_file(path, f"turbo_testing_cases_{wheel.replace('-', '_')}")
